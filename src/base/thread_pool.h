// A fork-join pool for loops whose iterations are independent.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace carat {

/// Runs the iterations of a loop on a fixed set of threads. The calling thread takes part, so a pool of one thread
/// starts none. Every thread has its share of consecutive iterations, in order, and takes from the others' when it is
/// done; which thread runs which is unspecified, so a body must write only what belongs to its own iteration. Between
/// loops the workers spin briefly, then sleep.
/// One loop at a time: `run` must not be called from two threads at once, nor from inside a body. Bodies must not
/// throw.
class ThreadPool {
 public:
  /// `threads` >= 1 in total; 0 means one per physical core that this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(i, thread) for every i in [0, count), thread in [0, threads()). Returns when all are done.
  template <typename Body>
  void run(int64_t count, const Body& body) {
    if (count <= 0) return;
    if (workers_.empty() || count == 1) {
      for (int64_t i = 0; i < count; ++i) body(i, 0);
      return;
    }
    fork_join(
        count, [](const void* context, int64_t i, int thread) { (*static_cast<const Body*>(context))(i, thread); },
        &body);
  }

 private:
  using Call = void (*)(const void* context, int64_t i, int thread);

  // Lines of the cache are fetched by twos.
  static constexpr size_t kApart = 128;

  // The loop in progress: written by the forking thread alone, while nobody is inside. Its number is even while it is
  // closed, odd while it is open. A worker that wants to enter an open loop says so in its own share and then looks
  // whether it is still open; the forking thread closes it when no iteration is left to hand out, and then waits for
  // those who said so. One of the two sees the other, so a worker that the system has not scheduled delays nobody, and
  // nothing is written by more than one thread except what is left of the shares.
  struct alignas(kApart) Loop {
    std::atomic<uint64_t> number{0};
    Call call = nullptr;
    const void* context = nullptr;
  };
  // What a thread is to do, [next, end).
  struct Share {
    alignas(kApart) std::atomic<int64_t> next{0};
    int64_t end = 0;
    alignas(kApart) std::atomic<uint64_t> inside{0};  // the open loop that its thread is in, or 0
  };

  void fork_join(int64_t count, Call call, const void* context);
  void work(int thread);
  void drain(int thread);

  std::vector<std::thread> workers_;
  Loop loop_;
  std::vector<Share> shares_;  // one a thread, the forking one's first
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace carat

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
/// starts none. Iterations are handed out dynamically; which thread runs which is unspecified, so a body must write
/// only what belongs to its own iteration. Between loops the workers spin briefly, then sleep.
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

  void fork_join(int64_t count, Call call, const void* context);
  void work(int thread);
  void drain(int thread);

  // The loop in progress, or none, in one word: [epoch | open | workers inside]. A worker may enter while the loop is
  // open; the forking thread closes it when no iteration is left to hand out, and waits for those inside only. So a
  // worker that the system has not scheduled delays nobody.
  static constexpr uint64_t kOpen = uint64_t{1} << 16;
  static constexpr uint64_t kInside = kOpen - 1;
  static constexpr uint64_t kEpoch = uint64_t{1} << 17;

  std::vector<std::thread> workers_;
  // What the loop does: written while it is closed and empty, read by workers inside.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> gate_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

/// Number of physical cores in this process's affinity mask (hyper-threads counted once), at least 1.
int physical_cores();

}  // namespace carat

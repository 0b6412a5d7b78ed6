#include "base/thread_pool.h"

#include "base/cpus.h"

namespace carat {
namespace {

// Long enough to bridge the serial gaps inside a forward pass (tens of microseconds), short enough that an idle
// engine costs no CPU.
constexpr int kSpins = 20000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(static_cast<size_t>(threads > 0 ? threads : physical_cores())) {
  threads = static_cast<int>(shares_.size());
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::fork_join(int64_t count, Call call, const void* context) {
  loop_.call = call;
  loop_.context = context;
  const auto threads = static_cast<int64_t>(shares_.size());
  const int64_t each = count / threads;
  const int64_t more = count % threads;  // that many threads have one more
  for (int64_t t = 0, begin = 0; t < threads; ++t) {
    Share& share = shares_[static_cast<size_t>(t)];
    share.next.store(begin, std::memory_order_relaxed);
    begin += each + (t < more ? 1 : 0);
    share.end = begin;
  }
  // Sequentially consistent, as sleepers_ is: a worker that falls asleep either sees the open loop or is seen asleep.
  const uint64_t number = loop_.number.load(std::memory_order_relaxed) + 1;
  loop_.number.store(number);
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  loop_.number.store(number + 1);
  int spins = 0;
  for (size_t t = 1; t < shares_.size(); ++t) {
    while (shares_[t].inside.load() == number) {
      if (++spins < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }
}

void ThreadPool::drain(int thread) {
  const Call call = loop_.call;
  const void* const context = loop_.context;
  const size_t threads = shares_.size();
  for (size_t k = 0, t = static_cast<size_t>(thread); k < threads; ++k, t = t + 1 < threads ? t + 1 : 0) {
    Share& share = shares_[t];
    // Looking costs less than taking, which would take the line away from its owner.
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const int64_t i = share.next.fetch_add(1, std::memory_order_relaxed);
      if (i < share.end) call(context, i, thread);
    }
  }
}

void ThreadPool::work(int thread) {
  std::atomic<uint64_t>& inside = shares_[static_cast<size_t>(thread)].inside;
  uint64_t seen = 0;  // the last loop entered
  const auto is_new = [&](uint64_t number) { return number % 2 == 1 && number != seen; };
  for (int spins = 0; !stop_.load(std::memory_order_relaxed);) {
    const uint64_t number = loop_.number.load(std::memory_order_relaxed);
    if (is_new(number)) {
      seen = number;
      inside.store(number);
      if (loop_.number.load() == number) drain(thread);
      inside.store(0, std::memory_order_release);
      spins = 0;
    } else if (++spins < kSpins) {
      relax();
    } else {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return stop_.load() || is_new(loop_.number.load()); });
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

}  // namespace carat

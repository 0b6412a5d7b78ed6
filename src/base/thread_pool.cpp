#include "base/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

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

int physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) {
    return std::max(1u, std::thread::hardware_concurrency());
  }
  std::set<std::string> cores;
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    ++allowed;
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (std::getline(file, siblings)) cores.insert(siblings);
  }
  return std::max(1, cores.empty() ? allowed : static_cast<int>(cores.size()));
}

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = physical_cores();
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
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  // Sequentially consistent, as sleepers_ is: a worker that falls asleep either sees the open gate or is seen asleep.
  gate_.store(((gate_.load(std::memory_order_relaxed) & ~(kOpen | kInside)) + kEpoch) | kOpen);
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::drain(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(context_, i, thread);
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;  // epoch of the last loop entered
  const auto is_new = [&](uint64_t gate) { return (gate & kOpen) != 0 && gate / kEpoch != seen; };
  for (int spins = 0; !stop_.load(std::memory_order_relaxed);) {
    uint64_t gate = gate_.load(std::memory_order_relaxed);
    if (is_new(gate)) {
      if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
      seen = gate / kEpoch;
      drain(thread);
      gate_.fetch_sub(1, std::memory_order_release);
      spins = 0;
    } else if (++spins < kSpins) {
      relax();
    } else {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return stop_.load() || is_new(gate_.load()); });
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

}  // namespace carat

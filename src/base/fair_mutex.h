// A mutex that is given in the order in which it was asked for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace carat {

/// std::mutex lets the thread that has just let go take it again, over the heads of those that wait. Where each holds
/// it nearly always, the others would starve. For std::lock_guard.
class FairMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = next_++;
    changed_.wait(lock, [&] { return serving_ == ticket; });
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      ++serving_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  uint64_t serving_ = 0;
};

}  // namespace carat

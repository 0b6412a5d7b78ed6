// The thread on which a scheduler runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fair_mutex.h"
#include "engine/scheduler.h"

namespace carat {

/// Runs a scheduler's steps while there is anything to do. Thread-safe.
class EngineThread {
 public:
  /// `turn` is held during a step: several engines that share a device share it, too.
  EngineThread(std::unique_ptr<Scheduler> scheduler, std::shared_ptr<FairMutex> turn);
  /// Generations that are not done end with an error.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Queues a generation and returns its id. `listener` is called on the engine's thread. Throws as Scheduler::submit.
  uint64_t submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener);
  /// The generation ends within one step, and its listener hears no more soon after.
  void cancel(uint64_t id);

  /// Ends all generations with an error, within one step; the engine goes on.
  void abandon();

  /// Has the scheduler follow a change of what SchedulerOptions::reserved says, also when there is nothing to compute.
  void memory_changed();

  int64_t longest() const { return scheduler_->longest(); }
  SchedulerStats stats() const;

 private:
  struct Submission {
    uint64_t id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationListener> listener;
  };

  void work();

  std::unique_ptr<Scheduler> scheduler_;
  std::shared_ptr<FairMutex> turn_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Submission> inbox_;
  std::vector<uint64_t> cancelled_;
  bool abandon_ = false;
  bool memory_changed_ = false;
  uint64_t next_id_ = 1;
  bool stop_ = false;
  SchedulerStats stats_;

  std::thread thread_;
};

}  // namespace carat

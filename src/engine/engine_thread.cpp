#include "engine/engine_thread.h"

#include <algorithm>
#include <utility>

namespace carat {
namespace {

constexpr const char* kClosing = "the server is shutting down";

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Scheduler> scheduler, std::shared_ptr<FairMutex> turn)
    : scheduler_(std::move(scheduler)), turn_(std::move(turn)), stats_(scheduler_->stats()) {
  thread_ = std::thread([this] { work(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

uint64_t EngineThread::submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
  scheduler_->check(request);
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(inbox_.size()) + stats_.waiting + stats_.running >= scheduler_->most_open()) {
      throw QueueFull("the queue is full");
    }
    id = next_id_++;
    inbox_.push_back({id, std::move(request), std::move(listener)});
  }
  wake_.notify_one();
  return id;
}

void EngineThread::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  wake_.notify_one();
}

void EngineThread::abandon() {
  {
    const std::lock_guard lock(mutex_);
    abandon_ = true;
  }
  wake_.notify_one();
}

void EngineThread::memory_changed() {
  {
    const std::lock_guard lock(mutex_);
    memory_changed_ = true;
  }
  wake_.notify_one();
}

SchedulerStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.kv_bytes_limit = scheduler_->kv_bytes();
  stats.waiting += static_cast<int64_t>(inbox_.size());
  return stats;
}

void EngineThread::work() {
  std::vector<Submission> submissions;
  std::vector<uint64_t> cancelled;
  bool abandon = false;
  bool idle = true;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      stats_ = scheduler_->stats();
      if (idle) {
        wake_.wait(lock,
                   [this] { return stop_ || abandon_ || memory_changed_ || !inbox_.empty() || !cancelled_.empty(); });
      }
      if (stop_) break;
      std::swap(submissions, inbox_);
      std::swap(cancelled, cancelled_);
      abandon = std::exchange(abandon_, false);
      memory_changed_ = false;
      stats_.waiting += static_cast<int64_t>(submissions.size());
    }
    for (Submission& submission : submissions) {
      const std::shared_ptr<GenerationListener> listener = submission.listener;
      try {
        scheduler_->submit(submission.id, std::move(submission.request), std::move(submission.listener));
      } catch (const std::exception& error) {
        listener->on_end({.finish = FinishReason::kCancelled, .error = error.what()});
      }
    }
    submissions.clear();
    for (const uint64_t id : cancelled) scheduler_->cancel(id);
    cancelled.clear();
    if (abandon) scheduler_->abandon(kClosing);
    const std::lock_guard turn(*turn_);
    idle = !scheduler_->step();
  }
  scheduler_->abandon(kClosing);
  {
    const std::lock_guard lock(mutex_);
    std::swap(submissions, inbox_);
  }
  for (const Submission& submission : submissions) {
    submission.listener->on_end({.finish = FinishReason::kCancelled, .error = kClosing});
  }
}

}  // namespace carat

#include "server/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/json_text.h"
#include "server/openai_errors.h"

namespace carat::server {

void TaskSet::add(std::shared_ptr<TaskHandle> task) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kReleased) return;
    if (state_ == State::kOpen) {
      tasks_.push_back(std::move(task));
      return;
    }
  }
  task->cancel();
}

/// Handles are cancelled and destroyed outside the lock: what they do is not known here.
std::vector<std::shared_ptr<TaskHandle>> TaskSet::close(State state) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kOpen) state_ = state;
  return std::exchange(tasks_, {});
}

void TaskSet::cancel() {
  for (const auto& task : close(State::kCancelled)) task->cancel();
}

void TaskSet::release() {
  close(State::kReleased);
}

OpenAiAnswer::OpenAiAnswer(std::shared_ptr<HttpExchange> exchange, bool stream, int replies)
    : exchange_(std::move(exchange)), stream_(stream), open_replies_(replies) {}

void OpenAiAnswer::start() {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    begin();
  }
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto answer = weak.lock()) answer->tasks_.cancel();
  });
}

void OpenAiAnswer::begin() {
  if (!stream_ || begun_) return;
  begun_ = true;
  exchange_->begin_events();
}

void OpenAiAnswer::send_error(const ApiError& error) {
  if (begun_) {
    send(fmt::format("data: {}\n\n", openai_error_text(error)));
    exchange_->end();
  } else {
    exchange_->respond(openai_error(error));
  }
}

void OpenAiAnswer::fail(const ApiError& error) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(done_, true)) return;
    send_error(error);
  }
  tasks_.cancel();
}

void OpenAiAnswer::on_reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) {
  const std::lock_guard lock(mutex_);
  if (done_ || exchange_->gone()) return;
  begin();
  reply(index, events, tokens);
}

void OpenAiAnswer::on_end(int index, const ReplyEnd& end) {
  if (end.error) return fail(*end.error);
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    begin();
    reply_ended(index, end);
    if (--open_replies_ > 0) return;
    done_ = true;
    finish();
    if (stream_) {
      send("data: [DONE]\n\n");
      exchange_->end();
    }
  }
  tasks_.release();
}

void OpenAiAnswer::respond(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  exchange_->respond(std::move(response));
}

std::string opening(std::string_view id, std::string_view object, std::string_view model) {
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":"carat",)", id, object,
                     std::time(nullptr), json_string(model));
}

std::string_view finish_reason(EndReason reason) {
  switch (reason) {
    case EndReason::kLength:
      return R"("length")";
    case EndReason::kToolCalls:
      return R"("tool_calls")";
    case EndReason::kStop:
    case EndReason::kStopSequence:
      break;
  }
  return R"("stop")";
}

void Totals::add(int prompt, const ReplyEnd& end) {
  Prompt& seen = prompts_[prompt];
  // Replies to one prompt may find what the first of them left in the cache: the least says what was there before.
  seen.cached = seen.known ? std::min(seen.cached, end.usage.cached_tokens) : end.usage.cached_tokens;
  seen.tokens = end.usage.prompt_tokens;
  seen.known = true;
  ++replies_;
  completion_tokens_ += end.usage.completion_tokens;
  reasoning_tokens_ += end.usage.reasoning_tokens;
  prompt_seconds_ = std::max(prompt_seconds_, end.prompt_seconds);
  generation_seconds_ = std::max(generation_seconds_, end.generation_seconds);
}

int64_t Totals::prompt_tokens() const {
  int64_t sum = 0;
  for (const Prompt& prompt : prompts_) sum += prompt.tokens;
  return sum;
}

int64_t Totals::cached_tokens() const {
  int64_t sum = 0;
  for (const Prompt& prompt : prompts_) sum += prompt.cached;
  return sum;
}

std::string Totals::usage() const {
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}},)"
                     R"("completion_tokens_details":{{"reasoning_tokens":{}}}}})",
                     prompt_tokens(), completion_tokens_, prompt_tokens() + completion_tokens_, cached_tokens(),
                     reasoning_tokens_);
}

std::string Totals::usage_event(std::string_view opening) const {
  return fmt::format(R"({}"choices":[],"usage":{},"timings":{}}})", opening, usage(), timings()) + "\n\n";
}

std::string Totals::timings() const {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0.0 && tokens > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const int64_t read = prompt_tokens() - cached_tokens();
  // The clock of the generation starts at the first token of each reply.
  const int64_t timed = completion_tokens_ - replies_;
  return fmt::format(R"({{"cache_n":{},"prompt_n":{},"prompt_ms":{:.3f},"prompt_per_second":{:.3f},)"
                     R"("predicted_n":{},"predicted_ms":{:.3f},"predicted_per_second":{:.3f}}})",
                     cached_tokens(), read, prompt_seconds_ * 1e3, rate(read, prompt_seconds_), completion_tokens_,
                     generation_seconds_ * 1e3, rate(timed, generation_seconds_));
}

}  // namespace carat::server

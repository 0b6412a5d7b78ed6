// What the generating routes of the OpenAI dialect share: how replies become one answer to one request.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_task.h"
#include "server/exchange.h"

namespace carat::server {

/// The tasks behind one answer: cancelled together, let go together. Thread-safe.
class TaskSet {
 public:
  /// Cancels the task at once when cancel() came before.
  void add(std::shared_ptr<TaskHandle> task);
  void cancel();
  /// All have ended.
  void release();

 private:
  enum class State : uint8_t { kOpen, kCancelled, kReleased };
  std::vector<std::shared_ptr<TaskHandle>> close(State state);

  std::mutex mutex_;
  State state_ = State::kOpen;
  std::vector<std::shared_ptr<TaskHandle>> tasks_;
};

/// Makes one answer out of `replies` replies, streaming or not. When one of them fails the answer is its error, the
/// others are cancelled; when the client leaves all are.
///
/// The tasks hold the answer, which holds their handles: both let go when the last reply has ended, and when the tasks
/// are cancelled. The exchange does not hold the answer.
class OpenAiAnswer : public ReplyListener, public std::enable_shared_from_this<OpenAiAnswer> {
 public:
  OpenAiAnswer(std::shared_ptr<HttpExchange> exchange, bool stream, int replies);

  /// A task whose replies come here.
  void add(std::shared_ptr<TaskHandle> task) { tasks_.add(std::move(task)); }
  /// To be called when the service has accepted all tasks. Begins the stream, so that the transport can keep the
  /// connection alive while prompts are read.
  void start();
  /// Answers with an error: with its status, or as an event where the stream has begun.
  void fail(const ApiError& error);

  void on_reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) final;
  void on_end(int index, const ReplyEnd& end) final;

 protected:
  // Called one at a time, for replies without errors.
  virtual void reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) = 0;
  virtual void reply_ended(int index, const ReplyEnd& end) = 0;
  /// All replies have ended: sends what is left to be sent, but for the end of the stream.
  virtual void finish() = 0;

  /// Sends one or more whole events.
  void send(std::string events) { exchange_->write(std::move(events)); }
  void respond(std::string body);

 private:
  void begin();
  void send_error(const ApiError& error);

  std::shared_ptr<HttpExchange> exchange_;
  bool stream_;
  TaskSet tasks_;
  std::mutex mutex_;  // guards what follows, and the members of derived classes
  int open_replies_;
  bool begun_ = false;
  bool done_ = false;
};

/// The beginning of a response or chunk, up to the comma before its own fields:
/// {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,
std::string opening(std::string_view id, std::string_view object, std::string_view model);

/// "stop", "length" or "tool_calls", quotes included.
std::string_view finish_reason(EndReason reason);

/// Sums over the replies of an answer.
class Totals {
 public:
  explicit Totals(int prompts) : prompts_(prompts) {}
  void add(int prompt, const ReplyEnd& end);
  /// Each prompt counts once, the tokens of all replies count.
  std::string usage() const;
  /// An extra that llama-server's clients know: how much was read and written, in how many milliseconds.
  std::string timings() const;
  /// The last event of a stream that was asked for its usage; `opening` as chunks begin.
  std::string usage_event(std::string_view opening) const;

 private:
  struct Prompt {
    bool known = false;
    int64_t tokens = 0;
    int64_t cached = 0;
  };
  int64_t prompt_tokens() const;
  int64_t cached_tokens() const;

  std::vector<Prompt> prompts_;
  int64_t replies_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  double prompt_seconds_ = 0.0;
  double generation_seconds_ = 0.0;
};

}  // namespace carat::server

// What the dialects bring every conversation request to, and what they get back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chat/chat.h"
#include "sampling/sampling_choice.h"

namespace carat::server {

/// An error that goes to the client, in its dialect's shape.
struct ApiError {
  int status = 400;
  std::string message;  // one sentence
  std::string code;     // "model_not_found", "context_length_exceeded", "queue_full", …; empty for none
  std::string param;    // field of the request, where one is to blame
  int retry_after = 0;  // seconds; 0 for none
};

/// Thrown while a request is read.
class ApiFailure : public std::exception {
 public:
  explicit ApiFailure(ApiError error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

/// Throws an ApiFailure.
[[noreturn]] inline void refuse(int status, std::string message, std::string code = {}, std::string param = {}) {
  throw ApiFailure(
      {.status = status, .message = std::move(message), .code = std::move(code), .param = std::move(param)});
}

/// What all generating requests share.
struct GenerationTask {
  std::string model;    // as the client named it: "", an id, or "id:adapter"
  std::string adapter;  // "", "none", "a", "a+b"
  // What it leaves open the server's flags, the model's recommendation and the defaults decide, in that order.
  SamplingChoice sampling;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;
  std::vector<int> stop_tokens;
  bool logprobs = false;
  int top_logprobs = 0;
  int n = 1;
  int priority = 0;  // higher goes first
  bool ignore_eos = false;
};

struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // of kNamed
};

struct ResponseFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  Json schema;  // of kJsonSchema
};

struct ChatTask : GenerationTask {
  Json messages;  // OpenAI's shape (chat/chat.h)
  Json tools;     // OpenAI's function tools; null or empty for none
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  ResponseFormat response_format;
  std::optional<bool> thinking;        // default: the server's flag, else off
  std::optional<int> thinking_budget;  // most tokens of thought; the thought is closed when they are spent
};

/// One prompt, given as text or as token ids.
struct CompletionTask : GenerationTask {
  std::string prompt;
  std::vector<int> prompt_ids;  // instead of the text
  bool prompt_logprobs = false;
};

/// A token of the reply with its log-probability and the alternatives.
struct TokenReport {
  int token = 0;
  std::string bytes;  // what the token adds to the text; the spelling of control tokens
  float logprob = 0.0f;
  struct Alternative {
    int token = 0;
    std::string bytes;
    float logprob = 0.0f;
  };
  std::vector<Alternative> top;
};

struct ReplyEvent {
  enum class Kind : uint8_t { kReasoning, kText, kToolCall };
  Kind kind = Kind::kText;
  std::string text;       // reasoning or text to append; of a call the tool's name
  std::string arguments;  // of a call: a JSON object
  std::string call_id;    // of a call: unique, "call_" and 24 letters and digits
  int call_index = 0;     // of a call: 0, 1, 2, … in this reply
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt
  int64_t completion_tokens = 0;  // all that were generated, the one that ended the reply included
  int64_t reasoning_tokens = 0;   // of them: thoughts and their markers
};

enum class EndReason : uint8_t { kStop, kStopSequence, kLength, kToolCalls };

struct ReplyEnd {
  EndReason reason = EndReason::kStop;
  std::string stop_sequence;      // of kStopSequence: the one that matched
  bool thought_open = false;      // the reply was cut inside a thought
  std::optional<ApiError> error;  // set when generation failed: nothing else but usage counts then
  Usage usage;
  double prompt_seconds = 0.0;
  double generation_seconds = 0.0;          // after the first token
  std::vector<TokenReport> prompt_reports;  // with CompletionTask::prompt_logprobs: of every prompt token but the first
};

/// Receives one reply (choice `index` of a task) while it is made, in order, on the engine's thread: must be quick and
/// not throw. on_end comes last and exactly once, unless the reply was cancelled.
class ReplyListener {
 public:
  virtual ~ReplyListener() = default;
  /// What the prompt has come to: exactly usage.prompt_tokens. Comes once for a task, before all else, from inside the
  /// member of Service that was given it, which may still throw afterwards. (What that member returns would come too
  /// late: the reply does not wait for it.)
  virtual void on_prompt(int64_t /*tokens*/) {}
  /// New events, and the reports of the tokens that led to them (with logprobs only). Either may be empty.
  virtual void on_reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) = 0;
  virtual void on_end(int index, const ReplyEnd& end) = 0;
};

/// Cancels all replies of a task, from any thread; harmless afterwards.
class TaskHandle {
 public:
  virtual ~TaskHandle() = default;
  virtual void cancel() = 0;
};

}  // namespace carat::server

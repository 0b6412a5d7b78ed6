#include "server/anthropic_writer.h"

#include <utility>

#include "server/json_text.h"
#include "server/random_id.h"

namespace carat::server {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

Json error_object(const ApiError& error, const std::string& request_id) {
  return {{"type", "error"},
          {"error", {{"type", error_type(error.status)}, {"message", error.message}}},
          {"request_id", request_id}};
}

const char* stop_reason(EndReason reason) {
  switch (reason) {
    case EndReason::kStopSequence:
      return "stop_sequence";
    case EndReason::kLength:
      return "max_tokens";
    case EndReason::kToolCalls:
      return "tool_use";
    case EndReason::kStop:
      break;
  }
  return "end_turn";
}

Json input_usage(int64_t whole, int64_t cached) {
  return {{"input_tokens", whole - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", 0}};
}

/// Anthropic's ids of calls have a prefix of their own.
std::string tool_use_id(std::string_view call_id) {
  constexpr std::string_view kPrefix = "call_";
  if (call_id.starts_with(kPrefix)) call_id.remove_prefix(kPrefix.size());
  return "toolu_" + std::string(call_id);
}

/// `input` must be an object; what is none is handed on unread rather than lost.
Json tool_input(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, false);
  if (!input.is_object()) input = {{"_raw", arguments}};
  return input;
}

}  // namespace

HttpResponse anthropic_error(const ApiError& error, const std::string& request_id) {
  HttpResponse response{.status = error.status, .body = to_text(error_object(error, request_id))};
  response.headers.emplace_back("request-id", request_id);
  if (error.retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return response;
}

AnthropicWriter::AnthropicWriter(Options options)
    : options_(std::move(options)),
      message_({{"id", random_id("msg_")},
                {"type", "message"},
                {"role", "assistant"},
                {"model", options_.model},
                {"content", Json::array()},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr},
                {"usage", input_usage(0, 0)}}) {}

std::string AnthropicWriter::open(int64_t prompt_tokens) {
  message_["usage"] = input_usage(prompt_tokens, 0);
  emit("message_start", {{"message", message_}});
  emit("ping", Json::object());
  return take();
}

std::string AnthropicWriter::add(std::span<const ReplyEvent> events, std::span<const TokenReport> /*tokens*/) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        grow(Block::kThinking, event.text);
        break;
      case ReplyEvent::Kind::kText:
        grow(Block::kText, event.text);
        break;
      case ReplyEvent::Kind::kToolCall:
        call(event);
        break;
    }
  }
  return take();
}

std::string AnthropicWriter::close(const ReplyEnd& end) {
  if (end.error) {
    if (options_.stream) pending_ += named_event("error", error_object(*end.error, options_.request_id));
    return take();
  }
  if (message_["content"].empty()) {
    start_block({{"type", "text"}, {"text", ""}});
    block_ = Block::kText;
  }
  stop_block();
  message_["stop_reason"] = stop_reason(end.reason);
  if (end.reason == EndReason::kStopSequence) message_["stop_sequence"] = end.stop_sequence;
  Json& usage = message_["usage"];
  usage = input_usage(end.usage.prompt_tokens, options_.marks_cache ? end.usage.cached_tokens : 0);
  usage["output_tokens"] = end.usage.completion_tokens;
  usage["output_tokens_details"] = {{"thinking_tokens", end.usage.reasoning_tokens}};
  emit("message_delta",
       {{"delta", {{"stop_reason", message_["stop_reason"]}, {"stop_sequence", message_["stop_sequence"]}}},
        {"usage", usage}});
  emit("message_stop", Json::object());
  return take();
}

HttpResponse AnthropicWriter::whole() {
  return {.body = to_text(message_), .headers = {{"request-id", options_.request_id}}};
}

HttpResponse AnthropicWriter::failure(const ApiError& error) {
  return anthropic_error(error, options_.request_id);
}

void AnthropicWriter::emit(std::string_view type, const Json& fields) {
  if (!options_.stream) return;
  Json event = {{"type", type}};
  event.update(fields);
  pending_ += named_event(type, event);
}

void AnthropicWriter::delta(Json fields) {
  emit("content_block_delta", {{"index", message_["content"].size() - 1}, {"delta", std::move(fields)}});
}

void AnthropicWriter::start_block(Json block) {
  stop_block();
  emit("content_block_start", {{"index", message_["content"].size()}, {"content_block", block}});
  message_["content"].push_back(std::move(block));
}

void AnthropicWriter::stop_block() {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking) delta({{"type", "signature_delta"}, {"signature", ""}});
  emit("content_block_stop", {{"index", message_["content"].size() - 1}});
  block_ = Block::kNone;
}

void AnthropicWriter::grow(Block kind, const std::string& text) {
  if (text.empty()) return;
  const bool thinking = kind == Block::kThinking;
  if (block_ != kind) {
    start_block(thinking ? Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}
                         : Json{{"type", "text"}, {"text", ""}});
    block_ = kind;
  }
  const char* field = thinking ? "thinking" : "text";
  message_["content"].back()[field].get_ref<std::string&>() += text;
  if (options_.stream) delta({{"type", thinking ? "thinking_delta" : "text_delta"}, {field, text}});
}

void AnthropicWriter::call(const ReplyEvent& event) {
  Json block = {
      {"type", "tool_use"}, {"id", tool_use_id(event.call_id)}, {"name", event.text}, {"input", Json::object()}};
  start_block(std::move(block));
  Json input = tool_input(event.arguments);
  if (options_.stream) delta({{"type", "input_json_delta"}, {"partial_json", to_text(input)}});
  emit("content_block_stop", {{"index", message_["content"].size() - 1}});
  message_["content"].back()["input"] = std::move(input);
}

std::string AnthropicWriter::take() {
  return std::exchange(pending_, {});
}

}  // namespace carat::server

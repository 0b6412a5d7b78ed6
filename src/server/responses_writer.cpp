#include "server/responses_writer.h"

#include <ctime>
#include <utility>

#include "server/json_text.h"
#include "server/openai_errors.h"
#include "server/openai_logprobs.h"
#include "server/random_id.h"

namespace carat::server {
namespace {

Json usage_object(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

/// The few words that a response's error may have for its code.
const char* error_code(int status) {
  if (status == 429) return "rate_limit_exceeded";
  return status < 500 ? "invalid_prompt" : "server_error";
}

Json or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json summary_part(const std::string& text) {
  return {{"type", "summary_text"}, {"text", text}};
}

Json text_part(const std::string& text, Json logprobs) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

/// The first token whose text is in `text`, which the last of `tokens` brought: markers before it are no part of it.
size_t first_token_of(const std::vector<TokenReport>& tokens, std::string_view text) {
  for (size_t first = 0; first < tokens.size(); ++first) {
    std::string spelled;
    for (size_t i = first; i < tokens.size() && spelled.size() < text.size(); ++i) spelled += tokens[i].bytes;
    if (std::string_view(spelled).starts_with(text.substr(0, spelled.size())) && !tokens[first].bytes.empty()) {
      return first;
    }
  }
  return 0;
}

}  // namespace

ResponsesWriter::ResponsesWriter(Options options) : options_(std::move(options)) {}

std::string ResponsesWriter::open(int64_t /*prompt_tokens*/) {
  emit_response("response.created");
  emit_response("response.in_progress");
  return take();
}

std::string ResponsesWriter::add(std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        grow(Item::kReasoning, event.text);
        break;
      case ReplyEvent::Kind::kText:
        grow(Item::kMessage, event.text);
        break;
      case ReplyEvent::Kind::kToolCall:
        call(event);
        break;
    }
  }
  return take();
}

std::string ResponsesWriter::close(const ReplyEnd& end) {
  if (end.error) {
    fail_response(*end.error);
  } else {
    end_response(end);
  }
  return take();
}

HttpResponse ResponsesWriter::whole() {
  return {.body = to_text(response_)};
}

HttpResponse ResponsesWriter::failure(const ApiError& error) {
  return openai_error(error);
}

size_t ResponsesWriter::output_index() const {
  return response_["output"].size();
}

void ResponsesWriter::emit(std::string_view type, const Json& fields) {
  if (!options_.stream) return;
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  pending_ += named_event(type, event);
}

void ResponsesWriter::emit_part(std::string_view type, const Json& fields) {
  if (!options_.stream) return;
  Json event = {{"item_id", item_["id"]}, {"output_index", output_index()}};
  event.update(fields);
  emit(type, event);
}

void ResponsesWriter::emit_response(std::string_view type) {
  if (options_.stream) emit(type, {{"response", response_}});
}

void ResponsesWriter::grow(Item kind, const std::string& text) {
  if (text.empty()) return;
  if (open_ != kind) {
    finish_item("completed");
    if (kind == Item::kReasoning) {
      start_reasoning();
    } else {
      start_message();
    }
  }
  text_ += text;
  if (kind == Item::kReasoning) {
    tokens_.clear();
    emit_part("response.reasoning_summary_text.delta", {{"summary_index", 0}, {"delta", text}});
  } else {
    Json logprobs = text_logprobs(text);
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    emit_part("response.output_text.delta", {{"content_index", 0}, {"delta", text}, {"logprobs", std::move(logprobs)}});
  }
}

void ResponsesWriter::call(const ReplyEvent& event) {
  finish_item("completed");
  tokens_.clear();
  item_ = {{"id", random_id("fc_")},   {"type", "function_call"}, {"status", "in_progress"},
           {"call_id", event.call_id}, {"name", event.text},      {"arguments", ""}};
  emit("response.output_item.added", {{"output_index", output_index()}, {"item", item_}});
  emit_part("response.function_call_arguments.delta", {{"delta", event.arguments}});
  emit_part("response.function_call_arguments.done", {{"name", event.text}, {"arguments", event.arguments}});
  item_["arguments"] = event.arguments;
  item_["status"] = "completed";
  push_item();
}

void ResponsesWriter::start_reasoning() {
  open_ = Item::kReasoning;
  item_ = {{"id", random_id("rs_")}, {"type", "reasoning"}, {"status", "in_progress"}, {"summary", Json::array()}};
  emit("response.output_item.added", {{"output_index", output_index()}, {"item", item_}});
  emit_part("response.reasoning_summary_part.added", {{"summary_index", 0}, {"part", summary_part("")}});
}

void ResponsesWriter::start_message() {
  open_ = Item::kMessage;
  item_ = {{"id", random_id("msg_")},
           {"type", "message"},
           {"status", "in_progress"},
           {"role", "assistant"},
           {"content", Json::array()}};
  emit("response.output_item.added", {{"output_index", output_index()}, {"item", item_}});
  emit_part("response.content_part.added", {{"content_index", 0}, {"part", text_part("", Json::array())}});
}

void ResponsesWriter::finish_item(const char* status) {
  if (open_ == Item::kNone) return;
  if (open_ == Item::kReasoning) {
    finish_reasoning();
  } else {
    finish_message();
  }
  item_["status"] = status;
  push_item();
}

void ResponsesWriter::finish_reasoning() {
  const Json part = summary_part(text_);
  emit_part("response.reasoning_summary_text.done", {{"summary_index", 0}, {"text", text_}});
  emit_part("response.reasoning_summary_part.done", {{"summary_index", 0}, {"part", part}});
  item_["summary"].push_back(part);
  item_["content"] = Json::array({{{"type", "reasoning_text"}, {"text", text_}}});
}

void ResponsesWriter::finish_message() {
  Json part = text_part(text_, std::exchange(logprobs_, Json::array()));
  emit_part("response.output_text.done", {{"content_index", 0}, {"text", text_}, {"logprobs", part["logprobs"]}});
  emit_part("response.content_part.done", {{"content_index", 0}, {"part", part}});
  item_["content"].push_back(std::move(part));
}

void ResponsesWriter::push_item() {
  emit("response.output_item.done", {{"output_index", output_index()}, {"item", item_}});
  response_["output"].push_back(std::exchange(item_, nullptr));
  text_.clear();
  open_ = Item::kNone;
}

Json ResponsesWriter::text_logprobs(const std::string& text) {
  const std::vector<TokenReport> reported = std::exchange(tokens_, {});
  if (reported.empty()) return Json::array();
  const size_t first = text_.size() == text.size() ? first_token_of(reported, text) : 0;
  std::string entries;
  append_chat_logprobs(entries, std::span(reported).subspan(first));
  return Json::parse("[" + entries + "]");
}

void ResponsesWriter::end_response(const ReplyEnd& end) {
  const bool cut = end.reason == EndReason::kLength;
  if (open_ == Item::kNone && response_["output"].empty()) start_message();
  finish_item(cut ? "incomplete" : "completed");
  response_["status"] = cut ? "incomplete" : "completed";
  if (cut) {
    response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  } else {
    response_["completed_at"] = static_cast<int64_t>(std::time(nullptr));
  }
  response_["usage"] = usage_object(end.usage);
  store();
  emit_response(cut ? "response.incomplete" : "response.completed");
}

void ResponsesWriter::fail_response(const ApiError& error) {
  finish_item("incomplete");
  response_["status"] = "failed";
  response_["error"] = {{"code", error_code(error.status)}, {"message", error.message}};
  store();
  emit("error", {{"code", or_null(error.code)}, {"message", error.message}, {"param", or_null(error.param)}});
  emit_response("response.failed");
}

void ResponsesWriter::store() const {
  if (!options_.store) return;
  options_.store->put(
      {.id = response_["id"].get<std::string>(), .response = to_text(response_), .input = to_text(options_.items)});
}

std::string ResponsesWriter::take() {
  return std::exchange(pending_, {});
}

}  // namespace carat::server

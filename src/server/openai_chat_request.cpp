#include "server/openai_chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "server/generation_fields.h"

namespace carat::server {
namespace {

void check_part(const Json& value, const std::string& path) {
  const Fields part(value, path);
  const auto type = part.text("type");
  if (!type) part.refuse("type", "the type of a content part");
  if (*type != "text" && *type != "input_text" && *type != "output_text") {
    refuse(path, fmt::format("{}: found a part of type {}, expected text: this server reads text only", path,
                             describe(value["type"])));
  }
  if (!part.text("text")) part.refuse("text", "a string");
}

void check_message(const Json& value, const std::string& path) {
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  const Fields message(value, path);
  const auto role = message.text("role");
  if (!role || std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end()) {
    message.refuse("role", "system, developer, user, assistant or tool");
  }
  const Json* content = message.find("content");
  if (content == nullptr || content->is_string()) return;
  if (content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) check_part((*content)[i], fmt::format("{}.content[{}]", path, i));
  } else if (*role != "tool") {  // what a tool returns may be any value
    message.refuse("content", "a string, null or an array of parts");
  }
}

ToolChoice read_tool_choice(const Fields& fields) {
  using Kind = ToolChoice::Kind;
  static constexpr const char* kExpected = R"(none, auto, required or {"type": "function", "function": {"name": ...}})";
  const Json* value = fields.find("tool_choice");
  if (value == nullptr) return {};
  if (value->is_object()) {
    const Fields choice(*value, "tool_choice");
    if (choice.text("type") != "function") choice.refuse("type", "\"function\"");
    const auto function = choice.object("function");
    const auto name = function ? function->text("name") : std::nullopt;
    if (!name) choice.refuse("function", "an object with a name");
    return {Kind::kNamed, *name};
  }
  if (*value == "none") return {Kind::kNone, {}};
  if (*value == "auto") return {Kind::kAuto, {}};
  if (*value == "required") return {Kind::kRequired, {}};
  fields.refuse("tool_choice", kExpected);
}

void read_tools(const Fields& fields, ChatTask& task) {
  for (const char* legacy : {"functions", "function_call"}) {
    if (fields.has(legacy)) {
      refuse(legacy, fmt::format("{}: found a field that OpenAI has replaced, expected tools and tool_choice", legacy));
    }
  }
  if (const Json* tools = fields.array("tools")) task.tools = *tools;
  check_tools(task.tools);
  task.tool_choice = read_tool_choice(fields);
  check_tool_choice(task.tool_choice, task.tools);
  task.parallel_tool_calls = fields.flag("parallel_tool_calls").value_or(true);
}

ResponseFormat read_response_format(const Fields& fields) {
  using Kind = ResponseFormat::Kind;
  const auto format = fields.object("response_format");
  if (!format) {
    // vLLM's way to say it.
    if (const auto schema = fields.object("guided_json")) return {Kind::kJsonSchema, schema->json()};
    return {};
  }
  const auto type = format->text("type");
  if (type == "text") return {};
  if (type == "json_object") {
    // llama-server's way to give a schema.
    if (const auto schema = format->object("schema")) return {Kind::kJsonSchema, schema->json()};
    return {Kind::kJsonObject, nullptr};
  }
  if (type != "json_schema") format->refuse("type", "text, json_object or json_schema");
  format->require("json_schema", "an object with a schema");
  const Fields named = *format->object("json_schema");
  named.text("name");
  named.flag("strict");
  named.require("schema", "a JSON schema");
  return {Kind::kJsonSchema, named.object("schema")->json()};
}

void read_logprobs(const Fields& fields, GenerationTask& task) {
  task.logprobs = fields.flag("logprobs").value_or(false);
  task.top_logprobs = static_cast<int>(fields.integer("top_logprobs", 0, 20).value_or(0));
  if (task.top_logprobs > 0 && !task.logprobs) fields.refuse("top_logprobs", "logprobs: true beside it");
}

void refuse_sound(const Fields& fields) {
  const Json* modalities = fields.array("modalities");
  if (modalities == nullptr) return;
  for (const Json& modality : *modalities) {
    if (modality != "text") {
      refuse("modalities",
             fmt::format("modalities: found {}, expected text: this server writes text only", describe(modality)));
    }
  }
}

}  // namespace

void check_messages(const Json& messages, std::string_view path) {
  const std::string name(path);
  if (!messages.is_array() || messages.empty()) {
    refuse(name, fmt::format("{}: found {}, expected an array of at least one message", name, describe(messages)));
  }
  for (size_t i = 0; i < messages.size(); ++i) check_message(messages[i], fmt::format("{}[{}]", name, i));
}

bool read_include_usage(const Fields& fields, bool stream) {
  const auto options = fields.object("stream_options");
  if (!options) return false;
  if (!stream) fields.refuse("stream_options", "stream: true beside it");
  return options->flag("include_usage").value_or(false);
}

OpenAiChatRequest read_openai_chat(std::string_view body) {
  const Json json = read_body(body);
  const Fields fields(json);
  OpenAiChatRequest request;
  ChatTask& task = request.task;
  read_model(fields, task);
  task.messages = fields.require("messages", "an array of at least one message");
  check_messages(task.messages);
  const char* limit = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  task.max_tokens = read_limit(fields, limit);
  read_sampling(fields, task);
  read_stop(fields, "stop", task);
  task.n = static_cast<int>(fields.integer("n", 1, 16).value_or(1));
  read_logprobs(fields, task);
  read_tools(fields, task);
  task.response_format = read_response_format(fields);
  task.thinking = read_effort(fields, "reasoning_effort");
  read_thinking(fields, task);
  refuse_sound(fields);
  request.stream = fields.flag("stream").value_or(false);
  request.include_usage = read_include_usage(fields, request.stream);
  return request;
}

}  // namespace carat::server

#include "server/anthropic_request.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "server/anthropic_turns.h"
#include "server/generation_fields.h"
#include "server/request_fields.h"

namespace carat::server {
namespace {

/// The caller's own tools. Those of other types are Anthropic's (web search, bash, …): nobody would run them here.
Json read_tools(const Fields& body) {
  const Json* list = body.array("tools");
  Json tools = Json::array();
  if (list == nullptr) return tools;
  for (size_t i = 0; i < list->size(); ++i) {
    const Fields tool((*list)[i], fmt::format("tools[{}]", i));
    if (tool.text("type").value_or("custom") != "custom") continue;
    tool.require("name", "1 to 128 letters, digits, underscores and dashes");
    tool.require("input_schema", "a JSON schema");
    Json function = {{"name", *tool.text("name")}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    function["parameters"] = tool.object("input_schema")->json();
    if (const auto strict = tool.flag("strict")) function["strict"] = *strict;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  check_tools(tools);
  return tools;
}

void read_tool_choice(const Fields& body, ChatTask& task) {
  using Kind = ToolChoice::Kind;
  const auto choice = body.object("tool_choice");
  if (!choice) return;
  const auto type = choice->text("type");
  if (type == "auto") {
    task.tool_choice.kind = Kind::kAuto;
  } else if (type == "none") {
    task.tool_choice.kind = Kind::kNone;
  } else if (type == "any") {
    task.tool_choice.kind = Kind::kRequired;
  } else if (type == "tool") {
    choice->require("name", "the name of a tool");
    task.tool_choice = {Kind::kNamed, *choice->text("name")};
  } else {
    choice->refuse("type", "auto, any, tool or none");
  }
  task.parallel_tool_calls = !choice->flag("disable_parallel_tool_use").value_or(false);
  check_tool_choice(task.tool_choice, task.tools);
}

void read_anthropic_thinking(const Fields& body, ChatTask& task) {
  const auto thinking = body.object("thinking");
  if (!thinking) return;
  const auto type = thinking->text("type");
  if (type == "disabled") {
    task.thinking = false;
  } else if (type == "adaptive") {
    task.thinking = true;
  } else if (type == "enabled") {
    task.thinking = true;
    task.thinking_budget = read_limit(*thinking, "budget_tokens");
  } else {
    thinking->refuse("type", "enabled, adaptive or disabled");
  }
}

void read_format(const Fields& format, ChatTask& task) {
  if (format.text("type") != "json_schema") format.refuse("type", "json_schema");
  format.require("schema", "a JSON schema");
  task.response_format = {ResponseFormat::Kind::kJsonSchema, format.object("schema")->json()};
}

bool any_marks_cache(const Json* value) {
  if (value == nullptr || !value->is_array()) return false;
  for (const Json& item : *value) {
    if (!item.is_object()) continue;
    const Fields fields(item);
    if (fields.has("cache_control") || any_marks_cache(fields.find("content"))) return true;
  }
  return false;
}

bool marks_cache(const Fields& body) {
  return body.has("cache_control") || any_marks_cache(body.find("system")) || any_marks_cache(body.find("tools")) ||
         any_marks_cache(body.find("messages"));
}

}  // namespace

MessagesRequest read_messages_request(std::string_view body, MessagesRoute route) {
  const Json json = read_body(body);
  const Fields fields(json);
  MessagesRequest request;
  ChatTask& task = request.task;
  read_model(fields, task);
  task.max_tokens = read_limit(fields, "max_tokens");
  if (route == MessagesRoute::kMessages && !task.max_tokens) fields.refuse("max_tokens", "an integer of at least 1");
  task.messages = read_anthropic_turns(fields);
  task.tools = read_tools(fields);
  read_tool_choice(fields, task);
  read_anthropic_thinking(fields, task);
  read_sampling(fields, task);
  read_stop(fields, "stop_sequences", task);
  if (const auto config = fields.object("output_config")) {
    if (const auto format = config->object("format")) read_format(*format, task);
  }
  if (const auto format = fields.object("output_format")) read_format(*format, task);
  const Json* servers = fields.array("mcp_servers");
  if (servers != nullptr && !servers->empty()) fields.refuse("mcp_servers", "none: this server calls no others");
  request.stream = fields.flag("stream").value_or(false);
  request.marks_cache = marks_cache(fields);
  return request;
}

}  // namespace carat::server

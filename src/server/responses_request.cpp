#include "server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "server/generation_fields.h"
#include "server/random_id.h"
#include "server/request_fields.h"
#include "server/response_items.h"

namespace carat::server {
namespace {

/// `name`'s value, null when it is absent.
Json echo(const Fields& body, std::string_view name) {
  const Json* value = body.find(name);
  return value == nullptr ? Json(nullptr) : *value;
}

void refuse_what_is_missing(const Fields& body) {
  if (body.flag("background").value_or(false)) {
    body.refuse("background", "false: this server answers while the client waits");
  }
  if (body.has("conversation"))
    body.refuse("conversation", "previous_response_id instead: this server keeps responses");
  if (body.has("prompt")) body.refuse("prompt", "instructions and input instead: this server keeps no prompts");
}

/// The input items of the response that the client goes on from, and its output.
Json earlier_items(const Fields& body, ResponseStore& store) {
  const auto id = body.text("previous_response_id");
  if (!id) return Json::array();
  const auto previous = store.find(*id);
  if (!previous) {
    throw ApiFailure({.status = 404,
                      .message = fmt::format("previous_response_id: found {}, expected the id of a response that is "
                                             "still stored",
                                             describe(Json(*id))),
                      .code = "previous_response_not_found",
                      .param = "previous_response_id"});
  }
  Json items = Json::parse(previous->input);
  const Json response = Json::parse(previous->response);
  for (const Json& item : response["output"]) items.push_back(item);
  return items;
}

void read_conversation(const Fields& body, ResponseStore& store, ResponsesRequest& request) {
  request.items = earlier_items(body, store);
  const Json* input = body.find("input");
  if (input == nullptr && request.items.empty()) body.refuse("input", "a string or an array of items");
  if (input != nullptr) {
    for (Json& item : read_input_items(*input)) request.items.push_back(std::move(item));
  }
  request.task.messages = messages_of(request.items, body.text("instructions").value_or(""));
  if (request.task.messages.empty()) body.refuse("input", "at least one message");
}

/// Functions. OpenAI's own tools (web_search, …) run on OpenAI's servers: the model goes without.
Json read_tools(const Fields& body) {
  const Json* list = body.array("tools");
  Json tools = Json::array();
  if (list == nullptr) return tools;
  for (size_t i = 0; i < list->size(); ++i) {
    const Fields tool((*list)[i], fmt::format("tools[{}]", i));
    tool.require("type", "\"function\"");
    if (tool.text("type") != "function") continue;
    tool.require("name", "1 to 128 letters, digits, underscores and dashes");
    Json function = {{"name", *tool.text("name")}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (const auto parameters = tool.object("parameters")) function["parameters"] = parameters->json();
    if (const auto strict = tool.flag("strict")) function["strict"] = *strict;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  check_tools(tools);
  return tools;
}

/// The tools that are used, as the response tells them.
Json tell_tools(const Json& tools) {
  Json told = Json::array();
  for (const Json& tool : tools) {
    Json flat = {{"type", "function"}, {"description", nullptr}, {"parameters", nullptr}, {"strict", nullptr}};
    flat.update(tool["function"]);
    told.push_back(std::move(flat));
  }
  return told;
}

/// Leaves only the tools that `choice` lists.
void allow_tools(const Fields& choice, ChatTask& task) {
  const auto mode = choice.text("mode");
  if (mode != "auto" && mode != "required") choice.refuse("mode", "auto or required");
  task.tool_choice.kind = mode == "auto" ? ToolChoice::Kind::kAuto : ToolChoice::Kind::kRequired;
  choice.require("tools", "an array of tools");
  const Json& allowed = *choice.array("tools");
  for (size_t i = 0; i < allowed.size(); ++i) {
    const Fields tool(allowed[i], fmt::format("{}[{}]", choice.path("tools"), i));
    if (tool.text("type") != "function") tool.refuse("type", "function");
    tool.require("name", "the name of a tool");
    check_tool_choice({ToolChoice::Kind::kNamed, *tool.text("name")}, task.tools, tool.path("name"));
  }
  const auto left_out = [&](const Json& tool) {
    return std::none_of(allowed.begin(), allowed.end(),
                        [&](const Json& one) { return one["name"] == tool["function"]["name"]; });
  };
  task.tools.erase(std::remove_if(task.tools.begin(), task.tools.end(), left_out), task.tools.end());
}

void read_tool_choice(const Fields& body, ChatTask& task) {
  using Kind = ToolChoice::Kind;
  const Json* value = body.find("tool_choice");
  if (value == nullptr) return;
  if (value->is_string()) {
    if (*value == "auto") {
      task.tool_choice.kind = Kind::kAuto;
    } else if (*value == "none") {
      task.tool_choice.kind = Kind::kNone;
    } else if (*value == "required") {
      task.tool_choice.kind = Kind::kRequired;
    } else {
      body.refuse("tool_choice", "auto, none, required or an object");
    }
  } else {
    const Fields choice(*value, "tool_choice");
    const auto type = choice.text("type");
    if (type == "function") {
      choice.require("name", "the name of a tool");
      task.tool_choice = {Kind::kNamed, *choice.text("name")};
    } else if (type == "allowed_tools") {
      allow_tools(choice, task);
    } else {
      choice.refuse("type", "function or allowed_tools: this server has no tools of its own");
    }
  }
  check_tool_choice(task.tool_choice, task.tools);
}

/// Returns what the response tells of `text`.
Json read_text_format(const Fields& body, ChatTask& task) {
  using Kind = ResponseFormat::Kind;
  Json told = {{"format", {{"type", "text"}}}};
  const auto text = body.object("text");
  if (!text) return told;
  if (const auto verbosity = text->text("verbosity")) told["verbosity"] = *verbosity;
  const auto format = text->object("format");
  if (!format) return told;
  const auto type = format->text("type");
  if (type == "json_object") {
    task.response_format.kind = Kind::kJsonObject;
  } else if (type == "json_schema") {
    format->require("name", "a string");
    format->text("name");
    format->flag("strict");
    format->require("schema", "a JSON schema");
    task.response_format = {Kind::kJsonSchema, format->object("schema")->json()};
  } else if (type != "text") {
    format->refuse("type", "text, json_object or json_schema");
  }
  told["format"] = format->json();
  return told;
}

Json read_reasoning(const Fields& body, ChatTask& task) {
  Json told = {{"effort", nullptr}, {"summary", nullptr}};
  read_thinking(body, task);
  const auto reasoning = body.object("reasoning");
  if (!reasoning) return told;
  if (const auto thinking = read_effort(*reasoning, "effort")) task.thinking = thinking;
  told["effort"] = echo(*reasoning, "effort");
  const char* summary = reasoning->has("summary") ? "summary" : "generate_summary";
  const auto wanted = reasoning->text(summary);
  if (wanted && wanted != "auto" && wanted != "concise" && wanted != "detailed") {
    reasoning->refuse(summary, "auto, concise or detailed");
  }
  if (wanted) told["summary"] = *wanted;
  return told;
}

void read_logprobs(const Fields& body, ChatTask& task) {
  const Json* include = body.array("include");
  task.logprobs = include != nullptr &&
                  std::find(include->begin(), include->end(), "message.output_text.logprobs") != include->end();
  const auto top = static_cast<int>(body.integer("top_logprobs", 0, 20).value_or(0));
  if (task.logprobs) task.top_logprobs = top;
}

Json read_metadata(const Fields& body) {
  const auto metadata = body.object("metadata");
  if (!metadata) return Json::object();
  for (const auto& [key, value] : metadata->json().items()) {
    if (!value.is_string()) metadata->refuse(key, "a string");
  }
  return metadata->json();
}

void check_truncation(const Fields& body) {
  const auto truncation = body.text("truncation").value_or("disabled");
  if (truncation != "disabled" && truncation != "auto") body.refuse("truncation", "disabled or auto");
}

}  // namespace

ResponsesRequest read_responses_request(std::string_view body, ResponseStore& store) {
  const Json json = read_body(body);
  const Fields fields(json);
  ResponsesRequest request;
  ChatTask& task = request.task;
  refuse_what_is_missing(fields);
  read_model(fields, task);
  read_conversation(fields, store, request);
  task.tools = read_tools(fields);
  read_tool_choice(fields, task);
  task.parallel_tool_calls = fields.flag("parallel_tool_calls").value_or(true);
  task.max_tokens = read_limit(fields, fields.has("max_output_tokens") ? "max_output_tokens" : "max_tokens");
  read_sampling(fields, task);
  read_stop(fields, "stop", task);
  read_logprobs(fields, task);
  check_truncation(fields);
  request.stream = fields.flag("stream").value_or(false);
  request.store = fields.flag("store").value_or(true);

  Json& response = request.response;
  response["id"] = random_id("resp_", 32);
  response["object"] = "response";
  response["created_at"] = static_cast<int64_t>(std::time(nullptr));
  response["status"] = "in_progress";
  response["background"] = false;
  response["completed_at"] = nullptr;
  response["error"] = nullptr;
  response["incomplete_details"] = nullptr;
  response["instructions"] = echo(fields, "instructions");
  response["max_output_tokens"] = task.max_tokens ? Json(*task.max_tokens) : Json(nullptr);
  response["max_tool_calls"] = nullptr;
  response["model"] = task.model;
  response["output"] = Json::array();
  response["parallel_tool_calls"] = task.parallel_tool_calls;
  response["previous_response_id"] = echo(fields, "previous_response_id");
  response["reasoning"] = read_reasoning(fields, task);
  response["service_tier"] = "default";
  response["store"] = request.store;
  response["temperature"] = echo(fields, "temperature");
  response["text"] = read_text_format(fields, task);
  response["tool_choice"] = fields.has("tool_choice") ? echo(fields, "tool_choice") : Json("auto");
  response["tools"] = tell_tools(task.tools);
  response["top_logprobs"] = fields.integer("top_logprobs", 0, 20).value_or(0);
  response["top_p"] = echo(fields, "top_p");
  response["truncation"] = "disabled";
  response["usage"] = nullptr;
  for (const char* name : {"prompt_cache_key", "safety_identifier", "user"}) {
    const auto value = fields.text(name);
    response[name] = value ? Json(*value) : Json(nullptr);
  }
  response["metadata"] = read_metadata(fields);
  return request;
}

}  // namespace carat::server

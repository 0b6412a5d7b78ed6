#include "server/response_items.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "server/random_id.h"
#include "server/request_fields.h"

namespace carat::server {
namespace {

std::string required_text(const Fields& fields, std::string_view name, std::string_view expected) {
  fields.require(name, expected);
  return *fields.text(name);
}

/// A string, or parts that must all be text.
std::string read_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse(path, fmt::format("{}: found {}, expected a string or an array of parts", path, describe(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Fields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = required_text(part, "type", "the type of the part");
    if (type == "input_image" || type == "input_file" || type == "input_audio") {
      const std::string where = part.path("type");
      refuse(where,
             fmt::format("{}: found {}, expected text: this server reads no images, files or audio", where, type));
    }
    if (type == "refusal") {
      text += required_text(part, "refusal", "a string");
    } else if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" ||
               type == "reasoning_text") {
      text += required_text(part, "text", "a string");
    } else {
      part.refuse("type", "input_text or output_text");
    }
  }
  return text;
}

Json text_parts(const char* type, const std::string& text) {
  return Json::array({{{"type", type}, {"text", text}}});
}

std::string item_id(const Fields& item, std::string_view prefix) {
  const auto id = item.text("id");
  return id && !id->empty() ? *id : random_id(prefix);
}

Json read_message(const Fields& item) {
  const auto role = item.text("role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    item.refuse("role", "user, assistant, system or developer");
  }
  const std::string text = read_text(item.require("content", "a string or an array of parts"), item.path("content"));
  Json content = text_parts(role == "assistant" ? "output_text" : "input_text", text);
  if (role == "assistant") {
    content[0]["annotations"] = Json::array();
    content[0]["logprobs"] = Json::array();
  }
  return {{"id", item_id(item, "msg_")},
          {"type", "message"},
          {"status", "completed"},
          {"role", *role},
          {"content", std::move(content)}};
}

Json read_function_call(const Fields& item) {
  return {{"id", item_id(item, "fc_")},
          {"type", "function_call"},
          {"status", "completed"},
          {"call_id", required_text(item, "call_id", "a string")},
          {"name", required_text(item, "name", "a string")},
          {"arguments", required_text(item, "arguments", "a JSON object as a string")}};
}

Json read_function_output(const Fields& item) {
  const Json& output = item.require("output", "a string or an array of parts");
  return {{"id", item_id(item, "fco_")},
          {"type", "function_call_output"},
          {"status", "completed"},
          {"call_id", required_text(item, "call_id", "a string")},
          {"output", read_text(output, item.path("output"))}};
}

Json read_reasoning(const Fields& item) {
  Json out = {{"id", item_id(item, "rs_")}, {"type", "reasoning"}, {"status", "completed"}};
  const Json* summary = item.array("summary");
  const Json* content = item.array("content");
  const std::string summarised = summary ? read_text(*summary, item.path("summary")) : "";
  const std::string thought = content ? read_text(*content, item.path("content")) : "";
  out["summary"] = summarised.empty() ? Json::array() : text_parts("summary_text", summarised);
  if (!thought.empty()) out["content"] = text_parts("reasoning_text", thought);
  return out;
}

Json read_item(const Fields& item) {
  const auto type = item.text("type").value_or("message");
  if (type == "message") return read_message(item);
  if (type == "function_call") return read_function_call(item);
  if (type == "function_call_output") return read_function_output(item);
  if (type == "reasoning") return read_reasoning(item);
  if (type == "item_reference") {
    item.refuse("type",
                "the item itself: this server resolves no references (previous_response_id goes on from a "
                "stored response)");
  }
  item.refuse("type", "message, function_call, function_call_output or reasoning");
}

/// Builds the conversation item by item.
class Conversation {
 public:
  explicit Conversation(const std::string& instructions) : system_(instructions) {}

  void collect_outputs(const Json& items) {
    for (const Json& item : items) {
      if (item["type"] != "function_call_output") continue;
      const std::string id = item["call_id"];
      if (!outputs_.emplace(id, item["output"]).second) refuse_call("a second function_call_output", id, "one");
    }
  }

  void add(const Json& item) {
    const std::string& type = item["type"].get_ref<const std::string&>();
    if (type == "reasoning") {
      const Json& parts = item.contains("content") ? item["content"] : item["summary"];
      for (const Json& part : parts) thought_ += part["text"];
    } else if (type == "function_call") {
      add_call(item);
    } else if (type == "function_call_output") {
      const std::string& id = item["call_id"].get_ref<const std::string&>();
      if (!called_.contains(id)) refuse_call("a function_call_output", id, "a function_call of that call_id before it");
      finish_assistant();
    } else if (item["role"] == "assistant") {
      for (const Json& part : item["content"]) text_ += part["text"];
    } else {
      add_message(item["role"] == "user" ? "user" : "system", item["content"][0]["text"]);
    }
  }

  Json finish() {
    finish_assistant();
    finish_system();
    return std::move(messages_);
  }

 private:
  [[noreturn]] static void refuse_call(std::string_view found, const std::string& id, std::string_view expected) {
    refuse("input", fmt::format("input: found {} for call_id {}, expected {}", found, describe(Json(id)), expected));
  }

  void add_call(const Json& item) {
    const std::string id = item["call_id"];
    if (!called_.insert(id).second) refuse_call("a second function_call", id, "one");
    if (!outputs_.contains(id)) refuse_call("no function_call_output", id, "one for each function_call");
    calls_.push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
  }

  void add_message(const char* role, const std::string& text) {
    finish_assistant();
    if (messages_.empty() && role == std::string_view("system")) {
      if (!system_.empty() && !text.empty()) system_ += "\n\n";
      system_ += text;
      return;
    }
    finish_system();
    messages_.push_back({{"role", role}, {"content", text}});
  }

  void finish_system() {
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", std::exchange(system_, {})}});
  }

  void finish_assistant() {
    // A thought that led to nothing (it was cut off) is no turn.
    if (text_.empty() && calls_.empty()) {
      thought_.clear();
      return;
    }
    finish_system();
    Json message = {{"role", "assistant"}, {"content", std::exchange(text_, {})}};
    if (!thought_.empty()) message["reasoning_content"] = std::exchange(thought_, {});
    const Json calls = std::exchange(calls_, Json::array());
    if (!calls.empty()) message["tool_calls"] = calls;
    messages_.push_back(std::move(message));
    for (const Json& call : calls) {
      const std::string id = call["id"];
      messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", outputs_.at(id)}});
    }
  }

  Json messages_ = Json::array();
  std::string system_;  // until the first other message
  std::map<std::string, std::string> outputs_;
  std::set<std::string> called_;
  // The assistant's message so far:
  std::string thought_;
  std::string text_;
  Json calls_ = Json::array();
};

}  // namespace

Json read_input_items(const Json& input) {
  if (input.is_string()) {
    const Json message = {{"role", "user"}, {"content", input}};
    return Json::array({read_message(Fields(message, "input"))});
  }
  if (!input.is_array()) {
    refuse("input", fmt::format("input: found {}, expected a string or an array of items", describe(input)));
  }
  Json items = Json::array();
  for (size_t i = 0; i < input.size(); ++i) items.push_back(read_item(Fields(input[i], fmt::format("input[{}]", i))));
  return items;
}

Json messages_of(const Json& items, const std::string& instructions) {
  Conversation conversation(instructions);
  conversation.collect_outputs(items);
  for (const Json& item : items) conversation.add(item);
  return conversation.finish();
}

}  // namespace carat::server

#include "server/anthropic_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carat::server {
namespace {

struct ToolResult {
  std::string id;
  std::string text;
  std::string path;
};

/// Consecutive messages of one role.
struct Turn {
  std::string role;
  std::string path;
  std::string text;
  std::string thinking;
  Json calls = Json::array();
  std::vector<ToolResult> results;
};

void append_line(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += '\n';
  text += more;
}

std::string required_text(const Fields& fields, std::string_view name, std::string_view expected) {
  fields.require(name, expected);
  return *fields.text(name);
}

[[noreturn]] void refuse_block(const Fields& block, const std::string& type) {
  const std::string path = block.path("type");
  if (type == "image" || type == "document" || type == "container_upload") {
    refuse(path, fmt::format("{}: found a block of type {}, expected text: this server reads no images or files", path,
                             type));
  }
  block.refuse("type", "a text, thinking, tool_use or tool_result block in a turn that may have it");
}

/// A string, or blocks that must all be text.
std::string read_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse(path, fmt::format("{}: found {}, expected a string or an array of blocks", path, describe(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Fields block(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = required_text(block, "type", "\"text\"");
    if (type != "text") refuse_block(block, type);
    append_line(text, required_text(block, "text", "a string"));
  }
  return text;
}

ToolResult read_tool_result(const Fields& block) {
  ToolResult result{.id = required_text(block, "tool_use_id", "the id of a tool_use block"),
                    .text = {},
                    .path = block.path("tool_use_id")};
  if (const Json* content = block.find("content")) result.text = read_text(*content, block.path("content"));
  // Templates know no other way to tell a model that its call failed.
  if (block.flag("is_error").value_or(false)) {
    result.text = result.text.empty() ? "Error" : "Error: " + result.text;
  }
  return result;
}

Json read_tool_use(const Fields& block) {
  const std::string id = required_text(block, "id", "a string");
  const std::string name = required_text(block, "name", "a string");
  block.require("input", "an object");
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", block.object("input")->json()}}}};
}

void read_block(const Fields& block, Turn& turn) {
  const std::string type = required_text(block, "type", "the type of the block");
  const bool assistant = turn.role == "assistant";
  if (type == "text") {
    append_line(turn.text, required_text(block, "text", "a string"));
  } else if (type == "thinking" && assistant) {
    append_line(turn.thinking, required_text(block, "thinking", "a string"));
  } else if (type == "tool_use" && assistant) {
    turn.calls.push_back(read_tool_use(block));
  } else if (type == "tool_result" && turn.role == "user") {
    turn.results.push_back(read_tool_result(block));
  } else if (type != "redacted_thinking" || !assistant) {
    refuse_block(block, type);
  }
}

void read_message(const Fields& message, std::vector<Turn>& turns) {
  const auto role = message.text("role");
  if (role != "user" && role != "assistant" && role != "system") message.refuse("role", "user, assistant or system");
  const Json& content = message.require("content", "a string or an array of blocks");
  if (turns.empty() || turns.back().role != *role) {
    turns.emplace_back();
    turns.back().role = *role;
    turns.back().path = message.path("content");
  }
  Turn& turn = turns.back();
  if (content.is_string()) {
    append_line(turn.text, content.get_ref<const std::string&>());
    return;
  }
  if (!content.is_array()) message.refuse("content", "a string or an array of blocks");
  for (size_t i = 0; i < content.size(); ++i) {
    read_block(Fields(content[i], fmt::format("{}[{}]", message.path("content"), i)), turn);
  }
}

bool answers(const ToolResult& result, const Json& calls) {
  return std::any_of(calls.begin(), calls.end(), [&](const Json& call) { return call["id"] == result.id; });
}

/// A result that answers nothing would vanish from the prompt, a call without a result leave the model waiting.
void check_answers(const Turn* before, const Turn& turn) {
  static const Json kNone = Json::array();
  const Json& calls = before != nullptr ? before->calls : kNone;
  for (size_t i = 0; i < turn.results.size(); ++i) {
    const ToolResult& result = turn.results[i];
    if (!answers(result, calls)) {
      refuse(result.path, fmt::format("{}: found {}, expected the id of a tool_use block of the turn before",
                                      result.path, describe(Json(result.id))));
    }
    const auto same = [&](const ToolResult& other) { return other.id == result.id; };
    const auto earlier = turn.results.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(turn.results.begin(), earlier, same)) {
      refuse(result.path, fmt::format("{}: found {} a second time, expected one result for each tool_use block",
                                      result.path, describe(Json(result.id))));
    }
  }
  for (const Json& call : calls) {
    const auto same = [&](const ToolResult& result) { return call["id"] == result.id; };
    if (std::none_of(turn.results.begin(), turn.results.end(), same)) {
      refuse(turn.path, fmt::format("{}: found no tool_result for the tool_use block {} of the turn before, expected "
                                    "one for each",
                                    turn.path, describe(call["id"])));
    }
  }
}

void append_messages(const Turn& turn, Json& messages) {
  if (turn.role == "assistant") {
    Json message = {{"role", "assistant"}, {"content", turn.text}};
    if (!turn.thinking.empty()) message["reasoning_content"] = turn.thinking;
    if (!turn.calls.empty()) message["tool_calls"] = turn.calls;
    messages.push_back(std::move(message));
    return;
  }
  for (const ToolResult& result : turn.results) {
    messages.push_back({{"role", "tool"}, {"tool_call_id", result.id}, {"content", result.text}});
  }
  if (!turn.text.empty()) {
    messages.push_back({{"role", turn.role}, {"content", turn.text}});
  } else if (turn.results.empty()) {
    refuse(turn.path,
           fmt::format("{}: found no text, expected a turn of the {} to say something", turn.path, turn.role));
  }
}

}  // namespace

Json read_anthropic_turns(const Fields& body) {
  body.require("messages", "an array of messages");
  const Json& list = *body.array("messages");
  if (list.empty()) body.refuse("messages", "at least one message");
  std::vector<Turn> turns;
  for (size_t i = 0; i < list.size(); ++i) read_message(Fields(list[i], fmt::format("messages[{}]", i)), turns);
  if (turns.back().role == "assistant") {
    refuse("messages",
           "messages: found the assistant's turn last, expected the user's: a reply that has begun cannot be continued "
           "(prefill)");
  }

  Json messages = Json::array();
  std::string system;
  if (const Json* value = body.find("system")) system = read_text(*value, "system");
  size_t first = 0;
  if (turns.front().role == "system") {
    append_line(system, turns.front().text);
    first = 1;
  }
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  for (size_t i = first; i < turns.size(); ++i) {
    check_answers(i > first ? &turns[i - 1] : nullptr, turns[i]);
    append_messages(turns[i], messages);
  }
  if (first == turns.size()) body.refuse("messages", "a message of the user");
  return messages;
}

}  // namespace carat::server

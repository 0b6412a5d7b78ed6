#include "chat/gemma3_tools.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/conversation.h"
#include "chat/jinja_text.h"

namespace carat {
namespace {

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// A list of calls as the model should write them.
std::string call_block(const std::vector<ToolCall>& calls) {
  const auto one = [](const ToolCall& call) {
    return fmt::format("{{\"name\": {}, \"arguments\": {}}}", to_text(call.name), to_text(call.arguments));
  };
  std::string body = one(calls.front());
  if (calls.size() > 1) {
    body.insert(body.begin(), '[');
    for (size_t i = 1; i < calls.size(); ++i) body += ",\n" + one(calls[i]);
    body += "]";
  }
  return "```json\n" + body + "\n```";
}

std::string result_block(const ToolResponse& response) {
  Json result = response.response;
  if (result.is_string()) {  // JSON in a string is shown as what it is
    Json parsed = Json::parse(result.get_ref<const std::string&>(), nullptr, false);
    if (parsed.is_structured()) result = std::move(parsed);
  }
  return fmt::format("```tool_output\n{{\"name\": {}, \"result\": {}}}\n```", to_text(response.name), to_text(result));
}

bool holds_text(const Json& part) {
  const Json* text = jinja::at(part, "text");
  return text != nullptr && text->is_string();
}

/// `text` in front of a message's content. The template joins parts without anything between them.
void put_before(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (!content.is_array()) {
    const std::string behind = content.is_string() ? content.get<std::string>() : "";
    content = behind.empty() ? text : text + "\n\n" + behind;
  } else if (!content.empty() && holds_text(content.front())) {
    content.front()["text"] = text + "\n\n" + content.front()["text"].get<std::string>();
  } else {
    content.insert(content.begin(), Json{{"type", "text"}, {"text", text}});
  }
}

/// `text` behind a message's content.
void put_behind(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (!content.is_array()) {
    const std::string before = content.is_string() ? content.get<std::string>() : "";
    content = before.empty() ? text : before + "\n\n" + text;
  } else if (!content.empty() && holds_text(content.back())) {
    content.back()["text"] = content.back()["text"].get<std::string>() + "\n\n" + text;
  } else {
    content.push_back(Json{{"type", "text"}, {"text", text}});
  }
}

Json plain_message(const Json& message, const char* role) {
  Json out = {{"role", role}};
  const Json* content = jinja::at(message, "content");
  out["content"] = content == nullptr || content->is_null() ? Json("") : *content;
  return out;
}

}  // namespace

std::string gemma3_tool_instructions(const Json& tools) {
  if (!tools.is_array() || tools.empty()) return {};
  std::string declarations;
  for (const Json& tool : tools) {
    const Json* function = jinja::at(tool, "function");
    const Json* name = function == nullptr ? nullptr : jinja::at(*function, "name");
    if (name == nullptr || !name->is_string()) {
      fail("tools: every tool must be an object with a function that has a name");
    }
    Json declaration = {{"name", *name}};
    for (const char* key : {"description", "parameters"}) {
      const Json* value = jinja::at(*function, key);
      if (value != nullptr && !value->is_null()) declaration[key] = *value;
    }
    declarations += "\n" + to_text(declaration);
  }
  return "You can call functions. To call one, reply with a fenced block of JSON and nothing behind it:\n"
         "```json\n{\"name\": \"function name\", \"arguments\": {\"parameter name\": \"value\"}}\n```\n"
         "To call several at once, put a list of such objects into the block. The arguments must fit the function's "
         "JSON schema. The results come back in blocks marked tool_output; use them to go on. Answer in plain text "
         "when "
         "no function is needed.\n\nThe functions, one a line:" +
         declarations;
}

Json gemma3_messages(const Json& messages, const Json& tools) {
  const std::vector<Message> conversation = read_conversation(messages);
  const std::string instructions = gemma3_tool_instructions(tools);
  Json out = Json::array();
  std::string results;  // not in a turn yet
  const auto add = [&](Json message) {
    if (!results.empty()) {
      if (message["role"] != "user") out.push_back({{"role", "user"}, {"content", results}});
      if (message["role"] == "user") put_before(message, results);
      results.clear();
    }
    out.push_back(std::move(message));
  };
  for (size_t i = 0; i < conversation.size(); ++i) {
    const Message& message = conversation[i];
    if (message.role == "tool") {
      if (message.answered) continue;  // among the results of the message that called
      const Json* name = jinja::at(messages[i], "name");
      const Json* content = jinja::at(messages[i], "content");
      const std::string block =
          result_block({name != nullptr && name->is_string() ? name->get<std::string>() : "unknown",
                        content == nullptr ? Json() : *content});
      results += (results.empty() ? "" : "\n") + block;
      continue;
    }
    const bool system = i == 0 && (message.role == "system" || message.role == "developer");
    const bool assistant = message.role == "assistant" || message.role == "model";
    Json plain = plain_message(messages[i], assistant ? "assistant" : system ? "system" : message.role.c_str());
    if (system) plain["content"] = message.content.text;
    if (!message.tool_calls.empty()) put_behind(plain, call_block(message.tool_calls));
    add(std::move(plain));
    for (const ToolResponse& response : message.tool_responses) {
      results += (results.empty() ? "" : "\n") + result_block(response);
    }
  }
  if (!results.empty()) out.push_back({{"role", "user"}, {"content", results}});
  if (instructions.empty()) return out;
  if (!out.empty() && out[0]["role"] == "system") {
    put_behind(out[0], instructions);
  } else {
    const Json system = {{"role", "system"}, {"content", instructions}};
    out.insert(out.begin(), system);
  }
  return out;
}

}  // namespace carat

#include "chat/conversation.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "chat/jinja_text.h"
#include "chat/unicode.h"

namespace carat {
namespace {

constexpr int kMaxDepth = 256;

bool deeper_than(const Json& value, int limit) {
  if (!value.is_structured()) return false;
  if (limit == 0) return true;
  for (const Json& item : value) {
    if (deeper_than(item, limit - 1)) return true;
  }
  return false;
}

const Json* known(const Json& object, std::string_view key) {
  const Json* value = jinja::at(object, key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

ContentPart read_part(const Json& part, const std::string& where) {
  using Kind = ContentPart::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 12> kTypes = {{
      {"text", Kind::kText},
      {"input_text", Kind::kText},
      {"output_text", Kind::kText},
      {"image", Kind::kImage},
      {"image_url", Kind::kImage},
      {"input_image", Kind::kImage},
      {"audio", Kind::kAudio},
      {"audio_url", Kind::kAudio},
      {"input_audio", Kind::kAudio},
      {"video", Kind::kVideo},
      {"video_url", Kind::kVideo},
      {"input_video", Kind::kVideo},
  }};
  const Json* type = known(part, "type");
  if (type == nullptr || !type->is_string()) fail("{}: a content part must be an object with a type", where);
  for (const auto& [name, kind] : kTypes) {
    if (type->get_ref<const std::string&>() != name) continue;
    if (kind != Kind::kText) return {kind, {}};
    const Json* text = known(part, "text");
    if (text == nullptr || !text->is_string()) fail("{}: a {} part must have a string `text`", where, name);
    return {kind, text->get<std::string>()};
  }
  fail("{}: content part of type '{}' is not known; text, image, audio and video are", where, type->get<std::string>());
}

Content read_content(const Json& message, const std::string& where) {
  const Json* value = jinja::at(message, "content");
  Content content;
  if (value == nullptr) return content;
  if (value->is_null()) {
    content.kind = Content::Kind::kNull;
  } else if (value->is_string()) {
    content.kind = Content::Kind::kText;
    content.text = value->get<std::string>();
  } else if (value->is_array()) {
    content.kind = Content::Kind::kParts;
    for (const Json& part : *value) content.parts.push_back(read_part(part, where));
  } else {
    fail("{}: content is a JSON {}; it must be a string, null or an array of parts", where, value->type_name());
  }
  return content;
}

std::string joined_text(const Content& content, const std::string& where) {
  std::string text = content.text;
  for (const ContentPart& part : content.parts) {
    if (part.kind != ContentPart::Kind::kText) fail("{}: a system message can only hold text", where);
    text += part.text;
  }
  return text;
}

std::string read_reasoning(const Json& message, const std::string& where) {
  for (const char* key : {"reasoning", "reasoning_content"}) {
    const Json* value = jinja::at(message, key);
    if (!jinja::truthy(value)) continue;
    if (!value->is_string()) fail("{}: `{}` must be a string", where, key);
    return value->get<std::string>();
  }
  return {};
}

const Json& array_of(const Json& message, const char* key, const std::string& where) {
  static const Json kNone = Json::array();
  const Json* value = jinja::at(message, key);
  if (!jinja::truthy(value)) return kNone;
  if (!value->is_array()) fail("{}: `{}` must be an array", where, key);
  return *value;
}

Json read_arguments(const Json* value, const std::string& where) {
  Json arguments = value == nullptr ? Json(nullptr) : *value;
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    try {
      arguments = unicode::strip(text).empty() ? Json(nullptr) : Json::parse(text);
    } catch (const Json::parse_error& error) {
      fail("{}: its arguments are a string that is not valid JSON (at byte {} of {})", where, error.byte, text.size());
    } catch (const Json::out_of_range&) {
      fail("{}: its arguments hold a number that is out of range", where);
    }
    check_depth(arguments, "tool call arguments");
  }
  if (arguments.is_null()) return Json::object();
  if (!arguments.is_object()) {
    fail("{}: its arguments are a JSON {}; they must be an object", where, arguments.type_name());
  }
  return arguments;
}

ToolCall read_tool_call(const Json& call, const std::string& where) {
  const Json* function = known(call, "function");
  const Json* name = function == nullptr ? nullptr : known(*function, "name");
  if (name == nullptr || !name->is_string()) fail("{}: a tool call must have a function with a name", where);
  ToolCall out;
  if (const Json* id = known(call, "id")) out.id = *id;
  out.name = name->get<std::string>();
  out.arguments = read_arguments(jinja::at(*function, "arguments"), fmt::format("{}, tool call '{}'", where, out.name));
  return out;
}

std::string response_name(const Json& object) {
  const Json* name = known(object, "name");
  return name != nullptr && name->is_string() ? name->get<std::string>() : "unknown";
}

ToolResponse read_tool_response(const Json& response, const std::string& where) {
  if (!response.is_object()) fail("{}: a tool response must be an object", where);
  const Json* value = jinja::at(response, "response");
  // Undefined counts as a sequence in Jinja: the template prints a missing response as an empty list.
  return {response_name(response), value == nullptr ? Json::array() : *value};
}

/// A list of OpenAI content parts, unlike a list that is itself the result.
bool holds_parts(const Json& content) {
  if (!content.is_array()) return false;
  for (const Json& part : content) {
    const Json* type = jinja::at(part, "type");
    if (type == nullptr || !type->is_string()) return false;
  }
  return true;
}

Json read_result(const Json& message, const std::string& where) {
  const Json* content = known(message, "content");
  if (content == nullptr) return nullptr;
  if (!holds_parts(*content)) return *content;
  std::string text;
  for (const Json& part : *content) {
    text += read_part(part, where).text;
  }
  return text;
}

std::string place(size_t index, const std::string& role) {
  return fmt::format("message {} ({})", index, role);
}

/// Moves the results in the tool messages behind `caller` to it.
void answer(std::vector<Message>& conversation, size_t caller, const Json& messages) {
  Message& message = conversation[caller];
  for (size_t i = caller + 1; i < conversation.size() && conversation[i].role == "tool"; ++i) {
    const Json* id = known(messages[i], "tool_call_id");
    std::string name = response_name(messages[i]);
    for (const ToolCall& call : message.tool_calls) {
      // As in the template, a call and a result that both lack an id belong together; the last match counts.
      if (id == nullptr ? call.id.is_null() : call.id == *id) name = call.name;
    }
    message.tool_responses.push_back({std::move(name), read_result(messages[i], place(i, "tool"))});
    conversation[i].answered = true;
  }
}

Message read_message(const Json& value, size_t index) {
  const Json* role = known(value, "role");
  if (role == nullptr || !role->is_string()) fail("message {}: it must be an object with a string `role`", index);
  Message message;
  message.role = role->get<std::string>();
  const std::string where = place(index, message.role);
  const Json* content = jinja::at(value, "content");
  // What a tool returned may be any value; read_result takes it as it is.
  const bool is_value = message.role == "tool" && content != nullptr && !content->is_null() && !content->is_string() &&
                        !holds_parts(*content);
  if (!is_value) message.content = read_content(value, where);
  if (index == 0 && (message.role == "system" || message.role == "developer")) {
    message.content = {Content::Kind::kText, joined_text(message.content, where), {}};
  }
  message.reasoning = read_reasoning(value, where);
  for (const Json& call : array_of(value, "tool_calls", where)) {
    message.tool_calls.push_back(read_tool_call(call, where));
  }
  for (const Json& response : array_of(value, "tool_responses", where)) {
    message.tool_responses.push_back(read_tool_response(response, where));
  }
  return message;
}

}  // namespace

void check_depth(const Json& value, const char* what) {
  if (deeper_than(value, kMaxDepth)) fail("{}: nested deeper than {} levels", what, kMaxDepth);
}

std::vector<Message> read_conversation(const Json& messages) {
  if (!messages.is_array()) fail("messages: found a JSON {}, expected an array", messages.type_name());
  if (messages.empty()) fail("messages: the array is empty, expected at least one message");
  check_depth(messages, "messages");
  std::vector<Message> conversation;
  conversation.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) conversation.push_back(read_message(messages[i], i));
  for (size_t i = 0; i < conversation.size(); ++i) {
    const Message& message = conversation[i];
    if (message.role != "tool" && !message.tool_calls.empty() && message.tool_responses.empty()) {
      answer(conversation, i, messages);
    }
  }
  return conversation;
}

}  // namespace carat

// A conversation in OpenAI's shape, checked and brought to the words that the templates know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/chat.h"

namespace carat {

struct ContentPart {
  enum class Kind : uint8_t { kText, kImage, kAudio, kVideo };
  Kind kind = Kind::kText;
  std::string text;  // of kText
};

/// Absent and null differ in one place: Gemma 3's template refuses null.
struct Content {
  enum class Kind : uint8_t { kAbsent, kNull, kText, kParts };
  Kind kind = Kind::kAbsent;
  std::string text;                // of kText
  std::vector<ContentPart> parts;  // of kParts

  bool empty() const { return text.empty() && parts.empty(); }
};

struct ToolCall {
  Json id;  // null when the call has none
  std::string name;
  Json arguments;  // an object
};

struct ToolResponse {
  std::string name;
  Json response;
};

struct Message {
  std::string role;
  Content content;
  std::string reasoning;  // of `reasoning`, else `reasoning_content`
  std::vector<ToolCall> tool_calls;
  std::vector<ToolResponse> tool_responses;  // its own, else those of the tool messages that follow its calls
  bool answered = false;                     // a tool message whose result is among the tool_responses before it
};

/// `messages`, checked: every message an object with a role, parts with known types, tool calls with a name and with
/// arguments that are an object or its JSON text (nothing, "" and null count as no arguments). What it brings in line:
/// - the part types of OpenAI's dialects (image_url, input_text, ...) become text, image, audio and video;
/// - a first system or developer message given as text parts becomes their concatenation, null becomes "";
/// - results in tool messages move to the message that called (tool_responses); they take the name of the call with the
///   same id, else their own `name`, else "unknown"; text parts are joined, other parts dropped (the templates do so).
/// Throws Error naming the message otherwise, and for values nested deeper than 256.
std::vector<Message> read_conversation(const Json& messages);

/// Throws Error when `value` is nested deeper than 256: what follows may recurse and copy.
void check_depth(const Json& value, const char* what);

}  // namespace carat

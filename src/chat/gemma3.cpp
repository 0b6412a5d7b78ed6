#include <string>
#include <vector>

#include "base/error.h"
#include "chat/formats.h"
#include "chat/unicode.h"

namespace carat {
namespace {

void append_content(std::string& out, const Message& message) {
  using Kind = ContentPart::Kind;
  if (message.content.kind == Content::Kind::kNull) {
    fail("a {} message without content: Gemma 3 takes a string or parts, and no tool calls", message.role);
  }
  out += unicode::strip(message.content.text);
  for (const ContentPart& part : message.content.parts) {
    switch (part.kind) {
      case Kind::kText:
        out += unicode::strip(part.text);
        break;
      case Kind::kImage:
        out += "<start_of_image>";
        break;
      case Kind::kAudio:
      case Kind::kVideo:
        fail("a {} message holds audio or video: Gemma 3 takes text and images", message.role);
    }
  }
}

}  // namespace

std::string render_gemma3(const std::vector<Message>& conversation, const ChatOptions& options) {
  std::string out = "<bos>";
  const std::string& opener = conversation.front().role;
  const bool has_system = opener == "system" || opener == "developer";
  const size_t first = has_system ? 1 : 0;
  for (size_t i = first; i < conversation.size(); ++i) {
    const Message& message = conversation[i];
    if ((message.role == "user") != ((i - first) % 2 == 0)) {
      fail("message {} ({}): Gemma 3 takes turns of user and assistant in alternation, after one system message", i,
           message.role);
    }
    out += "<start_of_turn>" + (message.role == "assistant" ? "model" : message.role) + "\n";
    if (has_system && i == first) out += conversation.front().content.text + "\n\n";
    append_content(out, message);
    out += "<end_of_turn>\n";
  }
  if (options.add_generation_prompt) out += "<start_of_turn>model\n";
  return out;
}

}  // namespace carat

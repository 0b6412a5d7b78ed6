// The two Gemma 4 templates are one but for the order of fields in tool schemas (tool_schema.h) and five rules about
// turns, marked below with "interleaved".
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/call_syntax.h"
#include "chat/formats.h"
#include "chat/jinja_text.h"
#include "chat/tool_schema.h"
#include "chat/unicode.h"

namespace carat {
namespace {

constexpr std::string_view kEmptyThought = "<|channel>thought\n<channel|>";

/// `text` without its thoughts: what stands between <|channel> and the next <channel|>, or the end.
std::string strip_thinking(std::string_view text) {
  constexpr std::string_view kOpen = "<|channel>";
  constexpr std::string_view kClose = "<channel|>";
  std::string kept;
  for (;;) {
    const size_t close = text.find(kClose);
    const std::string_view part = text.substr(0, close);
    kept += part.substr(0, part.find(kOpen));
    if (close == text.npos) break;
    text.remove_prefix(close + kClose.size());
  }
  return std::string(unicode::strip(kept));
}

class Renderer {
 public:
  Renderer(bool interleaved, const std::vector<Message>& conversation, const ChatOptions& options)
      : interleaved_(interleaved), conversation_(conversation), options_(options) {}

  std::string render(const Json& tools) {
    const std::string& opener = conversation_.front().role;
    const bool has_system = opener == "system" || opener == "developer";
    if (has_system || thinking() || !tools.empty()) system_turn(has_system, tools);

    const size_t first = has_system ? 1 : 0;
    for (size_t i = first; i < conversation_.size(); ++i) {
      if (conversation_[i].role == "user") last_user_ = i;
    }
    for (size_t i = first; i < conversation_.size(); ++i) {
      // Results are written by the message that called. Others vanish, but have a turn of their own when interleaved.
      const Message& message = conversation_[i];
      if (message.answered || (message.role == "tool" && !interleaved_)) continue;
      turn(message, i);
    }
    if (options_.add_generation_prompt) generation_prompt();
    return std::move(out_);
  }

 private:
  /// What the turn so far ended with, as far as it decides how things go on.
  enum class Last : uint8_t { kOther, kToolCall, kToolResponse };

  bool thinking() const { return options_.enable_thinking.value_or(false); }

  void system_turn(bool has_system, const Json& tools) {
    out_ += "<|turn>system\n";
    if (thinking()) out_ += "<|think|>\n";
    if (has_system) out_ += unicode::strip(conversation_.front().content.text);
    for (const Json& tool : tools) out_ += "<|tool>" + declare_tool(tool, interleaved_) + "<tool|>";
    out_ += "<turn|>\n";
  }

  void turn(const Message& message, size_t index) {
    const std::string& role = message.role == "assistant" ? kModel : message.role;
    // interleaved: only a further call after results goes on with the turn.
    const bool continues = interleaved_ ? last_ == Last::kToolResponse && !message.tool_calls.empty()
                                        : role == kModel && previous_role_ == "assistant";
    if (!continues) out_ += "<|turn>" + role + "\n";
    previous_role_ = message.role;
    last_ = Last::kOther;

    if (!message.tool_calls.empty()) {
      const bool after_user = !last_user_ || index > *last_user_;
      if (after_user && !message.reasoning.empty()) thought(message.reasoning);
      for (const ToolCall& call : message.tool_calls) {
        out_ += "<|tool_call>call:" + call.name + "{" + write_entries(call.arguments) + "}<tool_call|>";
      }
      last_ = Last::kToolCall;
    }
    for (const ToolResponse& response : message.tool_responses) {
      tool_response(response);
      last_ = Last::kToolResponse;
    }
    content(message.content, role == kModel);

    const bool responded = !message.tool_responses.empty();
    if (!interleaved_ && last_ == Last::kToolCall && !responded) {
      out_ += "<|tool_response>";  // interleaved: the turn is closed instead
    } else if (!responded || !message.content.empty()) {
      out_ += "<turn|>\n";
    }
  }

  void thought(const std::string& text) {
    // interleaved: the thought brings its own last newline.
    out_ += "<|channel>thought\n" + text + (interleaved_ ? "<channel|>" : "\n<channel|>");
  }

  void tool_response(const ToolResponse& response) {
    const Json& value = response.response;
    out_ += "<|tool_response>response:" + response.name + "{";
    out_ += value.is_object() ? write_entries(value) : "value:" + write_value(value, false);
    out_ += "}<tool_response|>";
  }

  void text(std::string_view text, bool by_model) {
    if (by_model) {
      out_ += strip_thinking(text);
    } else {
      out_ += unicode::strip(text);
    }
  }

  void content(const Content& content, bool by_model) {
    using Kind = ContentPart::Kind;
    text(content.text, by_model);
    for (const ContentPart& part : content.parts) {
      if (part.kind == Kind::kText) {
        text(part.text, by_model);
        continue;
      }
      out_ += part.kind == Kind::kImage ? "<|image|>" : part.kind == Kind::kAudio ? "<|audio|>" : "<|video|>";
      last_ = Last::kOther;
    }
  }

  void generation_prompt() {
    // interleaved: a new turn also after calls that nobody answered, and the empty thought in any case.
    const bool goes_on = last_ == Last::kToolResponse || (last_ == Last::kToolCall && !interleaved_);
    if (!goes_on) out_ += "<|turn>model\n";
    if (!thinking() && (!goes_on || interleaved_)) out_ += kEmptyThought;
  }

  inline static const std::string kModel = "model";

  bool interleaved_;
  const std::vector<Message>& conversation_;
  const ChatOptions& options_;
  std::string out_ = "<bos>";
  std::string_view previous_role_;
  std::optional<size_t> last_user_;
  Last last_ = Last::kOther;
};

}  // namespace

std::string render_gemma4(bool interleaved, const std::vector<Message>& conversation, const Json& tools,
                          const ChatOptions& options) {
  if (!tools.is_null() && !tools.is_array()) fail("tools: found a JSON {}, expected an array", tools.type_name());
  check_depth(tools, "tools");
  return Renderer(interleaved, conversation, options).render(tools);
}

}  // namespace carat

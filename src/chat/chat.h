// Conversations to prompt text: the turn formats of Gemma 3 and Gemma 4, written natively and equal byte for byte to
// the Jinja templates that the models ship.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace carat {

/// Keys keep the order in which they arrived; the renderers sort where the templates sort.
using Json = nlohmann::ordered_json;

enum class ChatFormat : uint8_t {
  kGemma3,
  kGemma4,             // the template shipped with the current Gemma 4 checkpoints
  kGemma4Interleaved,  // the variant that keeps thoughts interleaved with tool calls
};

struct ChatOptions {
  std::optional<bool> enable_thinking = {};  // nullopt: the template's own default (off)
  bool add_generation_prompt = true;
  std::optional<bool> preserve_thinking = {};  // where the template knows it: none of the three formats does
};

/// The format of a checkpoint that ships `template_text` (empty when it ships none). `gemma4` tells the family, which
/// decides first: neither vocabulary knows the other's turn markers. A Gemma 4 template that is not the interleaved
/// one, such as the faulty early ones in older files, stands for kGemma4.
ChatFormat detect_chat_format(std::string_view template_text, bool gemma4);

/// The prompt for `messages` (OpenAI shape: role, content as string, null or parts; tool_calls; tool_call_id; name;
/// reasoning / reasoning_content) with `tools` (OpenAI function tools; null or empty for none). Tool-call arguments
/// given as JSON strings are parsed first. The text starts with "<bos>"; encode it with Specials::kParse and add no
/// BOS.
///
/// What the template renders is rendered alike, from messages that are first brought to its words:
/// - names of content parts, results in tool messages and system messages given as parts: see read_conversation;
/// - `reasoning` and `reasoning_content` are one, also where the template knows one of them;
/// - Gemma 3: a first developer message is a system message. Tools and tool calls leave no trace in its prompts;
/// - schemas at which the template would raise: see declare_tool.
/// Throws Error for roles, parts or orders that the template refuses, and for parts of types that nobody knows.
/// Safe to call from many threads.
std::string render_chat(ChatFormat format, const Json& messages, const Json& tools = nullptr,
                        const ChatOptions& options = {});

}  // namespace carat

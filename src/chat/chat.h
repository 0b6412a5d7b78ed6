// Conversations to prompt text: the turn formats of Gemma 3 and Gemma 4, written natively and equal byte for byte to the
// Jinja templates that the models ship.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace carat {

/// Keys keep the order in which they arrived; the renderers sort where the templates sort.
using Json = nlohmann::ordered_json;

enum class ChatFormat : uint8_t {
  kGemma3,
  kGemma4,             // the template shipped with the current Gemma 4 checkpoints
  kGemma4Interleaved,  // the variant that keeps thoughts interleaved with tool calls
};

struct ChatOptions {
  std::optional<bool> enable_thinking;  // nullopt: the template's own default (off)
  bool add_generation_prompt = true;
  std::optional<bool> preserve_thinking;  // where the template knows it
};

/// The prompt for `messages` (OpenAI shape: role, content as string, null or parts; tool_calls; tool_call_id; name;
/// reasoning / reasoning_content) with `tools` (OpenAI function tools; null or empty for none). Tool-call arguments given
/// as JSON strings are parsed first. The text starts with "<bos>"; encode it with Specials::kParse and add no BOS.
/// Throws Error for roles, parts or orders that the template refuses.
std::string render_chat(ChatFormat format, const Json& messages, const Json& tools = nullptr,
                        const ChatOptions& options = {});

}  // namespace carat

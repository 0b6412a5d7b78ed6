#include "chat/chat.h"

#include "chat/formats.h"

namespace carat {

ChatFormat detect_chat_format(std::string_view template_text, bool gemma4) {
  if (!gemma4) return ChatFormat::kGemma3;
  const auto mentions = [&](std::string_view word) { return template_text.find(word) != template_text.npos; };
  // Both of the newer templates look for the last user message; only the current one pairs results with calls by id.
  return mentions("last_user_message") && !mentions("tool_call_id") ? ChatFormat::kGemma4Interleaved
                                                                    : ChatFormat::kGemma4;
}

std::string render_chat(ChatFormat format, const Json& messages, const Json& tools, const ChatOptions& options) {
  const std::vector<Message> conversation = read_conversation(messages);
  if (format == ChatFormat::kGemma3) return render_gemma3(conversation, options);
  return render_gemma4(format == ChatFormat::kGemma4Interleaved, conversation, tools, options);
}

}  // namespace carat

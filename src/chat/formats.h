// The renderers behind render_chat, one a family.
#pragma once

#include <string>
#include <vector>

#include "chat/conversation.h"

namespace carat {

/// Gemma 3's turns. Throws Error where the template raises: roles that do not alternate, null content; and for audio
/// and video, which it knows nothing of. It knows nothing of tools and thinking either: they leave no trace.
std::string render_gemma3(const std::vector<Message>& conversation, const ChatOptions& options);

/// Gemma 4's turns, in the current or the interleaved format.
std::string render_gemma4(bool interleaved, const std::vector<Message>& conversation, const Json& tools,
                          const ChatOptions& options);

}  // namespace carat

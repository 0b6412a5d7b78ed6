// Tools for Gemma 3, whose template knows none: a convention in plain text. json_calls.h reads the replies.
#pragma once

#include <string>

#include "chat/chat.h"

namespace carat {

/// What tells the model which tools there are and how it calls them; goes into the system prompt. Empty for no tools.
/// Throws Error for a tool without a function that has a name.
std::string gemma3_tool_instructions(const Json& tools);

/// `messages` in words that render_chat(kGemma3) knows: the instructions end the system message, which is added where
/// there is none; calls of the assistant become fenced blocks behind its text; results become a turn of the user, one
/// with what the user says next. Throws Error for messages that read_conversation refuses.
Json gemma3_messages(const Json& messages, const Json& tools);

}  // namespace carat

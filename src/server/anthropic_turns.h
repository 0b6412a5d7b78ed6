// Anthropic's conversation, brought to the shape that the chat formats know.
#pragma once

#include "server/request_fields.h"

namespace carat::server {

/// The messages (OpenAI's shape, chat/chat.h) of an Anthropic request's `system` and `messages`. Texts of a turn are
/// joined by newlines; consecutive turns of one role are one turn, as Anthropic has it. Results of tools become tool
/// messages before the text of their turn, which leaves no empty user turn behind; thoughts become reasoning_content;
/// redacted thoughts are dropped. Throws ApiFailure for what Anthropic refuses (results and calls that do not answer
/// each other, empty user turns), for images, documents and blocks of server tools, and for a last turn of the
/// assistant: a reply cannot be continued.
Json read_anthropic_turns(const Fields& body);

}  // namespace carat::server

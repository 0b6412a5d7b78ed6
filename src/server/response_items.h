// The items of OpenAI's Responses API: messages, function calls, their outputs, reasoning.
#pragma once

#include <string>

#include "chat/chat.h"

namespace carat::server {

/// `input` (a string, or items) as items in full: each with type, id and status, texts as parts. Throws ApiFailure for
/// items of other types, references to items, images, files and audio.
Json read_input_items(const Json& input);

/// The conversation (OpenAI's chat shape, chat/chat.h) that full items tell. `instructions` and the system and
/// developer messages at the beginning are one system message. Reasoning, text and calls that follow each other are one
/// message of the assistant; outputs follow the message that called, in the order of its calls. Throws ApiFailure for
/// calls and outputs that do not answer each other.
Json messages_of(const Json& items, const std::string& instructions);

}  // namespace carat::server

// Requests of Anthropic's Messages API, read into tasks.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/chat_task.h"

namespace carat::server {

struct MessagesRequest {
  ChatTask task;
  bool stream = false;
  bool marks_cache = false;  // some part of the prompt carries cache_control
};

enum class MessagesRoute : uint8_t { kMessages, kCountTokens };

/// Reads a request body; both routes read the same prompt, only kMessages needs max_tokens. docs/api-anthropic.md says
/// what is read, dropped and refused. Throws ApiFailure.
MessagesRequest read_messages_request(std::string_view body, MessagesRoute route);

}  // namespace carat::server

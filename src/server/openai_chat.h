// POST /v1/chat/completions.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// Thoughts come as `reasoning_content`, in messages and deltas. A stream has, for each reply, a delta with the role,
/// deltas of reasoning_content, content and tool_calls (each call whole, in one delta), and a chunk with the
/// finish_reason; then, on request, one chunk with the usage; then [DONE]. An error within a stream is an event
/// {"error": ...} that ends it.
void handle_openai_chat(Service& service, std::shared_ptr<HttpExchange> exchange);

}  // namespace carat::server

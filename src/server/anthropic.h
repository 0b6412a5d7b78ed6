// Anthropic's dialect: POST /v1/messages and POST /v1/messages/count_tokens. docs/api-anthropic.md is its description.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// Both answer what is wrong with the request in Anthropic's shape (anthropic_error in anthropic_writer.h).
/// Thread-safe.
void handle_messages(Service& service, std::shared_ptr<HttpExchange> exchange);
/// {"input_tokens"}: the prompt that handle_messages would read for this request.
void handle_count_tokens(Service& service, std::shared_ptr<HttpExchange> exchange);

}  // namespace carat::server

// The small routes: models, tokenize, detokenize, adapters.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// GET /v1/models: every model, and every adapter of it as "model:adapter".
void handle_openai_models(Service& service, std::shared_ptr<HttpExchange> exchange);
/// GET /v1/models/ID, where ID may hold slashes.
void handle_openai_model(Service& service, std::shared_ptr<HttpExchange> exchange);

/// POST /tokenize: {"content" (or "text", or "prompt"), "add_special": false, "with_pieces": false, "model"} to
/// {"tokens", "count"}. With pieces a token is {"id", "piece"}, the piece an array of bytes where it is no text by
/// itself.
void handle_tokenize(Service& service, std::shared_ptr<HttpExchange> exchange);
/// POST /detokenize: {"tokens", "model"} to {"content"}.
void handle_detokenize(Service& service, std::shared_ptr<HttpExchange> exchange);

// The model is that of ?model=, else in a POST that of the body; where one alone is served it need not be named.

/// GET /v1/adapters: {"adapters": [{"id", "path", "rank", "scale", "size_bytes", "mounted_layers"}]}.
void handle_adapters(Service& service, std::shared_ptr<HttpExchange> exchange);
/// POST /v1/adapters: {"id", "path", "model"} to the same of the new one.
void handle_load_adapter(Service& service, std::shared_ptr<HttpExchange> exchange);
/// DELETE /v1/adapters/ID: {"id", "removed_layers"}.
void handle_remove_adapter(Service& service, std::shared_ptr<HttpExchange> exchange);

}  // namespace carat::server

// POST /v1/embeddings.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// `input`: a string, token ids, or an array of up to 2048 strings or arrays of token ids. `encoding_format`: "float",
/// or "base64" for little-endian float32. `dimensions`: the leading ones alone, brought to length 1 again.
void handle_openai_embeddings(Service& service, std::shared_ptr<HttpExchange> exchange);

}  // namespace carat::server

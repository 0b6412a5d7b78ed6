// POST /v1/completions.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// Choices are numbered through: those of the first prompt, of the second, and so on. With echo a choice begins with
/// its prompt, and its logprobs with those of the prompt's tokens (the first, before which nothing stands, has null).
void handle_openai_completions(Service& service, std::shared_ptr<HttpExchange> exchange);

}  // namespace carat::server

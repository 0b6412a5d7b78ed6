// OpenAI's Responses API. docs/api-responses.md is its description.
#pragma once

#include <memory>

#include "server/exchange.h"
#include "server/response_store.h"
#include "server/service.h"

namespace carat::server {

// All answer what is wrong with the request in OpenAI's shape. Thread-safe.

/// POST /v1/responses.
void handle_responses(Service& service, std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ResponseStore> store);

/// POST /v1/responses/input_tokens: the prompt that handle_responses would read for this request.
void handle_response_input_tokens(Service& service, std::shared_ptr<HttpExchange> exchange,
                                  std::shared_ptr<ResponseStore> store);

/// Whatever else is below /v1/responses/: GET ID, DELETE ID, GET ID/input_items (?limit, ?order, ?after), POST
/// ID/cancel (always refused: only responses in the background could be cancelled).
void handle_stored_response(Service& service, std::shared_ptr<HttpExchange> exchange,
                            std::shared_ptr<ResponseStore> store);

}  // namespace carat::server

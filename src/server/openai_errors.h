// Errors in OpenAI's shape.
#pragma once

#include <functional>
#include <string>

#include "server/chat_task.h"
#include "server/exchange.h"

namespace carat::server {

/// {"error":{"message","type","param","code"}}; param and code are null where there is none. The type goes by the
/// status: authentication_error (401), permission_error (403), rate_limit_error (429), server_error (500 and above),
/// else invalid_request_error.
std::string openai_error_text(const ApiError& error);

/// The same as a response, with Retry-After where the error has it.
HttpResponse openai_error(const ApiError& error);

/// Calls `answer`; an ApiFailure that it throws becomes the response. Other exceptions pass.
/// REQUIRES: `answer` throws only before it has answered.
void or_openai_error(HttpExchange& exchange, const std::function<void()>& answer);

}  // namespace carat::server

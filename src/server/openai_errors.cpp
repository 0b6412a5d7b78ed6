#include "server/openai_errors.h"

#include <utility>

#include "server/json_text.h"

namespace carat::server {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

}  // namespace

std::string openai_error_text(const ApiError& error) {
  const Json json = {{"error",
                      {{"message", error.message},
                       {"type", type_of(error.status)},
                       {"param", or_null(error.param)},
                       {"code", or_null(error.code)}}}};
  return to_text(json);
}

HttpResponse openai_error(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = openai_error_text(error);
  if (error.retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return response;
}

void or_openai_error(HttpExchange& exchange, const std::function<void()>& answer) {
  try {
    answer();
  } catch (const ApiFailure& failure) {
    exchange.respond(openai_error(failure.error()));
  }
}

}  // namespace carat::server

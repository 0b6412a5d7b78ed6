#include "server/json_text.h"

#include <fmt/format.h>

namespace carat::server {

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_string(std::string_view text) {
  return to_text(Json(text));
}

std::string number_text(float value) {
  return fmt::format("{}", value);
}

}  // namespace carat::server

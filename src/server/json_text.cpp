#include "server/json_text.h"

#include <fmt/format.h>

#include "tokenizer/utf8.h"

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

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = utf8_unit(text, i);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    i += unit.length;
  }
  return true;
}

}  // namespace carat::server

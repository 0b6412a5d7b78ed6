// JSON as it goes over the wire: always valid UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "chat/chat.h"

namespace carat::server {

/// `value` without white space; ill-formed UTF-8 becomes U+FFFD.
std::string to_text(const Json& value);

/// `text` as a JSON string, quotes included; ill-formed UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

/// A finite number as short as it reads back to the same float.
std::string number_text(float value);

bool is_utf8(std::string_view text);

}  // namespace carat::server

// Identifiers of responses, messages and tool calls.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace carat::server {

/// `prefix` and `length` random letters and digits: unique, not secret. Safe to call from many threads.
std::string random_id(std::string_view prefix, size_t length = 24);

}  // namespace carat::server

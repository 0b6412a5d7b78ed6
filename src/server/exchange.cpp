#include "server/exchange.h"

#include <algorithm>

namespace carat::server {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto same = [&](const std::string& other) {
    return std::equal(other.begin(), other.end(), name.begin(), name.end(),
                      [](char a, char b) { return lower(a) == lower(b); });
  };
  for (const auto& [key, value] : headers) {
    if (same(key)) return value;
  }
  return {};
}

}  // namespace carat::server

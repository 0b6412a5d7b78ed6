#include "server/request_fields.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "server/json_text.h"

namespace carat::server {
namespace {

constexpr size_t kMaxDepth = 256;
/// A value takes up to some fifty bytes of memory for two of the body.
constexpr size_t kMaxValues = 4'000'000;
/// The parser looks each key up among those before it, so n keys of one object cost n * n / 2 comparisons.
constexpr uint64_t kMaxKeyComparisons = 100'000'000;

/// Refuses what would be too deep or too costly to parse. It looks at brackets, commas and quotes only; up to the first
/// mistake in a body, where parsing ends, it sees them as the parser does.
void check_shape(std::string_view body) {
  std::array<uint32_t, kMaxDepth> keys;
  size_t depth = 0;
  size_t values = 0;
  uint64_t comparisons = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '[':
      case '{':
        if (depth == kMaxDepth) refuse("", fmt::format("the body is nested deeper than {} levels", kMaxDepth));
        keys[depth++] = 0;
        ++values;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
        ++values;
        break;
      case ':':
        if (depth > 0) comparisons += keys[depth - 1]++;
        break;
      default:
        break;
    }
    if (values > kMaxValues) refuse("", fmt::format("the body holds more than {} values", kMaxValues));
    if (comparisons > kMaxKeyComparisons) refuse("", "the body holds objects with too many keys");
  }
}

}  // namespace

void refuse(std::string param, std::string message, std::string code) {
  throw ApiFailure({.status = 400, .message = std::move(message), .code = std::move(code), .param = std::move(param)});
}

std::string describe(const Json& value) {
  constexpr size_t kShown = 60;  // bytes
  switch (value.type()) {
    case Json::value_t::array:
      return value.empty() ? "an empty array" : "an array";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return text.size() <= kShown ? json_string(text) : fmt::format("a string of {} bytes", text.size());
    }
    default:
      return to_text(value);
  }
}

Json read_body(std::string_view body) {
  if (body.empty()) refuse("", "the body is empty, expected a JSON object");
  check_shape(body);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::parse_error& error) {
    refuse("", fmt::format("the body is not valid JSON in UTF-8 (at byte {} of {})", error.byte, body.size()));
  } catch (const Json::exception&) {
    refuse("", "the body holds a number that is out of range");
  }
  if (!json.is_object()) refuse("", fmt::format("the body is {}, expected a JSON object", describe(json)));
  return json;
}

Fields::Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (object.is_object()) return;
  server::refuse(path_,
                 fmt::format("{}: found {}, expected an object", path_.empty() ? "the body" : path_, describe(object)));
}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void Fields::refuse(std::string_view name, std::string_view expected) const {
  const Json* value = find(name);
  const std::string full = path(name);
  server::refuse(full, fmt::format("{}: found {}, expected {}", full, value ? describe(*value) : "nothing", expected));
}

const Json& Fields::require(std::string_view name, std::string_view expected) const {
  const Json* value = find(name);
  if (value == nullptr) refuse(name, expected);
  return *value;
}

std::optional<bool> Fields::flag(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t lowest, int64_t highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> number;
  if (value->is_number_unsigned()) {
    const auto large = value->get<uint64_t>();
    if (large <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) number = static_cast<int64_t>(large);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    const auto real = value->get<double>();
    if (std::fabs(real) < 0x1p53 && std::trunc(real) == real) number = static_cast<int64_t>(real);
  }
  if (!number || *number < lowest || *number > highest) {
    const bool large = value->is_number() && value->get<double>() > static_cast<double>(highest);
    refuse(name, large || highest < std::numeric_limits<int>::max()
                     ? fmt::format("an integer from {} to {}", lowest, highest)
                     : fmt::format("an integer of at least {}", lowest));
  }
  return number;
}

std::optional<double> Fields::number(std::string_view name, double lowest, double highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= lowest && number <= highest) return number;
  }
  refuse(name, std::isinf(highest) ? fmt::format("a number of at least {}", lowest)
                                   : fmt::format("a number from {} to {}", lowest, highest));
}

std::optional<std::string> Fields::text(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view name, size_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector{value->get<std::string>()};
  const std::string expected = fmt::format("a string or an array of at most {} strings", most);
  if (!value->is_array()) refuse(name, expected);
  if (value->size() > most) {
    server::refuse(path(name), fmt::format("{}: found {} strings, expected {}", path(name), value->size(), expected));
  }
  std::vector<std::string> all;
  for (const Json& item : *value) {
    if (!item.is_string()) {
      const std::string full = fmt::format("{}[{}]", path(name), all.size());
      server::refuse(full, fmt::format("{}: found {}, expected a string", full, describe(item)));
    }
    all.push_back(item.get<std::string>());
  }
  return all;
}

std::optional<std::vector<int>> Fields::ids(std::string_view name) const {
  const Json* value = array(name);
  if (value == nullptr) return std::nullopt;
  return read_ids(*value, path(name));
}

const Json* Fields::array(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) refuse(name, "an array");
  return value;
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return Fields(*value, path(name));
}

std::vector<int> read_ids(const Json& array, const std::string& path) {
  if (!array.is_array())
    refuse(path, fmt::format("{}: found {}, expected an array of token ids", path, describe(array)));
  std::vector<int> ids;
  ids.reserve(array.size());
  for (const Json& item : array) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int>::max()) {
      const std::string full = fmt::format("{}[{}]", path, ids.size());
      refuse(full, fmt::format("{}: found {}, expected a token id (an integer of at least 0)", full, describe(item)));
    }
    ids.push_back(item.get<int>());
  }
  return ids;
}

}  // namespace carat::server

#include "checkpoint/json.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace carat {

namespace {

using simdjson::dom::element_type;

constexpr size_t kShortText = 60;

}  // namespace

std::string describe(simdjson::dom::element element) {
  switch (element.type()) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    default:
      break;
  }
  std::string text = simdjson::minify(element);
  if (text.size() > kShortText) text = "a long string";
  return text;
}

std::string JsonObject::where(std::string_view key) const {
  return fmt::format("{}: field '{}{}'", origin_, path_, key);
}

void JsonObject::missing(std::string_view key) const {
  fail("{} is missing", where(key));
}

void JsonObject::wrong(std::string_view key, Element found, std::string_view expected) const {
  fail("{} is {}, expected {}", where(key), describe(found), expected);
}

std::optional<JsonObject::Element> JsonObject::find(std::string_view key) const {
  Element element;
  if (object_.at_key(key).get(element) != simdjson::SUCCESS || element.is_null()) return std::nullopt;
  return element;
}

bool JsonObject::stated(std::string_view key) const {
  Element element;
  return object_.at_key(key).get(element) == simdjson::SUCCESS;
}

std::optional<int64_t> JsonObject::maybe_integer(std::string_view key, int64_t least, int64_t most) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  int64_t value = 0;
  if (element->get(value) != simdjson::SUCCESS || value < least || value > most) {
    wrong(key, *element, fmt::format("an integer from {} to {}", least, most));
  }
  return value;
}

std::optional<double> JsonObject::maybe_number(std::string_view key, double least, double most) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  double value = 0;
  if (element->get(value) != simdjson::SUCCESS || !std::isfinite(value) || value < least || value > most) {
    wrong(key, *element, fmt::format("a number from {} to {}", least, most));
  }
  return value;
}

std::optional<bool> JsonObject::maybe_boolean(std::string_view key) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  bool value = false;
  if (element->get(value) != simdjson::SUCCESS) wrong(key, *element, "true or false");
  return value;
}

std::optional<std::string_view> JsonObject::maybe_string(std::string_view key) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  std::string_view value;
  if (element->get(value) != simdjson::SUCCESS) wrong(key, *element, "a string");
  return value;
}

std::optional<JsonObject> JsonObject::maybe_object(std::string_view key) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  return child(*element, key);
}

std::optional<simdjson::dom::array> JsonObject::maybe_array(std::string_view key) const {
  const auto element = find(key);
  if (!element) return std::nullopt;
  simdjson::dom::array value;
  if (element->get(value) != simdjson::SUCCESS) wrong(key, *element, "an array");
  return value;
}

std::vector<int> JsonObject::token_ids(std::string_view key) const {
  std::vector<int> ids;
  const auto element = find(key);
  if (!element) return ids;
  const auto add = [&](Element item) {
    int64_t id = 0;
    if (item.get(id) != simdjson::SUCCESS || id < 0 || id > std::numeric_limits<int>::max()) {
      fail("{} holds {}, expected token ids", where(key), describe(item));
    }
    ids.push_back(static_cast<int>(id));
  };
  simdjson::dom::array list;
  if (element->get(list) != simdjson::SUCCESS) {
    add(*element);
  } else {
    for (const auto item : list) add(item);
  }
  return ids;
}

int64_t JsonObject::integer(std::string_view key, int64_t least, int64_t most) const {
  const auto value = maybe_integer(key, least, most);
  if (!value) missing(key);
  return *value;
}

double JsonObject::number(std::string_view key, double least, double most) const {
  const auto value = maybe_number(key, least, most);
  if (!value) missing(key);
  return *value;
}

std::string_view JsonObject::string(std::string_view key) const {
  const auto value = maybe_string(key);
  if (!value) missing(key);
  return *value;
}

JsonObject JsonObject::object(std::string_view key) const {
  auto value = maybe_object(key);
  if (!value) missing(key);
  return *value;
}

JsonObject JsonObject::child(Element element, std::string_view key) const {
  simdjson::dom::object value;
  if (element.get(value) != simdjson::SUCCESS) wrong(key, element, "an object");
  return JsonObject(value, origin_, fmt::format("{}{}.", path_, key));
}

JsonDocument::JsonDocument(std::string_view text, std::string_view origin) : origin_(origin) {
  simdjson::dom::element root;
  const auto error = parser_.parse(text.data(), text.size()).get(root);
  if (error != simdjson::SUCCESS) fail("{}: not valid JSON: {}", origin, simdjson::error_message(error));
  if (root.get(root_) != simdjson::SUCCESS) fail("{}: expected a JSON object, found {}", origin, describe(root));
}

JsonObject JsonDocument::root() const {
  return JsonObject(root_, origin_, "");
}

}  // namespace carat

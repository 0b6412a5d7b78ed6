// JSON objects whose fields are read with sentences for errors. Include in .cpp files only: simdjson is heavy.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carat {

/// One object of a parsed document. Field access throws Error naming the file, the path to the field, what was found
/// and what was expected. A key that is present with null counts as absent everywhere but in `stated`. A view: the
/// JsonDocument that it came from must outlive it.
class JsonObject {
 public:
  using Element = simdjson::dom::element;

  JsonObject(simdjson::dom::object object, std::string origin, std::string path)
      : object_(object), origin_(std::move(origin)), path_(std::move(path)) {}

  std::optional<Element> find(std::string_view key) const;
  /// The key is there, be it as null.
  bool stated(std::string_view key) const;

  /// Required fields: Error when absent, of another type, or outside [least, most].
  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  double number(std::string_view key, double least, double most) const;
  std::string_view string(std::string_view key) const;
  JsonObject object(std::string_view key) const;

  /// The same, with nullopt when absent.
  std::optional<int64_t> maybe_integer(std::string_view key, int64_t least, int64_t most) const;
  std::optional<double> maybe_number(std::string_view key, double least, double most) const;
  std::optional<bool> maybe_boolean(std::string_view key) const;
  std::optional<std::string_view> maybe_string(std::string_view key) const;
  std::optional<JsonObject> maybe_object(std::string_view key) const;
  std::optional<simdjson::dom::array> maybe_array(std::string_view key) const;
  /// Token ids, written as one number or as a list; none when absent.
  std::vector<int> token_ids(std::string_view key) const;

  /// "file: field 'text_config.head_dim'" for error messages.
  std::string where(std::string_view key) const;

  simdjson::dom::object fields() const { return object_; }
  const std::string& origin() const { return origin_; }
  /// `element` as an object below `key` of this one; Error when it is something else.
  JsonObject child(Element element, std::string_view key) const;

 private:
  [[noreturn]] void missing(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, Element found, std::string_view expected) const;

  simdjson::dom::object object_;
  std::string origin_;
  std::string path_;  // "text_config." or empty
};

/// Owns a parsed document whose root is an object.
class JsonDocument {
 public:
  /// Throws Error when `text` is not valid JSON with an object at its root. `text` need not outlive the call.
  JsonDocument(std::string_view text, std::string_view origin);

  JsonObject root() const;

 private:
  simdjson::dom::parser parser_;
  std::string origin_;
  simdjson::dom::object root_;
};

/// How a JSON value is called in error messages: the value itself when it is short, else its kind.
std::string describe(simdjson::dom::element element);

}  // namespace carat

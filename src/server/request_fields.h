// A checked reader of JSON request bodies. What does not fit becomes an error 400 whose sentence names the field, what
// was found and what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"
#include "server/chat_task.h"

namespace carat::server {

/// Throws ApiFailure: status 400, `param` the field to blame.
[[noreturn]] void refuse(std::string param, std::string message, std::string code = {});

/// A value as an error tells it: numbers, short strings and literals as written, else its kind ("an array").
std::string describe(const Json& value);

/// The object in a request body. Throws ApiFailure for what is not JSON in UTF-8 or not an object, for values nested
/// deeper than 256, and for bodies so full of values or keys that holding them would take far more than their bytes.
Json read_body(std::string_view body);

/// The fields of an object. A field that is null counts as absent, here and in what the members return.
class Fields {
 public:
  /// `object` must outlive this. `path` names it in errors: "" for the body itself, "stream_options" for a part of it.
  /// Throws ApiFailure when it is no object.
  explicit Fields(const Json& object, std::string path = {});
  explicit Fields(Json&& object, std::string path = {}) = delete;

  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // Each gives nothing (nullptr, nullopt) for an absent field and throws ApiFailure for one of another type or range.
  std::optional<bool> flag(std::string_view name) const;
  /// A number without a fraction, 2.0 included.
  std::optional<int64_t> integer(std::string_view name, int64_t lowest, int64_t highest) const;
  std::optional<double> number(std::string_view name, double lowest, double highest) const;
  std::optional<std::string> text(std::string_view name) const;
  /// A string, or an array of at most `most` strings.
  std::optional<std::vector<std::string>> texts(std::string_view name, size_t most) const;
  /// An array of token ids (0 to 2^31 - 1).
  std::optional<std::vector<int>> ids(std::string_view name) const;
  const Json* array(std::string_view name) const;
  std::optional<Fields> object(std::string_view name) const;

  /// Throws ApiFailure: "NAME: found ..., expected EXPECTED".
  [[noreturn]] void refuse(std::string_view name, std::string_view expected) const;
  /// Throws ApiFailure when the field is absent: "NAME: nothing found, expected EXPECTED".
  const Json& require(std::string_view name, std::string_view expected) const;

  /// The field's full name: "stream_options.include_usage".
  std::string path(std::string_view name) const;
  const Json& json() const { return *object_; }

 private:
  const Json* object_;
  std::string path_;
};

/// The token ids in an array. Throws ApiFailure naming `path` for anything else.
std::vector<int> read_ids(const Json& array, const std::string& path);

}  // namespace carat::server

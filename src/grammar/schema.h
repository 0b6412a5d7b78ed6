// JSON schemas brought to a form without references and combinations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/chat.h"
#include "grammar/char_dfa.h"
#include "grammar/number.h"

namespace carat {

/// What one schema asks of a value, all its keywords together.
struct FlatSchema {
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are no integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAll = 127
  };
  uint8_t types = kAll;
  std::optional<std::vector<Json>> values;  // enum and const
  NumberBounds number;
  uint64_t shortest = 0;
  std::optional<uint64_t> longest;
  std::shared_ptr<const CharDfa> text;  // pattern and format; null: any
  uint64_t min_items = 0;
  std::optional<uint64_t> max_items;
  std::vector<Json> prefix;  // schemas of the first items
  Json items = true;         // of the others
  std::vector<std::pair<std::string, Json>> properties;
  std::vector<std::string> required;
  /// Schema of other properties; null where nobody said.
  Json additional;

  bool requires_property(std::string_view name) const;
};

/// The schemas of one document. Not thread-safe. Throws Error naming the keyword and its place for what is not
/// supported.
class SchemaDocument {
 public:
  static constexpr int kMaxDepth = 64;             // references and combinations inside each other
  static constexpr size_t kMaxAlternatives = 512;  // of one schema
  static constexpr size_t kMaxValues = 10'000;     // of an enum

  static constexpr size_t kMaxWork = 300'000;

  /// Keeps a copy.
  explicit SchemaDocument(Json root);
  const Json& root() const { return root_; }

  /// The alternatives that `schema` stands for: a value is valid if one of them takes it. None for `false`.
  std::vector<FlatSchema> alternatives(const Json& schema, const std::string& where) const;
  /// `schema` without what does not change its meaning: equal texts are equal schemas.
  static std::string name_of(const Json& schema);
  /// Whether `value` satisfies a schema, or one alternative of it.
  bool accepts(const Json& schema, const Json& value, const std::string& where, int depth = 0) const;
  bool accepts(const FlatSchema& flat, const Json& value, const std::string& where, int depth = 0) const;

 private:
  struct Choice {
    const Json* branches = nullptr;
    std::string where;
    std::vector<std::string> chain;  // references that led there
  };
  struct Draft {
    FlatSchema flat;
    bool never = false;
    std::vector<Choice> choices;
  };
  void add(Draft& draft, const Json& schema, const std::string& where, std::vector<std::string>& chain,
           int depth) const;
  void add_keywords(Draft& draft, const Json& schema, const std::string& where) const;
  void add_types(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void add_values(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void add_numbers(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void add_text(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void add_items(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void add_properties(FlatSchema& flat, const Json& schema, const std::string& where) const;
  void expand(Draft draft, std::vector<FlatSchema>& out, int depth) const;
  const Json& resolve(const std::string& reference, const std::string& where) const;

  void spend(size_t work, const std::string& where) const;

  Json root_;
  mutable size_t work_ = 0;
  mutable std::map<std::string, std::shared_ptr<const CharDfa>> patterns_;
};

}  // namespace carat

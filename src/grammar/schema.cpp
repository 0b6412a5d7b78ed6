#include "grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "chat/conversation.h"
#include "tokenizer/utf8.h"

namespace carat {
namespace {

using Type = FlatSchema::Type;

constexpr std::array<std::string_view, 15> kAnnotations = {
    "title",   "description", "default",  "examples",  "example", "$comment",    "$schema",     "$id",
    "$anchor", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions", "externalDocs"};

/// Keywords that say what is valid and that nothing here looks after. Words that nobody knows are annotations.
constexpr std::array<std::string_view, 17> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "patternProperties",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "maxProperties",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "extends",
                                                       "disallow",
                                                       "divisibleBy"};

template <size_t n>
bool among(const std::array<std::string_view, n>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool is_true(const Json& schema) {
  return (schema.is_boolean() && schema.get<bool>()) || (schema.is_object() && schema.empty());
}
bool is_false(const Json& schema) {
  return schema.is_boolean() && !schema.get<bool>();
}

/// A schema that asks what both ask.
Json both_of(const Json& a, const Json& b) {
  if (is_false(a) || is_false(b)) return false;
  if (is_true(a) || a == b) return b;
  if (is_true(b)) return a;
  Json all = Json::object();
  all["allOf"] = Json::array({a, b});
  return all;
}

bool is_integral(const Json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

uint8_t type_of(const Json& value) {
  if (value.is_null()) return Type::kNull;
  if (value.is_boolean()) return Type::kBoolean;
  if (value.is_number()) return is_integral(value) ? Type::kInteger : Type::kFraction;
  if (value.is_string()) return Type::kString;
  return value.is_array() ? Type::kArray : Type::kObject;
}

uint8_t type_named(const Json& name, const std::string& where) {
  static constexpr std::array<std::pair<std::string_view, uint8_t>, 7> kTypes = {
      {{"null", Type::kNull},
       {"boolean", Type::kBoolean},
       {"integer", Type::kInteger},
       {"number", Type::kInteger | Type::kFraction},
       {"string", Type::kString},
       {"array", Type::kArray},
       {"object", Type::kObject}}};
  if (name.is_string()) {
    for (const auto& [known, types] : kTypes) {
      if (name.get_ref<const std::string&>() == known) return types;
    }
  }
  fail("{}: type is {}; expected null, boolean, integer, number, string, array, object or a list of these", where,
       name.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100));
}

std::optional<uint64_t> count(const Json& schema, const char* keyword, const std::string& where) {
  const Json* value = find(schema, keyword);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && is_integral(*value)) {
    const double number = value->get<double>();
    if (number >= 0 && number <= 9e15) return static_cast<uint64_t>(number);
  }
  fail("{}: {} must be an integer that is not negative", where, keyword);
}

const Json& must_be(const Json& value, bool holds, const std::string& where, const char* keyword, const char* what) {
  if (!holds) fail("{}: {} is a JSON {}; expected {}", where, keyword, value.type_name(), what);
  return value;
}

}  // namespace

bool FlatSchema::requires_property(std::string_view name) const {
  return std::ranges::find(required, name) != required.end();
}

SchemaDocument::SchemaDocument(Json root) : root_(std::move(root)) {
  check_depth(root_, "the schema");
}

std::string SchemaDocument::name_of(const Json& schema) {
  if (!schema.is_object()) return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  Json bare = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (!among(kAnnotations, key)) bare[key] = value;
  }
  return bare.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void SchemaDocument::spend(size_t work, const std::string& where) const {
  work_ += work;
  if (work_ > kMaxWork) fail("{}: the schema is too large to be compiled: too many combinations", where);
}

std::vector<FlatSchema> SchemaDocument::alternatives(const Json& schema, const std::string& where) const {
  Draft draft;
  std::vector<std::string> chain;
  add(draft, schema, where, chain, 0);
  std::vector<FlatSchema> out;
  expand(std::move(draft), out, 0);
  return out;
}

void SchemaDocument::expand(Draft draft, std::vector<FlatSchema>& out, int depth) const {
  if (draft.never) return;
  if (draft.choices.empty()) {
    if (out.size() >= kMaxAlternatives)
      fail("a schema has more than {} combinations of alternatives", kMaxAlternatives);
    out.push_back(std::move(draft.flat));
    return;
  }
  if (depth > kMaxDepth) fail("alternatives are nested deeper than {}", kMaxDepth);
  const Choice choice = std::move(draft.choices.back());
  draft.choices.pop_back();
  for (size_t i = 0; i < choice.branches->size(); ++i) {
    spend(1 + draft.flat.properties.size(), choice.where);
    Draft branch = draft;
    std::vector<std::string> chain = choice.chain;
    add(branch, (*choice.branches)[i], fmt::format("{}/{}", choice.where, i), chain, depth + 1);
    expand(std::move(branch), out, depth + 1);
  }
}

const Json& SchemaDocument::resolve(const std::string& reference, const std::string& where) const {
  if (reference.empty() || reference[0] != '#') fail("{}: $ref '{}' points outside the schema", where, reference);
  const Json* at = &root_;
  std::string pointer;
  for (size_t i = 1; i < reference.size(); ++i) {
    unsigned code = 0;
    if (reference[i] == '%' && i + 2 < reference.size() && std::sscanf(reference.c_str() + i + 1, "%2x", &code) == 1) {
      pointer += static_cast<char>(code);
      i += 2;
    } else {
      pointer += reference[i];
    }
  }
  if (!pointer.empty() && pointer[0] != '/') {
    fail("{}: $ref '{}' is no JSON pointer; names of anchors are not supported", where, reference);
  }
  for (size_t begin = 1; begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string key;
    for (size_t i = begin; i < end; ++i) {
      const bool escaped = pointer[i] == '~' && i + 1 < end;
      key += !escaped ? pointer[i] : pointer[++i] == '1' ? '/' : '~';
    }
    const Json* next = nullptr;
    if (at->is_object()) {
      next = find(*at, key.c_str());
    } else if (at->is_array() && !key.empty() && key.size() < 9 &&
               std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; })) {
      const size_t index = std::stoul(key);
      if (index < at->size()) next = &(*at)[index];
    }
    if (next == nullptr) fail("{}: $ref '{}' points at nothing in the schema", where, reference);
    at = next;
    begin = end + 1;
  }
  return *at;
}

void SchemaDocument::add(Draft& draft, const Json& schema, const std::string& where, std::vector<std::string>& chain,
                         int depth) const {
  spend(1 + schema.size(), where);
  if (depth > kMaxDepth) fail("{}: references and combinations are nested deeper than {}", where, kMaxDepth);
  if (schema.is_boolean()) {
    draft.never |= !schema.get<bool>();
    return;
  }
  if (!schema.is_object())
    fail("{}: a schema is a JSON {}; expected an object, true or false", where, schema.type_name());
  for (const auto& [key, value] : schema.items()) {
    if (among(kRefused, key)) fail("{}: the keyword '{}' is not supported", where, key);
  }
  add_keywords(draft, schema, where);
  if (const Json* reference = find(schema, "$ref")) {
    if (!reference->is_string()) fail("{}: $ref must be a string", where);
    const std::string& text = reference->get_ref<const std::string&>();
    if (std::ranges::find(chain, text) != chain.end()) {
      fail("{}: $ref '{}' leads back to itself without anything in between", where, text);
    }
    chain.push_back(text);
    add(draft, resolve(text, where), text, chain, depth + 1);
    chain.pop_back();
  }
  if (const Json* all = find(schema, "allOf")) {
    must_be(*all, all->is_array() && !all->empty(), where, "allOf", "an array of schemas");
    for (size_t i = 0; i < all->size(); ++i)
      add(draft, (*all)[i], fmt::format("{}/allOf/{}", where, i), chain, depth + 1);
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const Json* any = find(schema, keyword);
    if (any == nullptr) continue;
    must_be(*any, any->is_array() && !any->empty(), where, keyword, "an array of schemas");
    draft.choices.push_back({any, fmt::format("{}/{}", where, keyword), chain});
  }
}

void SchemaDocument::add_keywords(Draft& draft, const Json& schema, const std::string& where) const {
  FlatSchema& flat = draft.flat;
  add_types(flat, schema, where);
  add_values(flat, schema, where);
  add_numbers(flat, schema, where);
  add_text(flat, schema, where);
  add_items(flat, schema, where);
  add_properties(flat, schema, where);
}

void SchemaDocument::add_types(FlatSchema& flat, const Json& schema, const std::string& where) const {
  const Json* nullable = find(schema, "nullable");
  const bool or_null = nullable != nullptr && nullable->is_boolean() && nullable->get<bool>();
  if (const Json* type = find(schema, "type")) {
    uint8_t types = 0;
    if (type->is_array()) {
      for (const Json& name : *type) types |= type_named(name, where);
    } else {
      types = type_named(*type, where);
    }
    if (or_null) types |= Type::kNull;
    flat.types &= types;
  }
}

void SchemaDocument::add_values(FlatSchema& flat, const Json& schema, const std::string& where) const {
  const auto restrict_to = [&](std::vector<Json> values) {
    if (values.size() > kMaxValues)
      fail("{}: an enum of {} values; at most {} are supported", where, values.size(), kMaxValues);
    if (flat.values) {
      std::erase_if(*flat.values, [&](const Json& value) { return std::ranges::find(values, value) == values.end(); });
    } else {
      flat.values = std::move(values);
    }
  };
  if (const Json* values = find(schema, "enum")) {
    must_be(*values, values->is_array(), where, "enum", "an array of values");
    std::vector<Json> list(values->begin(), values->end());
    const Json* nullable = find(schema, "nullable");
    if (nullable != nullptr && *nullable == true) list.emplace_back(nullptr);
    restrict_to(std::move(list));
  }
  if (const Json* value = find(schema, "const")) restrict_to({*value});
}

void SchemaDocument::add_numbers(FlatSchema& flat, const Json& schema, const std::string& where) const {
  if (const Json* factor = find(schema, "multipleOf")) {
    const bool harmless = factor->is_number() && *factor == 1 && (flat.types & Type::kFraction) == 0;
    if (!harmless) fail("{}: the keyword 'multipleOf' is not supported", where);
  }
  const auto number = [&](const char* keyword) -> const Json* {
    const Json* value = find(schema, keyword);
    if (value == nullptr || value->is_boolean()) return nullptr;
    return &must_be(*value, value->is_number(), where, keyword, "a number");
  };
  const auto flag = [&](const char* keyword) {  // of JSON Schema's draft 4
    const Json* value = find(schema, keyword);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  if (const Json* value = number("minimum")) flat.number.at_least(Decimal::of(*value), flag("exclusiveMinimum"));
  if (const Json* value = number("maximum")) flat.number.at_most(Decimal::of(*value), flag("exclusiveMaximum"));
  if (const Json* value = number("exclusiveMinimum")) flat.number.at_least(Decimal::of(*value), true);
  if (const Json* value = number("exclusiveMaximum")) flat.number.at_most(Decimal::of(*value), true);
}

void SchemaDocument::add_text(FlatSchema& flat, const Json& schema, const std::string& where) const {
  if (const auto shortest = count(schema, "minLength", where)) flat.shortest = std::max(flat.shortest, *shortest);
  if (const auto longest = count(schema, "maxLength", where)) {
    flat.longest = std::min(flat.longest.value_or(*longest), *longest);
  }
  const auto narrow = [&](const std::shared_ptr<const CharDfa>& dfa) {
    flat.text = flat.text ? std::make_shared<const CharDfa>(both(*flat.text, *dfa)) : dfa;
    spend(flat.text->states.size(), where);
  };
  if (const Json* pattern = find(schema, "pattern")) {
    must_be(*pattern, pattern->is_string(), where, "pattern", "a string");
    std::shared_ptr<const CharDfa>& dfa = patterns_[pattern->get_ref<const std::string&>()];
    if (!dfa) dfa = std::make_shared<const CharDfa>(pattern_dfa(pattern->get_ref<const std::string&>(), where));
    narrow(dfa);
  }
  if (const Json* format = find(schema, "format")) {
    must_be(*format, format->is_string(), where, "format", "a string");
    if (const auto dfa = format_dfa(format->get_ref<const std::string&>())) narrow(dfa);
  }
}

void SchemaDocument::add_items(FlatSchema& flat, const Json& schema, const std::string& where) const {
  if (const Json* unique = find(schema, "uniqueItems"); unique != nullptr && *unique != false) {
    fail("{}: the keyword 'uniqueItems' is not supported", where);
  }
  if (const Json* items = find(schema, "unevaluatedItems"); items != nullptr && !is_true(*items)) {
    fail("{}: the keyword 'unevaluatedItems' is not supported", where);
  }
  if (const auto least = count(schema, "minItems", where)) flat.min_items = std::max(flat.min_items, *least);
  if (const auto most = count(schema, "maxItems", where))
    flat.max_items = std::min(flat.max_items.value_or(*most), *most);

  const Json* prefix = find(schema, "prefixItems");
  const Json* rest = find(schema, "items");
  if (prefix != nullptr) must_be(*prefix, prefix->is_array(), where, "prefixItems", "an array of schemas");
  if (rest != nullptr && rest->is_array()) {  // as it was before the draft 2020-12
    if (prefix != nullptr) fail("{}: items is an array beside prefixItems", where);
    prefix = rest;
    rest = find(schema, "additionalItems");
  }
  if (prefix == nullptr && rest == nullptr) return;
  static const Json kAny = true;
  const Json& others = rest == nullptr ? kAny : *rest;
  const size_t named = prefix == nullptr ? 0 : prefix->size();
  if (named > 1000) fail("{}: prefixItems of {} schemas; at most 1000 are supported", where, named);
  const size_t length = std::max(named, flat.prefix.size());
  std::vector<Json> merged;
  for (size_t i = 0; i < length; ++i) {
    const Json& mine = i < flat.prefix.size() ? flat.prefix[i] : flat.items;
    merged.push_back(both_of(mine, i < named ? (*prefix)[i] : others));
  }
  flat.prefix = std::move(merged);
  flat.items = both_of(flat.items, others);
}

void SchemaDocument::add_properties(FlatSchema& flat, const Json& schema, const std::string& where) const {
  const Json* properties = find(schema, "properties");
  const Json* others = find(schema, "additionalProperties");
  const Json* required = find(schema, "required");
  if (const Json* names = find(schema, "propertyNames")) {
    const bool harmless = is_true(*names) || *names == Json{{"type", "string"}};
    if (!harmless) fail("{}: the keyword 'propertyNames' is not supported", where);
  }
  if (const Json* more = find(schema, "unevaluatedProperties"); more != nullptr && !is_true(*more)) {
    // Without combinations it says the same as additionalProperties.
    const bool alone =
        !schema.contains("allOf") && !schema.contains("anyOf") && !schema.contains("oneOf") && !schema.contains("$ref");
    if (!alone || others != nullptr) fail("{}: the keyword 'unevaluatedProperties' is not supported here", where);
    others = more;
  }
  if (properties != nullptr) must_be(*properties, properties->is_object(), where, "properties", "an object");
  if (required != nullptr && required->is_boolean()) required = nullptr;  // draft 3's; says nothing here
  if (required != nullptr) {
    must_be(*required, required->is_array(), where, "required", "an array of names");
    for (const Json& name : *required) {
      must_be(name, name.is_string(), where, "required", "an array of names");
      if (!flat.requires_property(name.get_ref<const std::string&>())) flat.required.push_back(name.get<std::string>());
    }
  }
  if (const auto least = count(schema, "minProperties", where); least && *least > flat.required.size()) {
    fail("{}: minProperties is only supported up to the number of required properties", where);
  }
  if (properties == nullptr && others == nullptr) return;

  static const Json kAny = true;
  const Json mine_for_others = flat.additional.is_null() ? kAny : flat.additional;
  const Json& theirs_for_others = others == nullptr ? kAny : *others;
  const auto theirs = [&](const std::string& name) -> const Json* {
    return properties == nullptr ? nullptr : find(*properties, name.c_str());
  };
  std::set<std::string, std::less<>> known;
  for (auto& [name, property] : flat.properties) {
    known.insert(name);
    const Json* other = theirs(name);
    property = both_of(property, other == nullptr ? theirs_for_others : *other);
  }
  if (properties != nullptr) {
    for (const auto& [name, property] : properties->items()) {
      if (!known.contains(name)) flat.properties.emplace_back(name, both_of(mine_for_others, property));
    }
  }
  if (others != nullptr) flat.additional = both_of(mine_for_others, *others);
}

bool SchemaDocument::accepts(const Json& schema, const Json& value, const std::string& where, int depth) const {
  for (const FlatSchema& flat : alternatives(schema, where)) {
    if (accepts(flat, value, where, depth)) return true;
  }
  return false;
}

bool SchemaDocument::accepts(const FlatSchema& flat, const Json& value, const std::string& where, int depth) const {
  if (depth > kMaxDepth) fail("{}: a value is nested deeper than {}", where, kMaxDepth);
  if ((flat.types & type_of(value)) == 0) return false;
  if (flat.values && std::ranges::find(*flat.values, value) == flat.values->end()) return false;
  if (value.is_number()) return flat.number.contain(Decimal::of(value));
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const uint64_t length = utf8_length(text);
    return length >= flat.shortest && length <= flat.longest.value_or(length) &&
           (!flat.text || flat.text->accepts(text));
  }
  if (value.is_array()) {
    if (value.size() < flat.min_items || value.size() > flat.max_items.value_or(value.size())) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      if (!accepts(i < flat.prefix.size() ? flat.prefix[i] : flat.items, value[i], where, depth + 1)) return false;
    }
  }
  if (value.is_object()) {
    for (const std::string& name : flat.required) {
      if (!value.contains(name)) return false;
    }
    for (auto item = value.begin(); item != value.end(); ++item) {
      const std::string& name = item.key();
      const auto named =
          std::ranges::find_if(flat.properties, [&](const auto& property) { return property.first == name; });
      const Json& schema = named != flat.properties.end() ? named->second : flat.additional;
      if (!schema.is_null() && !accepts(schema, item.value(), where, depth + 1)) return false;
    }
  }
  return true;
}

}  // namespace carat

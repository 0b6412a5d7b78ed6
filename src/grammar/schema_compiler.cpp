#include "grammar/schema_compiler.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "chat/jinja_text.h"

namespace carat {
namespace {

using Type = FlatSchema::Type;

constexpr uint64_t kMaxCountedItems = 1000;
constexpr int kIndentation = 16;
constexpr int kLiteralDepth = 20;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Least and most characters of a string.
std::pair<uint32_t, uint32_t> limits_of(const FlatSchema& flat) {
  const auto limit = [](uint64_t length) {
    return static_cast<uint32_t>(std::min<uint64_t>(length, LocalState::kNoLimit));
  };
  return {limit(flat.shortest), limit(flat.longest.value_or(LocalState::kNoLimit))};
}

/// Readers of what was written stop at some depth; rules are counted, literals are not.
void check_literal(const Json& value, const std::string& where, int depth = 0) {
  if (!value.is_structured()) return;
  if (depth >= kLiteralDepth) fail("{}: a value of enum or const is nested deeper than {}", where, kLiteralDepth);
  for (const Json& part : value) check_literal(part, where, depth + 1);
}

}  // namespace

SchemaCompiler::SchemaCompiler(Rules& rules, const SchemaDocument& document, Syntax syntax, int quote)
    : rules_(rules), document_(document), syntax_(syntax), quote_(quote) {}

void SchemaCompiler::value(Node from, Node to, const Json& schema, const std::string& where) {
  rules_.nfa.call(from, to, rule_of(schema, where));
}

int SchemaCompiler::rule_of(const Json& schema, const std::string& where) {
  const auto [it, added] = rule_ids_.try_emplace(SchemaDocument::name_of(schema), 0);
  if (!added) return it->second;
  std::vector<FlatSchema> alternatives = document_.alternatives(schema, where);
  if (alternatives.size() == 1) {
    const FlatSchema& flat = alternatives.front();
    if (flat.types == Type::kString && !flat.values && !flat.text) {
      // An impossible pair of limits goes on to a rule that takes nothing.
      const auto [shortest, longest] = limits_of(flat);
      if (shortest <= longest) return it->second = rules_.text(syntax_, shortest, longest);
    }
  }
  it->second = rules_.add();
  pending_.push_back({it->second, std::move(alternatives), where});
  return it->second;
}

void SchemaCompiler::finish() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    const Pending pending = std::move(pending_[i]);
    const Rules::Rule rule = rules_.rules[static_cast<size_t>(pending.rule)];
    bool any = pending.alternatives.empty();
    for (const FlatSchema& flat : pending.alternatives) any |= alternative(rule.start, rule.end, flat, pending.where);
    if (!any) fail("{}: none of the values of enum and const satisfies the other keywords", pending.where);
  }
  pending_.clear();
}

void SchemaCompiler::object_value(Node from, Node to, const Json& schema, const std::string& where) {
  bool any = false;
  for (FlatSchema flat : document_.alternatives(schema, where)) {
    if ((flat.types & Type::kObject) == 0) continue;
    flat.types = Type::kObject;
    any |= alternative(from, to, flat, where);
  }
  if (!any) fail("{}: the schema must allow an object", where);
}

bool SchemaCompiler::alternative(Node from, Node to, const FlatSchema& flat, const std::string& where) {
  if (flat.values) {
    FlatSchema rest = flat;
    rest.values.reset();
    std::set<std::string> written;
    bool any = false;
    for (const Json& value : *flat.values) {
      if (!document_.accepts(rest, value, where)) continue;
      any = true;
      check_literal(value, where);
      if (written.insert(text_of(value)).second) literal(from, to, value);
    }
    return any;
  }
  if (flat.types & Type::kNull) literal(from, to, nullptr);
  if (flat.types & Type::kBoolean) {
    literal(from, to, true);
    literal(from, to, false);
  }
  if (flat.types & (Type::kInteger | Type::kFraction)) numbers(from, to, flat, where);
  if (flat.types & Type::kString) strings(from, to, flat);
  if (flat.types & Type::kArray) array(from, to, flat, where);
  if (flat.types & Type::kObject) object(from, to, flat, where);
  return true;
}

void SchemaCompiler::literal(Node from, Node to, const Json& value) {
  Nfa& nfa = rules_.nfa;
  if (syntax_ == Syntax::kJson) return nfa.literal(from, to, text_of(value));
  if (value.is_null()) {
    nfa.literal(from, to, "None");  // as the template writes it
    return nfa.literal(from, to, "null");
  }
  if (value.is_string()) {
    const Node inside = nfa.add();
    delimiter(from, inside);
    return delimiter(nfa.literal(inside, value.get_ref<const std::string&>()), to);
  }
  if (!value.is_structured()) return nfa.literal(from, to, text_of(value));
  const bool is_object = value.is_object();
  Node at = nfa.literal(from, is_object ? "{" : "[");
  bool first = true;
  const auto item = [&](const Json& part) {
    const Node next = nfa.add();
    literal(at, next, part);
    at = next;
  };
  const auto separate = [&] {
    if (!std::exchange(first, false)) at = nfa.literal(at, ",");
  };
  if (is_object) {
    for (const auto& [name, part] : jinja::dictsort(value)) {
      separate();
      const Node behind = nfa.add();
      key(at, behind, std::string(name));
      at = nfa.literal(behind, ":");
      item(*part);
    }
  } else {
    for (const Json& part : value) {
      separate();
      item(part);
    }
  }
  nfa.literal(at, to, is_object ? "}" : "]");
}

void SchemaCompiler::delimiter(Node from, Node to) {
  if (syntax_ == Syntax::kJson) {
    rules_.nfa.bytes(from, to, '"', '"');
  } else {
    rules_.nfa.token(from, to, quote_);
  }
}

void SchemaCompiler::strings(Node from, Node to, const FlatSchema& flat) {
  if (!flat.text) {
    const auto [shortest, longest] = limits_of(flat);
    if (shortest <= longest) rules_.nfa.call(from, to, rules_.text(syntax_, shortest, longest));
    return;
  }
  const bool limited = flat.shortest > 0 || flat.longest;
  characters(from, to, limited ? both(*flat.text, of_length(flat.shortest, flat.longest)) : *flat.text, true);
}

void SchemaCompiler::characters(Node from, Node to, const CharDfa& dfa, bool as_string) {
  if (dfa.empty()) return;
  std::vector<Node> nodes;
  for (size_t i = 0; i < dfa.states.size(); ++i) nodes.push_back(rules_.nfa.add());
  if (as_string) {
    delimiter(from, nodes[0]);
  } else {
    rules_.nfa.empty(from, nodes[0]);
  }
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    for (const CharDfa::Edge& edge : dfa.states[i].edges) character(nodes[i], nodes[edge.to], edge.first, edge.last);
    if (!dfa.states[i].accepting) continue;
    if (as_string) {
      delimiter(nodes[i], to);
    } else {
      rules_.nfa.empty(nodes[i], to);
    }
  }
}

/// One character of a string's value, as it is written: in JSON some must be escaped.
void SchemaCompiler::character(Node from, Node to, uint32_t first, uint32_t last) {
  Nfa& nfa = rules_.nfa;
  if (syntax_ == Syntax::kCall) return nfa.characters(from, to, first, last);
  const auto plain = [&](uint32_t low, uint32_t high) {
    low = std::max(low, first);
    high = std::min(high, last);
    if (low <= high) nfa.characters(from, to, low, high);
  };
  plain(0x20, 0x21);
  plain(0x23, 0x5b);
  plain(0x5d, CharDfa::kLastCharacter);
  const auto escaped = [&](uint32_t code) {
    if (code < first || code > last) return;
    const std::string text = text_of(std::string(1, static_cast<char>(code)));
    nfa.literal(from, to, std::string_view(text).substr(1, text.size() - 2));
  };
  for (uint32_t code = 0; code < 0x20; ++code) escaped(code);
  escaped('"');
  escaped('\\');
}

void SchemaCompiler::numbers(Node from, Node to, const FlatSchema& flat, const std::string& where) {
  Nfa& nfa = rules_.nfa;
  const bool integer = (flat.types & Type::kFraction) == 0;
  if (integer || flat.number.bounded()) {
    return characters(from, to, number_dfa(flat.number, integer, where), false);
  }
  // At most 15 digits before and behind the point, two in the exponent.
  const auto digits = [&](Node at, int most) {  // what was taken so far may end anywhere
    std::vector<Node> ends;
    for (int i = 0; i < most; ++i) {
      const Node next = nfa.add();
      nfa.bytes(at, next, '0', '9');
      ends.push_back(at = next);
    }
    return ends;
  };
  const Node sign = nfa.add(), whole = nfa.add(), fraction = nfa.add(), exponent = nfa.add();
  nfa.empty(from, sign);
  nfa.bytes(from, sign, '-', '-');
  nfa.bytes(sign, whole, '0', '0');
  const Node first = nfa.add();
  nfa.bytes(sign, first, '1', '9');
  nfa.empty(first, whole);
  for (const Node end : digits(first, 14)) nfa.empty(end, whole);
  for (const Node end : digits(nfa.literal(whole, "."), 15)) nfa.empty(end, fraction);
  nfa.empty(whole, fraction);
  nfa.empty(fraction, to);
  nfa.bytes(fraction, exponent, 'e', 'e');
  nfa.bytes(fraction, exponent, 'E', 'E');
  const Node power = nfa.add();
  nfa.empty(exponent, power);
  nfa.bytes(exponent, power, '+', '+');
  nfa.bytes(exponent, power, '-', '-');
  for (const Node end : digits(power, 2)) nfa.empty(end, to);
}

void SchemaCompiler::gap(Node from, Node to, bool space) {
  Nfa& nfa = rules_.nfa;
  nfa.empty(from, to);
  if (syntax_ == Syntax::kCall) return;
  if (space) nfa.bytes(from, to, ' ', ' ');
  if (gap_rule_ < 0) {
    gap_rule_ = rules_.add();
    const Rules::Rule rule = rules_.rules[static_cast<size_t>(gap_rule_)];
    Node at = nfa.literal(rule.start, "\n");
    nfa.empty(at, rule.end);
    for (int i = 0; i < kIndentation; ++i) {
      at = nfa.literal(at, " ");
      nfa.empty(at, rule.end);
    }
  }
  nfa.call(from, to, gap_rule_);
}

void SchemaCompiler::comma(Node from, Node to) {
  gap(rules_.nfa.literal(from, ","), to, true);
}

void SchemaCompiler::array(Node from, Node to, const FlatSchema& flat, const std::string& where) {
  Nfa& nfa = rules_.nfa;
  const uint64_t counted = std::max<uint64_t>({flat.min_items, flat.max_items.value_or(0), flat.prefix.size()});
  if (counted > kMaxCountedItems) {
    fail("{}: minItems and maxItems are only supported up to {}, not {}", where, kMaxCountedItems, counted);
  }
  const Node close = nfa.add(), inside = nfa.add();
  const Node open = nfa.literal(from, "[");
  const Node bracket = nfa.add();
  gap(close, bracket, false);
  nfa.bytes(bracket, to, ']', ']');
  if (flat.min_items == 0) nfa.empty(open, close);
  gap(open, inside, false);
  const auto schema_of = [&](uint64_t i) -> const Json& {
    return i < flat.prefix.size() ? flat.prefix[i] : flat.items;
  };
  Node before = inside;
  for (uint64_t i = 0;; ++i) {
    if (flat.max_items && i >= *flat.max_items) return;
    const Node behind = nfa.add();
    value(before, behind, schema_of(i), fmt::format("{}/items", where));
    if (i + 1 >= flat.min_items) nfa.empty(behind, close);
    if (!flat.max_items && i >= counted) {  // all further items are alike
      return comma(behind, before);
    }
    before = nfa.add();
    comma(behind, before);
  }
}

void SchemaCompiler::object(Node from, Node to, const FlatSchema& flat, const std::string& where) {
  Nfa& nfa = rules_.nfa;
  static const Json kAny = true;
  std::vector<std::pair<std::string, Json>> properties = flat.properties;
  std::vector<std::string> names;
  for (const auto& [name, schema] : properties) names.push_back(name);
  for (const std::string& name : flat.required) {
    if (std::ranges::find(names, name) != names.end()) continue;
    properties.emplace_back(name, flat.additional.is_null() ? kAny : flat.additional);
    names.push_back(name);
  }
  const bool closed = flat.additional.is_null() ? !flat.properties.empty() : flat.additional == false;
  const Json& others = flat.additional.is_null() ? kAny : flat.additional;
  if (syntax_ == Syntax::kCall) {
    Json sorted = Json::object();
    for (const auto& [name, schema] : properties) sorted[name] = schema;
    properties.clear();
    for (const auto& [name, schema] : jinja::dictsort(sorted)) properties.emplace_back(name, *schema);
  }

  // Before property i: `none` where none was written yet, `some` where one was, `due` behind a comma.
  const size_t n = properties.size();
  Node none = nfa.add();
  gap(nfa.literal(from, "{"), none, false);
  const Node close = nfa.add(), brace = nfa.add();
  gap(close, brace, false);
  nfa.bytes(brace, to, '}', '}');
  size_t last_required = 0;  // one more than its index
  for (size_t i = 0; i < n; ++i) {
    if (flat.requires_property(properties[i].first)) last_required = i + 1;
  }
  Node some = nfa.add(), due = nfa.add();
  for (size_t i = 0; i < n; ++i) {
    const auto& [name, schema] = properties[i];
    const bool required = flat.requires_property(name);
    const Node next_none = nfa.add(), next_some = nfa.add(), next_due = nfa.add();
    const Node begin = nfa.add(), behind_key = nfa.add();
    nfa.empty(none, begin);
    nfa.empty(due, begin);
    comma(some, due);
    key(begin, behind_key, name);
    after_key(behind_key, next_some, schema, fmt::format("{}/properties/{}", where, name));
    if (!required) {
      nfa.empty(none, next_none);
      nfa.empty(due, next_due);
      if (i >= last_required) nfa.empty(some, close);
    }
    none = next_none;
    some = next_some;
    due = next_due;
  }
  nfa.empty(none, close);
  nfa.empty(some, close);
  if (closed) return;
  const Node behind_key = nfa.add();
  comma(some, due);
  nfa.empty(none, due);
  other_key(due, behind_key, names);
  after_key(behind_key, some, others, fmt::format("{}/additionalProperties", where));
}

void SchemaCompiler::after_key(Node from, Node to, const Json& schema, const std::string& where) {
  Nfa& nfa = rules_.nfa;
  const Node colon = nfa.literal(from, ":");
  if (syntax_ == Syntax::kCall) return value(colon, to, schema, where);
  const Node behind = nfa.add();
  nfa.empty(colon, behind);
  nfa.bytes(colon, behind, ' ', ' ');
  value(behind, to, schema, where);
}

void SchemaCompiler::key(Node from, Node to, const std::string& name) {
  Nfa& nfa = rules_.nfa;
  if (syntax_ == Syntax::kJson) return nfa.literal(from, to, text_of(name));
  if (!name.empty() && std::ranges::all_of(name, is_word)) return nfa.literal(from, to, name);
  const Node inside = nfa.add();
  delimiter(from, inside);
  delimiter(nfa.literal(inside, name), to);
}

/// A key that is none of `taken`.
void SchemaCompiler::other_key(Node from, Node to, const std::vector<std::string>& taken) {
  Nfa& nfa = rules_.nfa;
  if (syntax_ == Syntax::kJson && taken.empty())
    return nfa.call(from, to, rules_.text(syntax_, 0, LocalState::kNoLimit));
  static const CharDfa kWords = pattern_dfa("^[A-Za-z0-9_-]{1,64}$", "keys");
  static const CharDfa kPlain = pattern_dfa("^[^\\x00-\\x1f\"\\\\]*$", "keys");
  characters(from, to, without(syntax_ == Syntax::kJson ? kPlain : kWords, taken), syntax_ == Syntax::kJson);
}

}  // namespace carat

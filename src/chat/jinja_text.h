// JSON values as the templates' language sees and prints them: Jinja over Python objects.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/chat.h"

namespace carat::jinja {

/// A value that may be undefined (nullptr), as a missing key is.
using Value = const Json*;

/// value[key]: undefined for a missing key and for values that are not objects.
Value at(const Json& value, std::string_view key);

/// Python's truth: undefined, null, false, zero and everything empty are false.
bool truthy(Value value);

/// What {{ value }} prints, Python's str(): "" for undefined, None, True, 1e+20, and repr for lists and dicts.
std::string to_text(Value value);

/// value | upper
std::string upper(Value value);

/// The entries of an object by key, without regard to case, equal keys in their own order. None for other values.
std::vector<std::pair<std::string_view, Value>> dictsort(const Json& value);

/// What the items of a loop over `value` print: elements of a list, keys of a dict, characters of a string. Other
/// values raise in Jinja; here they have no items.
std::vector<std::string> item_texts(Value value);

}  // namespace carat::jinja

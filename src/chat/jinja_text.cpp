#include "chat/jinja_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "chat/unicode.h"

namespace carat::jinja {
namespace {

/// repr(float): the shortest digits that read back equal; an exponent below 1e-4 and from 1e16 on.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(std::begin(buffer), std::end(buffer), std::abs(value), std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);

  const int count = static_cast<int>(digits.size());
  std::string out;
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = count > 1 ? fmt::format(".{}", digits.substr(1)) : std::string();
    out = fmt::format("{}{}e{}{:02}", digits[0], fraction, exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out = fmt::format("0.{:0<{}}{}", "", -exponent - 1, digits);
  } else if (count <= exponent + 1) {
    out = fmt::format("{:0<{}}.0", digits, exponent + 1);
  } else {
    out = digits.insert(static_cast<size_t>(exponent) + 1, 1, '.');
  }
  return std::signbit(value) ? fmt::format("-{}", out) : out;
}

/// repr(str)
std::string repr(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    const uint32_t code = unicode::next(text, position);
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code == unicode::kInvalid || unicode::is_printable(code)) {
      out += text.substr(start, position - start);
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

void append_repr(std::string& out, const Json& value) {
  if (value.is_string()) {
    out += repr(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, value[i]);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.items()) {
      if (!std::exchange(first, false)) out += ", ";
      out += repr(key) + ": ";
      append_repr(out, item);
    }
    out += '}';
  } else {
    out += to_text(&value);
  }
}

}  // namespace

Value at(const Json& value, std::string_view key) {
  if (!value.is_object()) return nullptr;
  const auto it = value.find(key);
  return it == value.end() ? nullptr : &*it;
}

bool truthy(Value value) {
  if (value == nullptr) return false;
  switch (value->type()) {
    case Json::value_t::boolean:
      return value->get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return value->get<double>() != 0;
    case Json::value_t::string:
      return !value->get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return !value->empty();
    default:
      return false;
  }
}

std::string to_text(Value value) {
  if (value == nullptr) return "";
  switch (value->type()) {
    case Json::value_t::boolean:
      return value->get<bool>() ? "True" : "False";
    case Json::value_t::number_integer:
      return fmt::format("{}", value->get<int64_t>());
    case Json::value_t::number_unsigned:
      return fmt::format("{}", value->get<uint64_t>());
    case Json::value_t::number_float:
      return float_text(value->get<double>());
    case Json::value_t::string:
      return value->get<std::string>();
    case Json::value_t::array:
    case Json::value_t::object: {
      std::string out;
      append_repr(out, *value);
      return out;
    }
    default:
      return "None";
  }
}

std::string upper(Value value) {
  return unicode::upper(to_text(value));
}

std::vector<std::pair<std::string_view, Value>> dictsort(const Json& value) {
  if (!value.is_object()) return {};
  struct Entry {
    std::string folded;
    std::string_view key;
    Value item;
  };
  std::vector<Entry> entries;
  for (const auto& [key, item] : value.get_ref<const Json::object_t&>()) {
    entries.push_back({unicode::lower(key), key, &item});
  }
  std::ranges::stable_sort(entries, {}, &Entry::folded);
  std::vector<std::pair<std::string_view, Value>> sorted;
  sorted.reserve(entries.size());
  for (const Entry& entry : entries) sorted.emplace_back(entry.key, entry.item);
  return sorted;
}

std::vector<std::string> item_texts(Value value) {
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (value->is_array()) {
    for (const Json& item : *value) texts.push_back(to_text(&item));
  } else if (value->is_object()) {
    for (const auto& entry : value->get_ref<const Json::object_t&>()) texts.push_back(entry.first);
  } else if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    for (size_t position = 0; position < text.size();) {
      const size_t start = position;
      unicode::next(text, position);
      texts.push_back(text.substr(start, position - start));
    }
  }
  return texts;
}

}  // namespace carat::jinja

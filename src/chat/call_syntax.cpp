#include "chat/call_syntax.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "chat/jinja_text.h"
#include "chat/unicode.h"

namespace carat {
namespace {

constexpr int kMaxDepth = 128;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Recursive descent over one CallText. Every read_ returns false, or nullopt, at the first thing that is out of place.
class Reader {
 public:
  explicit Reader(const CallText& call) : text_(call.text), quotes_(call.quotes) {}

  std::optional<std::vector<WrittenCall>> calls() {
    std::vector<WrittenCall> calls;
    for (skip_space(); position_ < text_.size(); skip_space()) {
      WrittenCall call;
      if (!read_call(call)) return std::nullopt;
      calls.push_back(std::move(call));
    }
    if (calls.empty()) return std::nullopt;
    return calls;
  }

 private:
  bool read_call(WrittenCall& call) {
    constexpr std::string_view kPrefix = "call:";
    if (!text_.substr(position_).starts_with(kPrefix)) return false;
    position_ += kPrefix.size();
    const std::optional<std::string_view> name = bare_until('{');
    if (!name || name->empty() || std::ranges::any_of(*name, is_space)) return false;
    call.name = *name;
    return read_object(call.arguments, kMaxDepth);
  }

  bool read_value(Json& value, int depth) {
    skip_space();
    if (position_ >= text_.size() || depth == 0) return false;
    const char c = text_[position_];
    if (at_quote() || c == '"' || c == '\'') {
      std::string string;
      if (!read_string(string)) return false;
      value = std::move(string);
      return true;
    }
    if (c == '{') return read_object(value, depth);
    if (c == '[') return read_array(value, depth);
    if (c == '-' || is_digit(c)) return read_number(value);
    return read_word(value);
  }

  bool read_object(Json& value, int depth) {
    value = Json::object();
    ++position_;
    while (!take('}')) {
      std::string key;
      if (!read_key(key) || !take(':')) return false;
      Json item;
      if (!read_value(item, depth - 1)) return false;
      value[key] = std::move(item);
      if (!take(',') && !at('}')) return false;
    }
    return true;
  }

  bool read_array(Json& value, int depth) {
    value = Json::array();
    ++position_;
    while (!take(']')) {
      Json item;
      if (!read_value(item, depth - 1)) return false;
      value.push_back(std::move(item));
      if (!take(',') && !at(']')) return false;
    }
    return true;
  }

  bool read_key(std::string& key) {
    skip_space();
    if (position_ >= text_.size()) return false;
    if (at_quote() || text_[position_] == '"' || text_[position_] == '\'') return read_string(key);
    const std::optional<std::string_view> bare = bare_until(':');
    if (!bare || bare->empty()) return false;
    key = *bare;
    return true;
  }

  bool read_string(std::string& string) {
    if (!at_quote()) return read_escaped(string);
    const size_t start = position_ + kQuoteMarker.size();
    const auto close = std::ranges::lower_bound(quotes_, start);
    if (close == quotes_.end()) return false;
    string = text_.substr(start, *close - start);
    position_ = *close + kQuoteMarker.size();
    return true;
  }

  /// "..." or '...': JSON's escapes; a backslash before anything else is itself.
  bool read_escaped(std::string& string) {
    constexpr std::string_view kNames = "nrtbf\\/\"'";
    constexpr std::string_view kMeanings = "\n\r\t\b\f\\/\"'";
    const char quote = text_[position_++];
    while (position_ < text_.size()) {
      const char c = text_[position_++];
      if (c == quote) return true;
      if (c != '\\' || position_ >= text_.size()) {
        string += c;
        continue;
      }
      if (const size_t name = kNames.find(text_[position_]); name != kNames.npos) {
        string += kMeanings[name];
        ++position_;
      } else if (const std::optional<uint32_t> code = read_unicode_escape()) {
        unicode::append(string, *code);
      } else {
        string += c;
      }
    }
    return false;
  }

  /// The uXXXX behind a backslash, with its second half where it is a surrogate.
  std::optional<uint32_t> read_unicode_escape() {
    const std::optional<uint32_t> first = hex_at(position_);
    if (!first || (*first >= 0xdc00 && *first <= 0xdfff)) return std::nullopt;
    if (*first < 0xd800 || *first > 0xdbff) {
      position_ += 5;
      return first;
    }
    const std::optional<uint32_t> second =
        text_.substr(position_ + 5, 1) == "\\" ? hex_at(position_ + 6) : std::nullopt;
    if (!second || *second < 0xdc00 || *second > 0xdfff) return std::nullopt;
    position_ += 11;
    return 0x10000 + ((*first - 0xd800) << 10) + (*second - 0xdc00);
  }

  std::optional<uint32_t> hex_at(size_t position) const {
    if (position + 5 > text_.size() || text_[position] != 'u') return std::nullopt;
    uint32_t code = 0;
    for (const char c : text_.substr(position + 1, 4)) {
      const char lower = static_cast<char>(c | 0x20);
      if (!is_digit(c) && (lower < 'a' || lower > 'f')) return std::nullopt;
      code = code * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  /// JSON's numbers: integers stay integers where they fit 64 bits.
  bool read_number(Json& value) {
    const size_t start = position_;
    while (position_ < text_.size() && (is_digit(text_[position_]) || is_letter(text_[position_]) ||
                                        std::string_view("+-.").find(text_[position_]) != std::string_view::npos)) {
      ++position_;
    }
    value = Json::parse(text_.substr(start, position_ - start), nullptr, false);
    return value.is_number();
  }

  bool read_word(Json& value) {
    static const std::array<std::pair<std::string_view, Json>, 6> kWords = {
        {{"true", true}, {"false", false}, {"null", nullptr}, {"True", true}, {"False", false}, {"None", nullptr}}};
    const size_t start = position_;
    while (position_ < text_.size() && is_letter(text_[position_])) ++position_;
    for (const auto& [word, meaning] : kWords) {
      if (text_.substr(start, position_ - start) != word) continue;
      value = meaning;
      return true;
    }
    return false;
  }

  /// The unquoted text before `end`, which may hold nothing that has a meaning of its own.
  std::optional<std::string_view> bare_until(char end) {
    const size_t start = position_;
    for (; position_ < text_.size(); ++position_) {
      if (text_[position_] == end) return trimmed(text_.substr(start, position_ - start));
      if (at_quote() || std::string_view("{}[],\"").find(text_[position_]) != std::string_view::npos) break;
    }
    return std::nullopt;
  }

  bool at_quote() const { return std::ranges::binary_search(quotes_, position_); }

  bool at(char c) {
    skip_space();
    return position_ < text_.size() && text_[position_] == c;
  }

  bool take(char c) {
    if (!at(c)) return false;
    ++position_;
    return true;
  }

  void skip_space() {
    while (position_ < text_.size() && is_space(text_[position_])) ++position_;
  }

  std::string_view text_;
  const std::vector<size_t>& quotes_;
  size_t position_ = 0;
};

}  // namespace

std::string write_value(const Json& value, bool quote_keys) {
  const auto delimited = [](const std::string& text) {
    return std::string(kQuoteMarker) + text + std::string(kQuoteMarker);
  };
  if (value.is_string()) return delimited(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  std::string out;
  if (value.is_object()) {
    out += '{';
    for (const auto& [key, item] : jinja::dictsort(value)) {
      if (out.size() > 1) out += ',';
      out += quote_keys ? delimited(std::string(key)) : std::string(key);
      out += ':';
      out += write_value(*item, quote_keys);
    }
    return out + '}';
  }
  if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ',';
      out += write_value(value[i], quote_keys);
    }
    return out + ']';
  }
  return jinja::to_text(&value);
}

std::string write_entries(const Json& object) {
  const std::string braced = write_value(object, false);
  return braced.substr(1, braced.size() - 2);
}

void CallText::add_quote() {
  quotes.push_back(text.size());
  text += kQuoteMarker;
}

CallText CallText::spelled(std::string_view text) {
  CallText call;
  for (;;) {
    const size_t quote = text.find(kQuoteMarker);
    call.add_text(text.substr(0, quote));
    if (quote == text.npos) return call;
    call.add_quote();
    text.remove_prefix(quote + kQuoteMarker.size());
  }
}

std::optional<std::vector<WrittenCall>> read_calls(const CallText& call) {
  return Reader(call).calls();
}

}  // namespace carat

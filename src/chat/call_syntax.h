// The syntax in which Gemma 4 writes values and tool calls: call:name{key:<|"|>text<|"|>,list:[1,true]}
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"

namespace carat {

/// How the string delimiter is spelled; in a model's output it is one token.
inline constexpr std::string_view kQuoteMarker = "<|\"|>";

/// `value` as the templates write it: keys sorted, quoted only inside tool declarations; null is None.
std::string write_value(const Json& value, bool quote_keys);
/// The inside of an object's braces, keys unquoted: {"b":1,"a":"x"} gives a:<|"|>x<|"|>,b:1
std::string write_entries(const Json& object);

/// What a model wrote between <|tool_call> and <tool_call|>. Delimiters are known by their token, not by their
/// spelling: text that merely looks like one stays text.
struct CallText {
  std::string text;            // delimiters spelled out
  std::vector<size_t> quotes;  // where in `text` they begin, ascending

  void add_text(std::string_view piece) { text += piece; }
  void add_quote();
  /// Every spelled delimiter in `text` taken as one.
  static CallText spelled(std::string_view text);
};

struct WrittenCall {
  std::string name;
  Json arguments;  // an object, keys in the order written
};

/// The calls in `call`, one or more; nullopt when anything in it is malformed. Strings are delimited by markers (raw
/// inside), "..." or '...' (backslash escapes); numbers keep their kind; True, False and None are known too.
std::optional<std::vector<WrittenCall>> read_calls(const CallText& call);

}  // namespace carat

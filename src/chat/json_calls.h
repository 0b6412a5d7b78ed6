// Tool calls as Gemma 3 writes them here: a fenced block of JSON in ordinary text.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/speech.h"

namespace carat {

/// The incremental parser of a reply in ordinary text. A call is a block
///   ```json
///   {"name": "a known tool", "arguments": {...}}
///   ```
/// that begins at the start of a line (or the text); also a list of such objects; ```tool_code and "parameters" are
/// understood too. Everything else passes as text, unchanged; no more is held back than may still become such a block.
/// How the text is split changes where events are split, never what they add up to. Not thread-safe.
class JsonCallParser {
 public:
  /// `tools`: OpenAI function tools; those without a name are passed over.
  explicit JsonCallParser(const Json& tools);

  /// Adds what this text makes certain.
  void push(std::string_view text, std::vector<SpeechEvent>& events);
  /// Adds what was held back. A block whose JSON is whole counts without its end. Call once, at the end.
  void finish(std::vector<SpeechEvent>& events);

 private:
  enum class State : uint8_t { kText, kOpening, kBefore, kInside, kBehind };

  bool take(char c);
  bool take_inside(char c);
  bool end_string();
  bool read_block(std::vector<SpeechEvent>& events) const;
  void give_up(std::vector<SpeechEvent>& events);
  void reset();

  std::set<std::string, std::less<>> tools_;
  State state_ = State::kText;
  bool at_line_start_ = true;
  std::string held_;      // since the fence
  size_t value_ = 0;      // where in held_ the JSON value begins
  size_t value_end_ = 0;  // behind it
  int ticks_ = 0;         // of the closing fence

  // Of the JSON value, as far as it was read.
  int depth_ = 0;
  int call_depth_ = 1;  // where the keys of calls are: 2 in a list
  bool in_string_ = false;
  bool escaped_ = false;
  bool key_due_ = false;     // the next string of a call is a key
  bool name_due_ = false;    // the next string of a call is the tool's name
  size_t string_begin_ = 0;  // in held_
};

}  // namespace carat

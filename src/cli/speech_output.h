// What a model says in a chat, shown while it is being said.
#pragma once

#include <string>
#include <string_view>

#include "carat/engine.h"
#include "chat/chat.h"
#include "chat/speech.h"

namespace carat {

/// Takes the pieces of one reply apart and prints them to standard output: the answer everywhere, thoughts (dimmed) at
/// a terminal alone, tool calls as lines of their own.
class SpeechOutput {
 public:
  /// `prompt`: the rendered prompt. With `print` false nothing is printed.
  SpeechOutput(const Engine& engine, std::string_view prompt, bool print);

  /// False when standard output takes nothing any more.
  bool push(const Piece& piece);
  /// Prints what was held back. Call once, at the end.
  void finish();

  /// {"role": "assistant", "content": …} with "reasoning" and "tool_calls" where there were any.
  Json message() const;
  const std::string& text() const { return text_; }
  const std::string& reasoning() const { return reasoning_; }
  /// Whether anything has been said.
  bool empty() const { return text_.empty() && reasoning_.empty() && calls_.empty(); }

 private:
  void show(const SpeechEvent& event);
  void print(std::string_view text);
  void dim(bool on);

  bool print_;
  bool terminal_;
  bool dimmed_ = false;
  bool line_open_ = false;  // the cursor is not at the beginning of a line
  SpeechParser parser_;
  std::vector<SpeechEvent> events_;
  std::string text_, reasoning_;
  Json calls_ = Json::array();
};

}  // namespace carat

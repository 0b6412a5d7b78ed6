#include "cli/speech_output.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/terminal.h"
#include "engine/prompt_format.h"

namespace carat {
SpeechOutput::SpeechOutput(const Engine& engine, std::string_view prompt, bool print)
    : print_(print),
      terminal_(is_terminal(1)),
      parser_(find_markers([&](std::string_view piece) { return engine.token_id(piece); }), prompt,
              find_chat_format(engine.chat_format()).value_or(ChatFormat::kGemma4)) {}

bool SpeechOutput::push(const Piece& piece) {
  events_.clear();
  parser_.push(piece.token, piece.text, events_);
  for (const SpeechEvent& event : events_) show(event);
  return !print_ || std::fflush(stdout) == 0;
}

void SpeechOutput::finish() {
  events_.clear();
  parser_.finish(events_);
  for (const SpeechEvent& event : events_) show(event);
  dim(false);
  if (print_ && line_open_) std::putchar('\n');
  line_open_ = false;
  std::fflush(stdout);
}

void SpeechOutput::show(const SpeechEvent& event) {
  switch (event.kind) {
    case SpeechEvent::Kind::kReasoning:
      reasoning_ += event.text;
      if (!terminal_) return;
      dim(true);
      print(event.text);
      return;
    case SpeechEvent::Kind::kText:
      text_ += event.text;
      dim(false);
      print(event.text);
      return;
    case SpeechEvent::Kind::kToolCall:
      calls_.push_back({{"id", fmt::format("call_{}", calls_.size() + 1)},
                        {"type", "function"},
                        {"function", {{"name", event.text}, {"arguments", event.arguments}}}});
      dim(false);
      if (line_open_) print("\n");
      print(fmt::format("[calls {} {}]\n", event.text, event.arguments));
      return;
  }
}

void SpeechOutput::print(std::string_view text) {
  if (!print_ || text.empty()) return;
  const std::string shown = terminal_ ? terminal_safe(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  line_open_ = shown.back() != '\n';
}

void SpeechOutput::dim(bool on) {
  if (on == dimmed_) return;
  dimmed_ = on;
  if (!print_ || !terminal_) return;
  if (!on && line_open_) print("\n");  // the answer begins on a line of its own
  std::fputs(on ? "\033[2m" : "\033[0m", stdout);
}

Json SpeechOutput::message() const {
  Json message{{"role", "assistant"}, {"content", text_}};
  if (!reasoning_.empty()) message["reasoning"] = reasoning_;
  if (!calls_.empty()) message["tool_calls"] = calls_;
  return message;
}

}  // namespace carat

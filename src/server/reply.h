// From the tokens of a generation to what a client is told: text, thoughts and calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "chat/json_calls.h"
#include "chat/speech.h"
#include "engine/scheduler.h"
#include "sampling/stop.h"
#include "server/chat_task.h"
#include "tokenizer/tokenizer.h"

namespace carat::server {

struct ReplyOptions {
  std::vector<std::string> stop;
  bool logprobs = false;
  bool parallel_calls = true;  // false: the reply ends after its first call
  std::optional<int> thinking_budget;
};

/// How a reply is taken apart: not at all, by Gemma 4's control tokens, or by the fenced JSON of Gemma 3's calls.
using ReplyParser = std::variant<std::monostate, SpeechParser, JsonCallParser>;

/// Reads one reply. The order of things: tokens become text (StreamDecoder), text is taken apart into thoughts, calls
/// and answer (ReplyParser), and stop strings are looked for in the answer alone. What is said does not depend on how
/// many tokens come at once. Not thread-safe.
class ReplyReader {
 public:
  ReplyReader(std::shared_ptr<const Tokenizer> tokenizer, ReplyParser parser, SpeechMarkers markers,
              ReplyOptions options);

  /// Adds a token. Its events and reports are in events() and tokens() until the next call.
  Verdict push(const GeneratedToken& token);
  /// Ends the reply: what was held back comes out, and `end` is filled but for its error and times.
  void finish(const GenerationEnd& generation, ReplyEnd& end);

  const std::vector<ReplyEvent>& events() const { return events_; }
  const std::vector<TokenReport>& tokens() const { return tokens_; }

 private:
  bool is_marker(int token) const;
  bool thought_open() const;
  void take(std::vector<SpeechEvent>& speech);
  void add_text(std::string text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  ReplyParser parser_;
  SpeechMarkers markers_;
  ReplyOptions options_;
  StreamDecoder decoder_;
  StopFilter filter_;
  std::vector<SpeechEvent> speech_;  // scratch
  std::vector<ReplyEvent> events_;
  std::vector<TokenReport> tokens_;
  int calls_ = 0;
  int64_t reasoning_tokens_ = 0;
  int64_t thought_tokens_ = 0;  // of the thought that is open
};

/// What of `token` a client is shown: its bytes, or the spelling of a control token.
TokenReport report_of(const Tokenizer& tokenizer, int token, float logprob, std::span<const TokenLogprob> top);

}  // namespace carat::server

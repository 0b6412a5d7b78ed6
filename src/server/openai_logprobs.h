// Reports of tokens as OpenAI writes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/chat_task.h"

namespace carat::server {

/// Appends the entries of a chat's logprobs.content, separated by commas, also from what `out` holds already:
/// {"token","logprob","bytes","top_logprobs":[{"token","logprob","bytes"}]}. A token that is not valid UTF-8 by itself
/// is shown with U+FFFD; `bytes` is exact.
void append_chat_logprobs(std::string& out, std::span<const TokenReport> tokens);

/// The logprobs of a completion: {"tokens","token_logprobs","top_logprobs","text_offset"}, collected token by token. As
/// OpenAI does, a token that is not valid UTF-8 by itself is written bytes:\xf0\x9f, and the alternatives include the
/// token itself. Offsets count characters.
class CompletionLogprobs {
 public:
  /// The first token of an echoed prompt, before which nothing stands: its log-probability is null.
  void add_first(std::string_view bytes, bool in_text);
  void add(std::span<const TokenReport> tokens);
  bool empty() const { return tokens_.empty(); }
  /// What was collected since the last take(), as JSON.
  std::string take();

 private:
  std::string tokens_, token_logprobs_, top_logprobs_, offsets_;
  size_t offset_ = 0;
};

}  // namespace carat::server

// The body of POST /v1/completions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/chat_task.h"

namespace carat::server {

struct OpenAiCompletionsRequest {
  std::vector<CompletionTask> tasks;  // one a prompt, alike but for it; each makes `best_of` replies
  int n = 1;                          // of them are answered
  int best_of = 1;
  bool echo = false;
  bool logprobs = false;  // asked for; with best_of the tasks report them anyway
  bool stream = false;
  bool include_usage = false;
};

/// Throws ApiFailure for what does not fit. At most 64 replies in all. max_tokens is 16 where the request has none, as
/// OpenAI documents.
OpenAiCompletionsRequest read_openai_completions(std::string_view body);

}  // namespace carat::server

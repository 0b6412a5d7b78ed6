#include "server/openai_completions_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/generation_fields.h"
#include "server/openai_chat_request.h"
#include "server/request_fields.h"

namespace carat::server {
namespace {

constexpr int kMostReplies = 64;

struct Prompt {
  std::string text;
  std::vector<int> ids;
};

std::vector<Prompt> read_prompts(const Fields& fields) {
  static constexpr const char* kExpected = "a string, an array of strings, of token ids, or of arrays of token ids";
  const Json& value = fields.require("prompt", kExpected);
  if (value.is_string()) return {{value.get<std::string>(), {}}};
  if (!value.is_array() || value.empty()) fields.refuse("prompt", kExpected);
  if (value[0].is_number()) return {{{}, read_ids(value, "prompt")}};
  if (value.size() > kMostReplies) {
    refuse("prompt", fmt::format("prompt: found {} prompts, expected at most {}", value.size(), kMostReplies));
  }
  std::vector<Prompt> prompts;
  for (const Json& item : value) {
    const std::string path = fmt::format("prompt[{}]", prompts.size());
    if (item.type() != value[0].type() || !(item.is_string() || item.is_array()) || (item.is_array() && item.empty())) {
      refuse(path, fmt::format("{}: found {}, expected all strings or all arrays of token ids", path, describe(item)));
    }
    if (item.is_string()) {
      prompts.push_back({item.get<std::string>(), {}});
    } else {
      prompts.push_back({{}, read_ids(item, path)});
    }
  }
  return prompts;
}

void read_best_of(const Fields& fields, OpenAiCompletionsRequest& request) {
  request.n = static_cast<int>(fields.integer("n", 1, 16).value_or(1));
  request.best_of = static_cast<int>(fields.integer("best_of", 1, 16).value_or(request.n));
  if (request.best_of < request.n) fields.refuse("best_of", fmt::format("at least n, which is {}", request.n));
  if (request.best_of > request.n && request.stream) {
    fields.refuse("best_of", "no more than n with a stream: the best are known at the end");
  }
}

}  // namespace

OpenAiCompletionsRequest read_openai_completions(std::string_view body) {
  const Json json = read_body(body);
  const Fields fields(json);
  OpenAiCompletionsRequest request;
  request.stream = fields.flag("stream").value_or(false);
  request.include_usage = read_include_usage(fields, request.stream);
  request.echo = fields.flag("echo").value_or(false);
  read_best_of(fields, request);
  if (const auto suffix = fields.text("suffix"); suffix && !suffix->empty()) {
    refuse("suffix", "suffix: found a text to end with, expected none: the models served here write onwards only");
  }

  CompletionTask task;
  read_model(fields, task);
  read_sampling(fields, task);
  read_stop(fields, "stop", task);
  task.max_tokens = read_limit(fields, "max_tokens", 0).value_or(16);
  task.n = request.best_of;
  const auto logprobs = fields.integer("logprobs", 0, 20);
  request.logprobs = logprobs.has_value();
  // The mean log-probability is what best_of goes by.
  task.logprobs = request.logprobs || request.best_of > request.n;
  task.top_logprobs = static_cast<int>(logprobs.value_or(0));
  task.prompt_logprobs = request.echo && request.logprobs;
  if (task.prompt_logprobs && request.stream) {
    fields.refuse("logprobs", "none with echo and a stream: those of the prompt are known at the end");
  }

  std::vector<Prompt> prompts = read_prompts(fields);
  const size_t replies = prompts.size() * static_cast<size_t>(request.best_of);
  if (replies > kMostReplies) {
    refuse("n", fmt::format("n: found {} prompts with {} replies each, expected at most {} replies in all",
                            prompts.size(), request.best_of, kMostReplies));
  }
  for (Prompt& prompt : prompts) {
    task.prompt = std::move(prompt.text);
    task.prompt_ids = std::move(prompt.ids);
    request.tasks.push_back(task);
  }
  return request;
}

}  // namespace carat::server

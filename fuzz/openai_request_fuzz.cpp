// Any bytes as the body of a request: every handler of the OpenAI dialect answers, once, with an error or with JSON.
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "../tests/server/fakes.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_embeddings.h"
#include "server/openai_misc.h"

namespace {

using namespace carat::server;

void reply(ReplyListener& listener, int replies) {
  for (int index = 0; index < replies; ++index) {
    const TokenReport token{.token = 1, .bytes = "a\xff", .logprob = -1.0f, .top = {{1, "a\xff", -1.0f}}};
    say(listener, index, {reasoning("r"), text("a\xff"), tool_call(0, "call_1", "f", "{}")}, {token});
    ReplyEnd end = ending(EndReason::kStop);
    end.prompt_reports = {token};
    listener.on_end(index, end);
  }
}

/// The tasks that were accepted hold what the engine relies on.
void check(const GenerationTask& task) {
  if (task.n < 1 || task.n > 16 || task.top_logprobs < 0 || task.top_logprobs > 20) __builtin_trap();
  if (task.max_tokens && *task.max_tokens < 0) __builtin_trap();
}

class Answers : public FakeService {
 public:
  std::shared_ptr<TaskHandle> chat(ChatTask task, std::shared_ptr<ReplyListener> listener) override {
    check(task);
    if (!task.messages.is_array()) __builtin_trap();
    const int replies = task.n;
    auto handle = FakeService::chat(std::move(task), listener);
    reply(*listener, replies);
    return handle;
  }
  std::shared_ptr<TaskHandle> complete(CompletionTask task, std::shared_ptr<ReplyListener> listener) override {
    check(task);
    const int replies = task.n;
    auto handle = FakeService::complete(std::move(task), listener);
    reply(*listener, replies);
    return handle;
  }
};

void check(const FakeExchange& exchange) {
  if (!exchange.mistakes().empty() || !exchange.answered()) __builtin_trap();
  if (exchange.response()) {
    const carat::Json json = exchange.json();
    if (json.is_discarded() || json.contains("error") != (exchange.status() != 200)) __builtin_trap();
  } else if (exchange.events().back().data != "[DONE]" || exchange.chunks().size() + 1 != exchange.events().size()) {
    __builtin_trap();
  }
}

}  // namespace

/// The first byte chooses the handler.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Handler = void (*)(Service&, std::shared_ptr<HttpExchange>);
  constexpr Handler kHandlers[] = {handle_openai_chat,  handle_openai_completions, handle_openai_embeddings,
                                   handle_tokenize,     handle_detokenize,         handle_load_adapter,
                                   handle_openai_model, handle_adapters,           handle_remove_adapter};
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  Answers service;
  auto exchange = std::make_shared<FakeExchange>(body, "POST", body);
  exchange->mutable_request().query = body;
  kHandlers[(data[0] - '0' + 256) % std::size(kHandlers)](service, exchange);
  check(*exchange);
  return 0;
}

#include "server/openai_completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "server/json_text.h"
#include "server/openai_answer.h"
#include "server/openai_completions_request.h"
#include "server/openai_errors.h"
#include "server/openai_logprobs.h"
#include "server/random_id.h"
#include "tokenizer/utf8.h"

namespace carat::server {
namespace {

/// What an echoed prompt adds to its choices.
struct Echo {
  std::string text;
  std::vector<int> ids;     // only with logprobs
  std::string first_token;  // text of ids[0]
};

/// How the replies of an answer are numbered: those of one prompt behind those of another.
struct Layout {
  int prompts = 1;
  int per_prompt = 1;

  int replies() const { return prompts * per_prompt; }
  int prompt_of(int index) const { return index / per_prompt; }
};

/// Gives the replies of one prompt their places among all.
class PromptListener : public ReplyListener {
 public:
  PromptListener(std::shared_ptr<OpenAiAnswer> answer, int first) : answer_(std::move(answer)), first_(first) {}

  void on_reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    answer_->on_reply(first_ + index, events, tokens);
  }
  void on_end(int index, const ReplyEnd& end) override { answer_->on_end(first_ + index, end); }

 private:
  std::shared_ptr<OpenAiAnswer> answer_;
  int first_;
};

std::string joined(std::span<const ReplyEvent> events) {
  std::string text;
  for (const ReplyEvent& event : events) text += event.text;
  return text;
}

class CompletionStream : public OpenAiAnswer {
 public:
  CompletionStream(std::shared_ptr<HttpExchange> exchange, const std::string& model, Layout layout,
                   const OpenAiCompletionsRequest& request, std::vector<Echo> echoes)
      : OpenAiAnswer(std::move(exchange), true, layout.replies()),
        opening_("data: " + opening(random_id("cmpl-"), "text_completion", model)),
        include_usage_(request.include_usage),
        layout_(layout),
        echoes_(std::move(echoes)),
        replies_(layout.replies()),
        totals_(layout.prompts) {}

 protected:
  void reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    replies_[index].logprobs.add(tokens);
    const std::string text = echo(index) + joined(events);
    if (!text.empty()) send(chunk(index, text));
  }

  void reply_ended(int index, const ReplyEnd& end) override {
    totals_.add(layout_.prompt_of(index), end);
    const bool last = ++ended_ == layout_.replies() && !include_usage_;
    send(chunk(index, echo(index), finish_reason(end.reason), last ? totals_.timings() : ""));
  }

  void finish() override {
    if (include_usage_) send(totals_.usage_event(opening_));
  }

 private:
  struct Reply {
    bool echoed = false;
    CompletionLogprobs logprobs;  // of tokens whose text has not come yet
  };

  std::string echo(int index) {
    if (echoes_.empty() || std::exchange(replies_[index].echoed, true)) return {};
    return echoes_[layout_.prompt_of(index)].text;
  }

  std::string chunk(int index, const std::string& text, std::string_view reason = "null",
                    const std::string& timings = {}) {
    CompletionLogprobs& logprobs = replies_[index].logprobs;
    return fmt::format(R"({}"choices":[{{"text":{},"index":{},"logprobs":{},"finish_reason":{}}}]{}{}{}}})", opening_,
                       json_string(text), index, logprobs.empty() ? "null" : logprobs.take(), reason,
                       include_usage_ ? R"(,"usage":null)" : "", timings.empty() ? "" : R"(,"timings":)", timings) +
           "\n\n";
  }

  std::string opening_;
  bool include_usage_;
  Layout layout_;
  std::vector<Echo> echoes_;  // one a prompt; none without echo
  std::vector<Reply> replies_;
  int ended_ = 0;
  Totals totals_;
};

class CompletionResponse : public OpenAiAnswer {
 public:
  CompletionResponse(std::shared_ptr<HttpExchange> exchange, const std::string& model, Layout layout,
                     const OpenAiCompletionsRequest& request, std::vector<Echo> echoes)
      : OpenAiAnswer(std::move(exchange), false, layout.replies()),
        opening_(opening(random_id("cmpl-"), "text_completion", model)),
        layout_(layout),
        n_(request.n),
        logprobs_(request.logprobs),
        echoes_(std::move(echoes)),
        replies_(layout.replies()),
        totals_(layout.prompts) {}

 protected:
  void reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    Reply& reply = replies_[index];
    reply.text += joined(events);
    for (const TokenReport& token : tokens) reply.logprob_sum += token.logprob;
    if (logprobs_) reply.tokens.insert(reply.tokens.end(), tokens.begin(), tokens.end());
    reply.token_count += tokens.size();
  }

  void reply_ended(int index, const ReplyEnd& end) override {
    totals_.add(layout_.prompt_of(index), end);
    replies_[index].reason = finish_reason(end.reason);
    if (logprobs_ && !echoes_.empty()) replies_[index].prompt = end.prompt_reports;
  }

  void finish() override {
    std::string body = opening_ + R"("choices":[)";
    int choice = 0;
    for (int prompt = 0; prompt < layout_.prompts; ++prompt) {
      for (const int index : best(prompt)) {
        const Reply& reply = replies_[index];
        const std::string text = (echoes_.empty() ? "" : echoes_[prompt].text) + reply.text;
        fmt::format_to(std::back_inserter(body), R"({}{{"text":{},"index":{},"logprobs":{},"finish_reason":{}}})",
                       choice == 0 ? "" : ",", json_string(text), choice,
                       logprobs_ ? logprobs_text(prompt, reply) : "null", reply.reason);
        ++choice;
      }
    }
    fmt::format_to(std::back_inserter(body), R"(],"usage":{},"timings":{}}})", totals_.usage(), totals_.timings());
    respond(std::move(body));
  }

 private:
  struct Reply {
    std::string text;
    std::vector<TokenReport> prompt, tokens;
    double logprob_sum = 0.0;
    size_t token_count = 0;
    std::string_view reason;

    double mean_logprob() const {
      return token_count > 0 ? logprob_sum / static_cast<double>(token_count)
                             : -std::numeric_limits<double>::infinity();
    }
  };

  /// The n replies to a prompt with the highest mean log-probability, best first; all in their order where n are all.
  std::vector<int> best(int prompt) const {
    std::vector<int> order(layout_.per_prompt);
    std::iota(order.begin(), order.end(), prompt * layout_.per_prompt);
    if (n_ == layout_.per_prompt) return order;
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return replies_[a].mean_logprob() > replies_[b].mean_logprob(); });
    order.resize(n_);
    return order;
  }

  std::string logprobs_text(int prompt, const Reply& reply) const {
    CompletionLogprobs logprobs;
    if (!echoes_.empty()) {
      const Echo& echo = echoes_[prompt];
      // A service that sets BOS before ids that lack it reports them all.
      if (!echo.ids.empty() && reply.prompt.size() < echo.ids.size()) {
        logprobs.add_first(echo.first_token, echo.text.starts_with(echo.first_token));
      }
      logprobs.add(reply.prompt);
    }
    logprobs.add(reply.tokens);
    return logprobs.take();
  }

  std::string opening_;
  Layout layout_;
  int n_;
  bool logprobs_;
  std::vector<Echo> echoes_;  // one a prompt; none without echo
  std::vector<Reply> replies_;
  Totals totals_;
};

/// What a token stands for; the spelling of one that stands for no text, such as BOS.
std::string token_text(Service& service, const std::string& model, int id) {
  std::string text = service.detokenize(model, {id});
  return text.empty() ? service.pieces(model, {id}).at(0) : text;
}

std::vector<Echo> make_echoes(Service& service, const OpenAiCompletionsRequest& request) {
  std::vector<Echo> echoes;
  if (!request.echo) return echoes;
  for (const CompletionTask& task : request.tasks) {
    Echo echo;
    echo.text = task.prompt_ids.empty() ? task.prompt : service.detokenize(task.model, task.prompt_ids);
    if (request.logprobs) {
      echo.ids = task.prompt_ids.empty() ? service.tokenize(task.model, task.prompt, true) : task.prompt_ids;
      if (!echo.ids.empty()) echo.first_token = token_text(service, task.model, echo.ids[0]);
    }
    echoes.push_back(std::move(echo));
  }
  return echoes;
}

}  // namespace

void handle_openai_completions(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    OpenAiCompletionsRequest request = read_openai_completions(exchange->request().body);
    const std::string model = service.model_id(request.tasks[0].model);
    const Layout layout{static_cast<int>(request.tasks.size()), request.best_of};
    std::vector<Echo> echoes = make_echoes(service, request);
    std::shared_ptr<OpenAiAnswer> answer;
    if (request.stream) {
      answer = std::make_shared<CompletionStream>(exchange, model, layout, request, std::move(echoes));
    } else {
      answer = std::make_shared<CompletionResponse>(exchange, model, layout, request, std::move(echoes));
    }
    try {
      for (int prompt = 0; prompt < layout.prompts; ++prompt) {
        auto listener = std::make_shared<PromptListener>(answer, prompt * layout.per_prompt);
        answer->add(service.complete(std::move(request.tasks[prompt]), std::move(listener)));
      }
    } catch (const ApiFailure& failure) {
      // The replies to earlier prompts may have begun the stream.
      answer->fail(failure.error());
    }
    answer->start();
  });
}

}  // namespace carat::server

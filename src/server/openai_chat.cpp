#include "server/openai_chat.h"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "server/json_text.h"
#include "server/openai_answer.h"
#include "server/openai_chat_request.h"
#include "server/openai_errors.h"
#include "server/openai_logprobs.h"
#include "server/random_id.h"

namespace carat::server {
namespace {

using Kind = ReplyEvent::Kind;

/// `logprobs`: entries of append_chat_logprobs; null when there are none.
std::string logprobs_text(const std::string& entries) {
  return entries.empty() ? "null" : fmt::format(R"({{"content":[{}],"refusal":null}})", entries);
}

/// "id":...,"type":"function","function":{"name","arguments"}
std::string call_text(const ReplyEvent& call) {
  return fmt::format(R"("id":{},"type":"function","function":{{"name":{},"arguments":{}}})", json_string(call.call_id),
                     json_string(call.text), json_string(call.arguments));
}

class ChatStream : public OpenAiAnswer {
 public:
  ChatStream(std::shared_ptr<HttpExchange> exchange, const std::string& model, int replies, bool include_usage)
      : OpenAiAnswer(std::move(exchange), true, replies),
        opening_("data: " + opening(random_id("chatcmpl-"), "chat.completion.chunk", model)),
        include_usage_(include_usage),
        replies_(replies) {}

 protected:
  void reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    std::string out;
    introduce(out, index);
    append_chat_logprobs(replies_[index].logprobs, tokens);
    for (size_t i = 0; i < events.size();) {
      const ReplyEvent& event = events[i++];
      if (event.kind == Kind::kToolCall) {
        append_chunk(out, index,
                     fmt::format(R"("tool_calls":[{{"index":{},{}}}])", event.call_index, call_text(event)));
        continue;
      }
      std::string text = event.text;
      while (i < events.size() && events[i].kind == event.kind) text += events[i++].text;
      if (text.empty()) continue;
      const char* name = event.kind == Kind::kReasoning ? "reasoning_content" : "content";
      append_chunk(out, index, fmt::format(R"("{}":{})", name, json_string(text)));
    }
    if (!out.empty()) send(std::move(out));
  }

  void reply_ended(int index, const ReplyEnd& end) override {
    totals_.add(0, end);
    std::string out;
    introduce(out, index);
    // The last of all chunks has the timings.
    const bool last = ++ended_ == static_cast<int>(replies_.size()) && !include_usage_;
    append_chunk(out, index, "", finish_reason(end.reason), last ? totals_.timings() : "");
    send(std::move(out));
  }

  void finish() override {
    if (include_usage_) send(totals_.usage_event(opening_));
  }

 private:
  struct Reply {
    bool introduced = false;
    std::string logprobs;  // of tokens whose text has not come yet
  };

  void introduce(std::string& out, int index) {
    if (std::exchange(replies_[index].introduced, true)) return;
    append_chunk(out, index, R"("role":"assistant","content":"")");
  }

  void append_chunk(std::string& out, int index, std::string_view delta, std::string_view reason = "null",
                    const std::string& timings = {}) {
    const std::string logprobs = logprobs_text(std::exchange(replies_[index].logprobs, {}));
    fmt::format_to(std::back_inserter(out),
                   R"({}"choices":[{{"index":{},"delta":{{{}}},"logprobs":{},"finish_reason":{}}}]{})", opening_, index,
                   delta, logprobs, reason, include_usage_ ? R"(,"usage":null)" : "");
    if (!timings.empty()) fmt::format_to(std::back_inserter(out), R"(,"timings":{})", timings);
    out += "}\n\n";
  }

  std::string opening_;
  bool include_usage_;
  std::vector<Reply> replies_;
  int ended_ = 0;
  Totals totals_{1};
};

class ChatResponse : public OpenAiAnswer {
 public:
  ChatResponse(std::shared_ptr<HttpExchange> exchange, const std::string& model, int replies)
      : OpenAiAnswer(std::move(exchange), false, replies),
        opening_(opening(random_id("chatcmpl-"), "chat.completion", model)),
        replies_(replies) {}

 protected:
  void reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    Reply& reply = replies_[index];
    append_chat_logprobs(reply.logprobs, tokens);
    for (const ReplyEvent& event : events) {
      switch (event.kind) {
        case Kind::kReasoning:
          reply.reasoning += event.text;
          break;
        case Kind::kText:
          reply.content += event.text;
          break;
        case Kind::kToolCall:
          fmt::format_to(std::back_inserter(reply.calls), "{}{{{}}}", reply.calls.empty() ? "" : ",", call_text(event));
          break;
      }
    }
  }

  void reply_ended(int index, const ReplyEnd& end) override {
    totals_.add(0, end);
    replies_[index].reason = finish_reason(end.reason);
  }

  void finish() override {
    std::string body = opening_ + R"("choices":[)";
    for (size_t i = 0; i < replies_.size(); ++i) {
      fmt::format_to(std::back_inserter(body), R"({}{{"index":{},"message":{},"logprobs":{},"finish_reason":{}}})",
                     i == 0 ? "" : ",", i, message_text(replies_[i]), logprobs_text(replies_[i].logprobs),
                     replies_[i].reason);
    }
    fmt::format_to(std::back_inserter(body), R"(],"usage":{},"timings":{}}})", totals_.usage(), totals_.timings());
    respond(std::move(body));
  }

 private:
  struct Reply {
    std::string content, reasoning;
    std::string calls;     // JSON objects, separated by commas
    std::string logprobs;  // likewise
    std::string_view reason;
  };

  static std::string message_text(const Reply& reply) {
    const bool only_calls = reply.content.empty() && !reply.calls.empty();
    std::string out = fmt::format(R"({{"role":"assistant","content":{},"refusal":null)",
                                  only_calls ? "null" : json_string(reply.content));
    if (!reply.reasoning.empty()) out += R"(,"reasoning_content":)" + json_string(reply.reasoning);
    if (!reply.calls.empty()) out += fmt::format(R"(,"tool_calls":[{}])", reply.calls);
    return out + '}';
  }

  std::string opening_;
  std::vector<Reply> replies_;
  Totals totals_{1};
};

}  // namespace

void handle_openai_chat(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    OpenAiChatRequest request = read_openai_chat(exchange->request().body);
    const std::string model = service.model_id(request.task.model);
    const int replies = request.task.n;
    std::shared_ptr<OpenAiAnswer> answer;
    if (request.stream) {
      answer = std::make_shared<ChatStream>(exchange, model, replies, request.include_usage);
    } else {
      answer = std::make_shared<ChatResponse>(exchange, model, replies);
    }
    try {
      answer->add(service.chat(std::move(request.task), answer));
    } catch (const ApiFailure& failure) {
      // Of several replies the first may have begun the stream when there is no place for the next.
      answer->fail(failure.error());
    }
    answer->start();
  });
}

}  // namespace carat::server

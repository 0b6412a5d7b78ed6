// A service and an exchange that tests script and look into. Free of GoogleTest, so that fuzz targets can use them.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

inline ApiError api_error(int status, std::string message, std::string code = {}, std::string param = {}) {
  return {.status = status, .message = std::move(message), .code = std::move(code), .param = std::move(param)};
}

/// One server-sent event as a client reads it.
struct SentEvent {
  std::string name;  // of "event:", else empty
  std::string data;
};

class FakeExchange : public HttpExchange {
 public:
  explicit FakeExchange(std::string body, std::string method = "POST", std::string path = "/") {
    request_.method = std::move(method);
    request_.path = std::move(path);
    request_.body = std::move(body);
    request_.peer = "127.0.0.1";
    request_.id = "request-1";
  }

  const HttpRequest& request() const override { return request_; }
  HttpRequest& mutable_request() { return request_; }

  void respond(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    check(!response_ && !began_, "respond() after the answer began");
    response_ = std::move(response);
    actions_.clear();
  }
  void begin_events(Headers headers = {}) override {
    const std::lock_guard lock(mutex_);
    check(!response_ && !began_, "begin_events() after the answer began");
    began_ = true;
    headers_ = std::move(headers);
  }
  void write(std::string text) override {
    const std::lock_guard lock(mutex_);
    check(began_ && !ended_, "write() outside a stream");
    check(text.size() > 2 && text.ends_with("\n\n"), "write() of something else than whole events");
    if (!gone_) writes_.push_back(std::move(text));
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    check(began_ && !ended_, "end() outside a stream");
    ended_ = true;
    actions_.clear();
  }
  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> action) override {
    {
      const std::lock_guard lock(mutex_);
      if (answered()) return;
      if (!gone_) return actions_.push_back(std::move(action));
    }
    action();
  }

  /// The client goes away.
  void leave() {
    std::vector<std::function<void()>> actions;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      actions.swap(actions_);
    }
    for (const auto& action : actions) action();
  }

  bool answered() const { return response_ || ended_; }
  const std::optional<HttpResponse>& response() const { return response_; }
  int status() const { return response_ ? response_->status : began_ ? 200 : 0; }
  /// The body of the response; discarded when there is none or it is no JSON.
  Json json() const {
    return response_ ? Json::parse(response_->body, nullptr, false) : Json(Json::value_t::discarded);
  }
  bool began() const { return began_; }
  bool ended() const { return ended_; }
  const std::vector<std::string>& writes() const { return writes_; }

  std::vector<SentEvent> events() const {
    std::string all;
    for (const std::string& text : writes_) all += text;
    std::vector<SentEvent> events;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find("\n\n", begin), all.size());
      events.push_back(read_event(std::string_view(all).substr(begin, end - begin)));
      begin = end + 2;
    }
    return events;
  }
  /// The data of the events that are JSON, in order.
  std::vector<Json> chunks() const {
    std::vector<Json> chunks;
    for (const SentEvent& event : events()) {
      Json json = Json::parse(event.data, nullptr, false);
      if (!json.is_discarded()) chunks.push_back(std::move(json));
    }
    return chunks;
  }

  /// What was called against the contract of HttpExchange.
  const std::vector<std::string>& mistakes() const { return mistakes_; }

 private:
  static SentEvent read_event(std::string_view block) {
    SentEvent event;
    while (!block.empty()) {
      const size_t end = std::min(block.find('\n'), block.size());
      const std::string_view line = block.substr(0, end);
      if (line.starts_with("event: ")) event.name = line.substr(7);
      if (line.starts_with("data: ")) event.data += line.substr(6);
      block.remove_prefix(std::min(end + 1, block.size()));
    }
    return event;
  }
  void check(bool right, const char* mistake) {
    if (!right) mistakes_.emplace_back(mistake);
  }

  HttpRequest request_;
  std::mutex mutex_;
  std::optional<HttpResponse> response_;
  Headers headers_;
  std::vector<std::string> writes_;
  std::vector<std::function<void()>> actions_;
  std::vector<std::string> mistakes_;
  bool began_ = false;
  bool ended_ = false;
  std::atomic<bool> gone_ = false;
};

struct FakeHandle : TaskHandle {
  void cancel() override { ++cancelled; }
  int cancelled = 0;
};

/// Knows the models "tiny" and, as "tiny:poet", its adapter. Records what it is asked for; replies are made by the test
/// through `replies`, or at once by `script`.
class FakeService : public Service {
 public:
  struct Reply {
    std::shared_ptr<ReplyListener> listener;
    std::shared_ptr<FakeHandle> handle;
  };

  static constexpr int64_t kPromptTokens = 17;  // of every prompt

  std::vector<ChatTask> chats;
  std::vector<ChatTask> counted;  // by count_prompt()
  std::vector<CompletionTask> completions;
  std::vector<Reply> replies;                       // one a task, in order
  std::function<void(ReplyListener&, int)> script;  // (listener, number of the task), called before chat() returns
  std::optional<ApiError> refusal;                  // thrown by chat(), complete() and embed()
  int refuse_from = 0;                              // the first task that is refused
  std::vector<std::vector<int>> embedded;           // the inputs of the last embed()
  std::optional<ApiError> embed_error;
  std::map<std::string, AdapterInfo> adapters_by_id = {{"poet", {"poet", "/adapters/poet", 8, 2.0, 4096, 12}}};

  std::vector<ModelInfo> models() const override {
    ModelInfo info;
    info.id = "tiny";
    info.created = 1700000000;
    info.context_window = 4096;
    info.chat = true;
    info.thinking = true;
    for (const auto& [id, adapter] : adapters_by_id) info.adapters.push_back(adapter);
    return {info};
  }
  std::string model_id(const std::string& asked) const override {
    if (asked.empty() || asked == "tiny") return "tiny";
    if (asked == "tiny:poet") return asked;
    throw ApiFailure(api_error(404, "model: found \"" + asked + "\", expected tiny", "model_not_found", "model"));
  }

  std::shared_ptr<TaskHandle> chat(ChatTask task, std::shared_ptr<ReplyListener> listener) override {
    model_id(task.model);
    chats.push_back(std::move(task));
    return start(std::move(listener));
  }
  std::shared_ptr<TaskHandle> complete(CompletionTask task, std::shared_ptr<ReplyListener> listener) override {
    model_id(task.model);
    completions.push_back(std::move(task));
    return start(std::move(listener));
  }
  int64_t count_prompt(const ChatTask& task) override {
    model_id(task.model);
    counted.push_back(task);
    return kPromptTokens;
  }

  void embed(const std::string& model, std::vector<std::vector<int>> inputs,
             std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done) override {
    model_id(model);
    if (refusal) throw ApiFailure(*refusal);
    embedded = std::move(inputs);
    if (embed_error) return done({}, embed_error);
    std::vector<EmbeddingResult> results;
    for (const auto& ids : embedded) {
      results.push_back({{0.6f, 0.0f, -0.8f, 0.0f}, static_cast<int64_t>(ids.size())});
    }
    done(std::move(results), std::nullopt);
  }

  /// A token a byte; BOS, which is 2, first when `add_special`.
  std::vector<int> tokenize(const std::string& model, std::string_view text, bool add_special) override {
    model_id(model);
    std::vector<int> ids;
    if (add_special) ids.push_back(2);
    for (const char c : text) ids.push_back(256 + static_cast<unsigned char>(c));
    return ids;
  }
  std::string detokenize(const std::string& model, const std::vector<int>& ids) override {
    std::string text;
    for (const std::string& piece : pieces(model, ids)) text += piece;
    return text;
  }
  std::vector<std::string> pieces(const std::string& model, const std::vector<int>& ids) override {
    model_id(model);
    std::vector<std::string> pieces;
    for (const int id : ids) {
      if (id >= 512) throw ApiFailure(api_error(400, "tokens: found an id that is not of the vocabulary"));
      pieces.push_back(id < 256 ? "" : std::string(1, static_cast<char>(id - 256)));
    }
    return pieces;
  }

  std::vector<AdapterInfo> adapters(const std::string& model) override {
    model_id(model);
    return models()[0].adapters;
  }
  AdapterInfo load_adapter(const std::string& model, const std::string& id, const std::string& path) override {
    model_id(model);
    return adapters_by_id[id] = {id, path, 4, 1.0, 1024, 6};
  }
  void remove_adapter(const std::string& model, const std::string& id) override {
    model_id(model);
    if (adapters_by_id.erase(id) == 0) {
      throw ApiFailure(api_error(404, "there is no adapter " + id, "adapter_not_found"));
    }
  }

 private:
  std::shared_ptr<TaskHandle> start(std::shared_ptr<ReplyListener> listener) {
    const int number = static_cast<int>(replies.size());
    if (refusal && number >= refuse_from) throw ApiFailure(*refusal);
    auto handle = std::make_shared<FakeHandle>();
    listener->on_prompt(kPromptTokens);
    replies.push_back({listener, handle});
    if (script) script(*listener, number);
    return handle;
  }
};

inline ReplyEvent reasoning(std::string text) {
  return {.kind = ReplyEvent::Kind::kReasoning, .text = std::move(text), .arguments = {}, .call_id = {}};
}
inline ReplyEvent text(std::string text) {
  return {.kind = ReplyEvent::Kind::kText, .text = std::move(text), .arguments = {}, .call_id = {}};
}
inline ReplyEvent tool_call(int index, std::string id, std::string name, std::string arguments) {
  return {.kind = ReplyEvent::Kind::kToolCall,
          .text = std::move(name),
          .arguments = std::move(arguments),
          .call_id = std::move(id),
          .call_index = index};
}
inline void say(ReplyListener& listener, int index, const std::vector<ReplyEvent>& events,
                const std::vector<TokenReport>& tokens = {}) {
  listener.on_reply(index, events, tokens);
}
inline ReplyEnd ending(EndReason reason, Usage usage = {.prompt_tokens = 10, .completion_tokens = 5}) {
  ReplyEnd end;
  end.reason = reason;
  end.usage = usage;
  end.prompt_seconds = 0.5;
  end.generation_seconds = 2.0;
  return end;
}
inline ReplyEnd failure(int status, std::string message) {
  ReplyEnd end;
  end.error = api_error(status, std::move(message));
  return end;
}

}  // namespace carat::server

#include "server/reply_sender.h"

#include <mutex>
#include <utility>

#include "server/json_text.h"
#include "server/openai_answer.h"

namespace carat::server {
namespace {

/// The task holds this, which holds the task's handle until the reply has ended or is cancelled; the exchange holds
/// neither.
class ReplySender : public ReplyListener, public std::enable_shared_from_this<ReplySender> {
 public:
  ReplySender(std::shared_ptr<HttpExchange> exchange, std::unique_ptr<ReplyWriter> writer, bool stream, Headers headers)
      : exchange_(std::move(exchange)), writer_(std::move(writer)), headers_(std::move(headers)), stream_(stream) {}

  /// Lets the client know at once that its stream lives: the first token may be far away.
  void start(std::shared_ptr<TaskHandle> task) {
    task_.add(std::move(task));
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      begin();
    }
    exchange_->on_gone([weak = weak_from_this()] {
      if (const auto sender = weak.lock()) sender->task_.cancel();
    });
  }

  void on_prompt(int64_t tokens) override { prompt_tokens_ = tokens; }

  void on_reply(int /*index*/, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    const std::lock_guard lock(mutex_);
    if (exchange_->gone()) return;
    begin();
    write(writer_->add(events, tokens));
  }

  void on_end(int /*index*/, const ReplyEnd& end) override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      if (!exchange_->gone()) finish(end);
    }
    task_.release();
  }

 private:
  void begin() {
    if (!stream_ || begun_) return;
    begun_ = true;
    exchange_->begin_events(std::move(headers_));
    write(writer_->open(prompt_tokens_));
  }

  void finish(const ReplyEnd& end) {
    if (end.error && !begun_) {
      exchange_->respond(writer_->failure(*end.error));
      return;
    }
    begin();
    std::string last = writer_->close(end);
    if (stream_) {
      write(std::move(last));
      exchange_->end();
    } else {
      exchange_->respond(writer_->whole());
    }
  }

  void write(std::string text) {
    if (stream_ && !text.empty()) exchange_->write(std::move(text));
  }

  TaskSet task_;
  std::mutex mutex_;  // start() runs on the transport's thread while the engine's may already bring the reply
  std::shared_ptr<HttpExchange> exchange_;
  std::unique_ptr<ReplyWriter> writer_;
  Headers headers_;
  int64_t prompt_tokens_ = 0;
  bool stream_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace

std::string named_event(std::string_view name, const Json& data) {
  std::string text = "event: ";
  text += name;
  text += "\ndata: ";
  text += to_text(data);
  text += "\n\n";
  return text;
}

void send_reply(Service& service, ChatTask task, std::shared_ptr<HttpExchange> exchange,
                std::unique_ptr<ReplyWriter> writer, bool stream, Headers headers) {
  const auto sender = std::make_shared<ReplySender>(std::move(exchange), std::move(writer), stream, std::move(headers));
  sender->start(service.chat(std::move(task), sender));
}

}  // namespace carat::server

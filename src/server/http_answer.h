// What stands between a request's handler, on any thread, and the connection that sends its answer.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/exchange.h"

namespace carat::server {

/// What has become of an answer since the connection last looked.
struct AnswerProgress {
  bool gone = false;       // more was written than a client may leave unread
  bool abandoned = false;  // the exchange was dropped before the answer was complete
  bool responded = false;  // `response` is the whole answer
  HttpResponse response;
  bool streaming = false;  // events have begun, with these headers (given once)
  Headers headers;
  std::string events;  // to append to the stream
  bool ended = false;  // the stream is complete behind `events`
};

/// The state of one answer. Exchange writes it, from any thread; the connection reads it, and is told of changes
/// through `notify`, until it lets go.
class Answer {
 public:
  /// `notify` is called when there is something new, seldom more than once between two calls of progress(), under the
  /// answer's lock: it must not call back.
  Answer(HttpRequest request, size_t max_backlog, std::function<void()> notify);

  const HttpRequest& request() const { return request_; }

  // Of the handler.
  void respond(HttpResponse response);
  void begin_events(Headers headers);
  void write(std::string text);
  void end();
  bool gone() const;
  void on_gone(std::function<void()> action);
  void abandon();

  // Of the connection.
  AnswerProgress progress();
  /// That many bytes of the events that progress() gave out have been sent.
  void sent(size_t bytes);
  /// The client has left: calls the actions that wait for it.
  void lose();
  /// The answer has been sent, or lost: notifies no more.
  void let_go();

 private:
  enum class State : uint8_t { kWaiting, kResponded, kStreaming, kEnded, kAbandoned };

  void notify_locked();

  const HttpRequest request_;
  const size_t max_backlog_;
  mutable std::mutex mutex_;
  std::function<void()> notify_;
  bool notified_ = false;
  State state_ = State::kWaiting;
  bool gone_ = false;
  bool over_ = false;  // let go
  HttpResponse response_;
  Headers headers_;
  std::string events_;
  size_t unsent_ = 0;  // bytes written and neither sent nor dropped
  std::vector<std::function<void()>> gone_actions_;
};

/// The handler's end of an answer.
std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<Answer> answer);

}  // namespace carat::server

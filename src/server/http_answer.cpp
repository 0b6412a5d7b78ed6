#include "server/http_answer.h"

#include <algorithm>
#include <utility>

namespace carat::server {
namespace {

void run(const std::function<void()>& action) noexcept {
  try {
    action();
  } catch (...) {
    // There is nobody left to tell.
  }
}

class Exchange : public HttpExchange {
 public:
  explicit Exchange(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
  ~Exchange() override { answer_->abandon(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const HttpRequest& request() const override { return answer_->request(); }
  void respond(HttpResponse response) override { answer_->respond(std::move(response)); }
  void begin_events(Headers headers) override { answer_->begin_events(std::move(headers)); }
  void write(std::string text) override { answer_->write(std::move(text)); }
  void end() override { answer_->end(); }
  bool gone() const override { return answer_->gone(); }
  void on_gone(std::function<void()> action) override { answer_->on_gone(std::move(action)); }

 private:
  const std::shared_ptr<Answer> answer_;
};

}  // namespace

Answer::Answer(HttpRequest request, size_t max_backlog, std::function<void()> notify)
    : request_(std::move(request)), max_backlog_(max_backlog), notify_(std::move(notify)) {}

void Answer::notify_locked() {
  if (notified_ || !notify_) return;
  notified_ = true;
  notify_();
}

void Answer::respond(HttpResponse response) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kWaiting || gone_ || over_) return;
  state_ = State::kResponded;
  response_ = std::move(response);
  notify_locked();
}

void Answer::begin_events(Headers headers) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kWaiting || gone_ || over_) return;
  state_ = State::kStreaming;
  headers_ = std::move(headers);
  notify_locked();
}

void Answer::write(std::string text) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kStreaming || gone_ || over_ || text.empty()) return;
  unsent_ += text.size();
  if (unsent_ > max_backlog_) {
    gone_ = true;
    events_ = {};
    notified_ = false;  // the connection must hear of it also while it writes
  } else if (events_.empty()) {
    events_ = std::move(text);
  } else {
    events_ += text;
  }
  notify_locked();
}

void Answer::end() {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kStreaming || gone_ || over_) return;
  state_ = State::kEnded;
  notify_locked();
}

bool Answer::gone() const {
  const std::scoped_lock lock(mutex_);
  return gone_;
}

void Answer::on_gone(std::function<void()> action) {
  if (!action) return;
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) {
      if (!over_) gone_actions_.push_back(std::move(action));
      return;
    }
  }
  run(action);
}

void Answer::abandon() {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kWaiting && state_ != State::kStreaming) return;
  state_ = State::kAbandoned;
  if (!gone_ && !over_) notify_locked();
}

AnswerProgress Answer::progress() {
  const std::scoped_lock lock(mutex_);
  notified_ = false;
  AnswerProgress progress;
  progress.gone = gone_;
  progress.abandoned = state_ == State::kAbandoned;
  progress.responded = state_ == State::kResponded;
  progress.streaming = state_ == State::kStreaming || state_ == State::kEnded;
  progress.ended = state_ == State::kEnded;
  progress.response = std::move(response_);
  progress.headers = std::move(headers_);
  progress.events = std::exchange(events_, {});
  return progress;
}

void Answer::sent(size_t bytes) {
  const std::scoped_lock lock(mutex_);
  unsent_ -= std::min(bytes, unsent_);
}

void Answer::lose() {
  std::vector<std::function<void()>> actions;
  {
    const std::scoped_lock lock(mutex_);
    gone_ = true;
    actions.swap(gone_actions_);
    events_ = {};
  }
  for (const std::function<void()>& action : actions) run(action);
}

void Answer::let_go() {
  // What they hold may itself call this answer when it is destroyed, so it is destroyed outside of the lock.
  std::vector<std::function<void()>> actions;
  std::function<void()> notify;
  const std::scoped_lock lock(mutex_);
  over_ = true;
  actions.swap(gone_actions_);
  notify.swap(notify_);
}

std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<Answer> answer) {
  return std::make_shared<Exchange>(std::move(answer));
}

}  // namespace carat::server

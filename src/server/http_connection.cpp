#include "server/http_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/error.h"
#include "server/http_text.h"

namespace carat::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::asio::awaitable;
using ErrorCode = boost::system::error_code;

// Bytes of one read. While a request is answered the read under way only has to notice that the client left, and there
// are thousands of them.
constexpr size_t kWatchBytes = 512;
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kBodyBytes = 65536;
// Requests that a client may send ahead, in bytes, before the connection stops reading.
constexpr size_t kMaxAhead = 65536;
// How often a client whose bytes are not read is asked whether it is still there.
constexpr std::chrono::milliseconds kAskInterval{500};
// How long a client may take to read the last answer before the connection is closed. Closing while bytes of the client
// are unread would reset the connection, and the client could lose the answer.
constexpr std::chrono::milliseconds kLinger{1000};
// Strings larger than this are given back rather than kept for the next use.
constexpr size_t kKeptCapacity = 2048;

// What poll says of a socket whose other side was closed, though ours is open.
#if defined(POLLRDHUP)
constexpr short kClosed = POLLRDHUP;
#else
constexpr short kClosed = POLLHUP;
#endif

constexpr std::string_view kComment = ": keep-alive\n\n";
constexpr auto kNever = std::chrono::steady_clock::time_point::max();

void shrink(std::string& text) {
  if (text.empty() && text.capacity() > kKeptCapacity) text = {};
}

}  // namespace

Connection::Connection(ServerState& server, asio::io_context& io, Set& living, std::unique_ptr<Wire> wire,
                       std::string peer, bool turn_away)
    : server_(server),
      io_(io),
      living_(living),
      wire_(std::move(wire)),
      peer_(std::move(peer)),
      turn_away_(turn_away),
      signal_(io) {
  const std::scoped_lock lock(server_.mutex);
  ++server_.connections;
  if (turn_away_) ++server_.turned_away;
}

Connection::~Connection() {
  living_.erase(this);
  release_answer(true);
  const std::scoped_lock lock(server_.mutex);
  --server_.connections;
  if (turn_away_) --server_.turned_away;
  server_.changed.notify_all();
}

awaitable<void> Connection::run(std::shared_ptr<Connection> self) {
  self->living_.insert(self.get());
  try {
    if (!self->server_.closing && co_await self->greet()) {
      while (co_await self->serve_one()) {
      }
    }
  } catch (const std::exception&) {
    // Memory ran out: this connection ends, the others go on.
    self->ending_ = Ending::kAbrupt;
  }
  self->release_answer(true);
  co_await self->finish();
}

void Connection::wake() {
  signal_.cancel();
}

void Connection::abort() {
  aborted_ = true;
  ErrorCode ignored;
  wire_->socket().close(ignored);
  wake();
}

/// Sleeps until something has happened, or until that time. Whatever it may be that is waited for happens on this
/// thread while the coroutine sleeps, so nothing is missed between a look and a pause.
awaitable<void> Connection::pause(Time until) {
  signal_.expires_at(until);
  ErrorCode ignored;
  co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

/// What comes before the first request. Returns whether there is to be one.
awaitable<bool> Connection::greet() {
  const Time until = Clock::now() + server_.options.header_timeout;
  other_ = true;
  wire_->handshake([this, self = shared_from_this()](ErrorCode error, size_t) {
    other_ = false;
    write_error_ = error;
    wake();
  });
  while (other_) {
    if (aborted_ || Clock::now() >= until) co_return false;
    co_await pause(until);
  }
  if (write_error_) co_return false;
  ending_ = Ending::kClose;
  if (turn_away_) {
    HttpRequest unknown;
    unknown.id = make_request_id();
    co_await refuse(std::move(unknown), 503,
                    fmt::format("The server has {} connections, the most that it takes; try again later.",
                                server_.options.max_connections));
    co_return false;
  }
  co_return true;
}

void Connection::start_read(size_t most) {
  if (reading_ || read_error_) return;
  if (landing_.capacity() > most) landing_ = {};
  landing_.resize(most);
  reading_ = true;
  const auto done = [this, self = shared_from_this()](ErrorCode error, size_t bytes) {
    reading_ = false;
    read_error_ = error;
    try {
      if (!discarding_) input_.append(landing_.data(), bytes);
    } catch (const std::bad_alloc&) {
      read_error_ = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
    }
    wake();
  };
  if (discarding_) {
    wire_->socket().async_read_some(asio::buffer(landing_),
                                    done);  // what it says no longer matters, so neither does TLS
  } else {
    wire_->read_some(asio::buffer(landing_), done);
  }
}

/// Receives one request. kRequest: the reader has it, or has failed. kTimeout: it came too slowly.
awaitable<Connection::Input> Connection::receive(RequestReader& reader) {
  using State = RequestReader::State;
  State state = State::kHeaders;
  bool begun = false;
  Time until = Clock::now() + server_.options.idle_timeout;
  ending_ = Ending::kClose;
  for (;;) {
    const State before = state;
    state = reader.read(input_);
    if (state == State::kComplete || state == State::kFailed) co_return Input::kRequest;
    if (!begun && reader.begun()) {
      begun = true;
      until = Clock::now() + server_.options.header_timeout;
    }
    if (state != before) {  // the headers are there
      until = Clock::now() + server_.options.body_timeout;
      if (!input_.empty()) continue;
      if (reader.expects_continue()) {
        output_ = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await send(false)) co_return Input::kNone;
      }
    }
    start_read(state == State::kBody ? kBodyBytes : kHeaderBytes);
    while (reading_) {
      if (aborted_ || (!begun && server_.draining)) co_return Input::kNone;
      if (Clock::now() >= until) co_return begun ? Input::kTimeout : Input::kNone;
      co_await pause(until);
    }
    if (read_error_) co_return Input::kNone;
  }
}

/// Serves one request. Returns whether the connection can take another.
awaitable<bool> Connection::serve_one() {
  const HttpOptions& options = server_.options;
  auto reader = std::make_unique<RequestReader>(RequestLimits{options.max_header_bytes, options.max_body_bytes});
  const Input input = co_await receive(*reader);
  if (input == Input::kNone) co_return false;
  if (input == Input::kTimeout) {
    const bool in_body = reader->state() == RequestReader::State::kBody;
    const auto limit = in_body ? options.body_timeout : options.header_timeout;
    co_await refuse(
        reader->take(), 408,
        fmt::format("The {} of the request took longer than {} ms.", in_body ? "body" : "headers", limit.count()));
    co_return false;
  }
  if (reader->state() == RequestReader::State::kFailed) {
    co_await refuse(reader->take(), reader->error_status(), reader->error_message());
    co_return false;
  }
  const bool keep_alive = reader->keep_alive();
  const bool http11 = reader->is_http11();
  HttpRequest request = reader->take();
  request.peer = peer_;
  reader.reset();
  shrink(input_);
  co_return co_await answer(std::move(request), http11, keep_alive);
}

void Connection::call_handler() {
  const std::shared_ptr<HttpExchange> exchange = make_exchange(answer_);
  std::string failure = "The server failed to answer the request.";
  try {
    server_.handler(exchange);
    return;
  } catch (const Error& error) {
    failure = error.what();  // a sentence for a person
  } catch (...) {
  }
  ++server_.refused;
  answer_->respond(error_response(answer_->request(), 500, failure));
}

/// Has the answer made and sends it. Returns whether the connection can take another request.
awaitable<bool> Connection::answer(HttpRequest request, bool http11, bool keep_alive) {
  answer_ =
      std::make_shared<Answer>(std::move(request), server_.options.max_backlog, [weak = weak_from_this(), &io = io_] {
        asio::post(io, [weak] {
          if (const auto self = weak.lock()) self->wake();
        });
      });
  call_handler();

  Time spoken = Clock::now();
  for (;;) {
    watch();
    AnswerProgress progress = answer_->progress();
    if (progress.abandoned && !streaming_) {
      ++server_.refused;
      progress.response = error_response(answer_->request(), 500, "The server dropped the request without an answer.");
      progress.responded = true;
    }
    if (progress.responded) {
      keep_alive = keep_alive && !server_.draining;
      const bool sent = co_await send_response(answer_->request(), std::move(progress.response), keep_alive);
      release_answer(!sent);
      co_return sent&& keep_alive;
    }
    if (progress.gone || aborted_ || read_error_ || peer_has_left()) break;
    if (progress.streaming && !streaming_) {
      keep_alive = keep_alive && http11 && !server_.draining;
      begin_stream(progress.headers, http11, keep_alive);
      if (answer_->request().method == "HEAD") {
        const bool sent = co_await send(false);
        release_answer(true);  // so that nobody goes on making events
        co_return sent&& keep_alive;
      }
    }
    if (!progress.events.empty()) append_events(progress.events, http11);
    if (progress.ended && http11) output_ += "0\r\n\r\n";
    if (streaming_ && output_.empty() && !progress.ended && !progress.abandoned) {
      const Time due = spoken + server_.options.comment_interval;
      if (Clock::now() < due) {
        co_await pause(watched_until(due));
        continue;
      }
      append_events(std::string(kComment), http11);
      events_size_ = 0;  // nobody wrote them
    }
    if (!output_.empty()) {
      if (!co_await send(true)) break;
      spoken = Clock::now();
    }
    if (progress.ended) {
      release_answer(false);
      ending_ = Ending::kLinger;
      co_return keep_alive && !server_.draining;
    }
    if (progress.abandoned) {  // no end mark: the client sees that the stream is cut
      release_answer(false);
      ending_ = http11 ? Ending::kLinger : Ending::kAbrupt;
      co_return false;
    }
    if (!streaming_) co_await pause(watched_until(kNever));
  }
  release_answer(true);
  ending_ = Ending::kAbrupt;
  co_return false;
}

void Connection::begin_stream(const Headers& headers, bool http11, bool keep_alive) {
  streaming_ = true;
  ++server_.streams;
  ResponseHead head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.request_id = answer_->request().id;
  head.framing = http11 ? Framing::kChunked : Framing::kClose;
  head.keep_alive = keep_alive;
  head.time = std::time(nullptr);
  Headers all = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  all.insert(all.end(), headers.begin(), headers.end());
  output_ = write_head(head, all);
}

void Connection::append_events(const std::string& events, bool chunked) {
  if (chunked) output_ += chunk_line(events.size());
  events_begin_ = output_.size();
  events_size_ = events.size();
  output_ += events;
  if (chunked) output_ += "\r\n";
}

/// Lets go of the answer, which is complete or `lost`.
void Connection::release_answer(bool lost) {
  if (streaming_) --server_.streams;
  streaming_ = false;
  if (!answer_) return;
  const std::shared_ptr<Answer> answer = std::move(answer_);
  if (lost) answer->lose();
  answer->let_go();
}

awaitable<bool> Connection::send_response(const HttpRequest& request, HttpResponse response, bool keep_alive) {
  ResponseHead head;
  head.status = response.status;
  head.content_type = response.content_type;
  head.request_id = request.id;
  head.length = response.body.size();
  head.keep_alive = keep_alive;
  head.time = std::time(nullptr);
  if (has_no_body(response.status)) {
    head.framing = Framing::kNone;
    head.content_type = {};
  }
  output_ = write_head(head, response.headers);
  if (head.framing == Framing::kLength && request.method != "HEAD") body_ = std::move(response.body);
  ending_ = Ending::kLinger;
  co_return co_await send(false);
}

HttpResponse Connection::error_response(const HttpRequest& request, int status, const std::string& message) const {
  try {
    if (server_.error_page) return server_.error_page(request, status, message);
  } catch (const std::exception&) {
    // Then plainly.
  }
  return {status, "text/plain; charset=utf-8", message + "\n"};
}

/// Answers what never gets to the handler, and is the last that the connection does.
awaitable<void> Connection::refuse(HttpRequest request, int status, std::string message) {
  ++server_.refused;
  request.peer = peer_;
  HttpResponse response = error_response(request, status, message);
  co_await send_response(request, std::move(response), false);
}

void Connection::start_write(size_t done) {
  const size_t of_output = std::min(done, output_.size());
  const Wire::Output rest = {asio::buffer(output_) + of_output, asio::buffer(body_) + (done - of_output)};
  writing_ = true;
  wire_->write_some(rest, [this, self = shared_from_this()](ErrorCode error, size_t bytes) {
    writing_ = false;
    write_error_ = error;
    written_ = bytes;
    wake();
  });
}

/// Sends output_ and body_. Returns whether they were sent; the connection is of no more use when not. A stream stops
/// when its client has left; a response goes on, because a client may close its side and still read.
awaitable<bool> Connection::send(bool is_stream) {
  const size_t total = output_.size() + body_.size();
  for (size_t done = 0; done < total;) {
    const Time until = Clock::now() + server_.options.write_timeout;
    start_write(done);
    while (writing_) {
      const bool left = is_stream && (read_error_ || answer_->gone());
      if (aborted_ || left || Clock::now() >= until) {
        ending_ = Ending::kAbrupt;
        co_return false;
      }
      co_await pause(until);
    }
    if (write_error_) {
      ending_ = Ending::kAbrupt;
      co_return false;
    }
    if (is_stream) {
      const auto events_in = [&](size_t end) { return std::clamp(end, events_begin_, events_begin_ + events_size_); };
      answer_->sent(events_in(done + written_) - events_in(done));
    }
    done += written_;
  }
  events_begin_ = events_size_ = 0;
  output_.clear();
  body_ = {};
  shrink(output_);
  co_return true;
}

/// Keeps a read under way while an answer is made, which notices when the client leaves. What it reads of later
/// requests waits in input_.
void Connection::watch() {
  if (input_.size() < kMaxAhead) start_read(kWatchBytes);
}

/// For a client that has sent so much ahead that the connection does not read: whether it has closed its side. Where
/// the system's buffers are full too, the news is stuck behind what was sent ahead.
bool Connection::peer_has_left() const {
  if (reading_) return false;
  pollfd ask{wire_->socket().native_handle(), kClosed, 0};
  return poll(&ask, 1, 0) > 0 && (ask.revents & (kClosed | POLLHUP | POLLERR)) != 0;
}

Connection::Time Connection::watched_until(Time until) const {
  return reading_ ? until : std::min(until, Clock::now() + kAskInterval);
}

/// Closes the connection, after the client had time to read the last answer, and waits for what is under way.
awaitable<void> Connection::finish() {
  const Time until = Clock::now() + kLinger;
  if (ending_ != Ending::kAbrupt && !aborted_) {
    other_ = true;
    wire_->finish([this, self = shared_from_this()](ErrorCode, size_t) {
      other_ = false;
      wake();
    });
    while (other_ && !aborted_ && Clock::now() < until) co_await pause(until);
    ErrorCode ignored;
    wire_->socket().shutdown(tcp::socket::shutdown_send, ignored);
    discarding_ = true;
    while (ending_ == Ending::kLinger && !aborted_ && Clock::now() < until) {
      start_read(kHeaderBytes);
      if (!reading_) break;
      co_await pause(until);
    }
  }
  ErrorCode ignored;
  wire_->socket().close(ignored);
  while (reading_ || writing_ || other_) co_await pause(kNever);
}

}  // namespace carat::server

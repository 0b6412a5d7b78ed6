// One connection of a client: a coroutine that reads requests and sends their answers, one after the other.
#pragma once

// clang-format off
#include "server/http_asio.h"  // before Asio's own headers
// clang-format on

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/http_answer.h"
#include "server/http_request_reader.h"
#include "server/http_server.h"
#include "server/http_wire.h"

namespace carat::server {

/// What all connections of a server share. Outlives them.
struct ServerState {
  HttpOptions options;
  HttpHandler handler;
  ErrorPage error_page;

  std::atomic<bool> draining{false};
  std::atomic<bool> closing{false};
  std::atomic<size_t> streams{0};
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> refused{0};

  mutable std::mutex mutex;
  std::condition_variable changed;
  size_t connections = 0;  // guarded by `mutex`, as is what follows
  size_t turned_away = 0;  // of them: beyond the limit, being told so
  size_t listeners = 0;    // that still accept
};

/// All members but the constructor are called on the thread of `io`, and end there.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Set = std::unordered_set<Connection*>;

  /// `living` holds the connections that run on `io`. `turn_away`: there are too many; answer 503 and close.
  Connection(ServerState& server, boost::asio::io_context& io, Set& living, std::unique_ptr<Wire> wire,
             std::string peer, bool turn_away);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Serves until the connection ends.
  static boost::asio::awaitable<void> run(std::shared_ptr<Connection> self);
  /// Looks again at what it waits for.
  void wake();
  /// Ends it at once.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  enum class Input : uint8_t { kRequest, kNone, kTimeout };
  enum class Ending : uint8_t {
    kAbrupt,  // nobody listens
    kClose,   // nothing is under way
    kLinger,  // the client gets time to read what was sent last
  };

  boost::asio::awaitable<bool> greet();
  boost::asio::awaitable<bool> serve_one();
  boost::asio::awaitable<Input> receive(RequestReader& reader);
  boost::asio::awaitable<bool> answer(HttpRequest request, bool http11, bool keep_alive);
  boost::asio::awaitable<bool> send_response(const HttpRequest& request, HttpResponse response, bool keep_alive);
  boost::asio::awaitable<void> refuse(HttpRequest request, int status, std::string message);
  boost::asio::awaitable<bool> send(bool is_stream);
  boost::asio::awaitable<void> finish();
  boost::asio::awaitable<void> pause(Time until);

  HttpResponse error_response(const HttpRequest& request, int status, const std::string& message) const;
  void call_handler();
  void begin_stream(const Headers& headers, bool http11, bool keep_alive);
  void append_events(const std::string& events, bool chunked);
  void release_answer(bool lost);
  void start_read(size_t most);
  void start_write(size_t done);
  void watch();
  bool peer_has_left() const;
  Time watched_until(Time until) const;

  ServerState& server_;
  boost::asio::io_context& io_;
  Set& living_;
  const std::unique_ptr<Wire> wire_;
  const std::string peer_;
  const bool turn_away_;
  boost::asio::steady_timer signal_;  // what the coroutine sleeps on; cancelled to wake it

  std::string input_;          // received and not yet read as requests
  std::vector<char> landing_;  // where the read that is under way puts its bytes
  std::string output_, body_;  // being sent, in this order
  size_t events_begin_ = 0;    // where in output_ the events begin …
  size_t events_size_ = 0;     // … and their size
  size_t written_ = 0;         // by the last write
  boost::system::error_code read_error_, write_error_;
  bool reading_ = false, writing_ = false, other_ = false;  // operations of wire_ that are under way
  bool discarding_ = false;                                 // what is received is not kept
  Ending ending_ = Ending::kAbrupt;
  bool aborted_ = false;
  bool streaming_ = false;
  std::shared_ptr<Answer> answer_;  // of the request that is being answered
};

}  // namespace carat::server

#include "server/http_server.h"

// clang-format off
#include "server/http_connection.h"  // before Asio's own headers
// clang-format on

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"

namespace carat::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using ReuseAddress = asio::socket_base::reuse_address;

// Connections beyond the limit that are told so at the same time; more are closed without a word.
constexpr size_t kMaxTurnedAway = 64;
// How long nothing is accepted when the process has no file descriptors left.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Bytes that the system takes from a connection ahead of what it has sent. Small, so that little waits there for a slow
// client and that its progress shows.
constexpr int kUnsentInSystem = 128 << 10;
// Attempts to find a port that is free on all addresses of a host.
constexpr int kPortAttempts = 16;

/// A thread and the connections that live on it.
struct Worker {
  Connection::Set connections;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{io.get_executor()};
  std::thread thread;

  void run() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception&) {
        // Memory ran out in an operation of one connection; the others go on.
      }
    }
  }
};

void name_this_thread(const char* name) {
#if defined(__APPLE__)
  pthread_setname_np(name);
#else
  pthread_setname_np(pthread_self(), name);
#endif
}

/// Gives a connection up when what was sent is not acknowledged for so long.
void limit_unacknowledged(int socket, std::chrono::milliseconds time) {
#if defined(__APPLE__)
  const auto seconds = static_cast<int>((time.count() + 999) / 1000);
  setsockopt(socket, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, &seconds, sizeof(seconds));
#else
  const auto milliseconds = static_cast<unsigned>(time.count());
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
#endif
}

/// Starts a thread that gets no signals, which are for the thread of the program that expects them.
std::thread start_quiet_thread(Worker& worker) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread([&worker] {
      name_this_thread("carat-http");
      worker.run();
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::string address_text(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

std::string peer_text(const tcp::socket& socket) {
  ErrorCode error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return {};
  asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address.to_string(error);
}

/// The machine does not have that kind of address, which matters only when a host has no other.
bool is_missing_family(ErrorCode error) {
  return error == asio::error::address_family_not_supported || error == boost::system::errc::address_not_available;
}

ErrorCode listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, bool only_one) {
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  acceptor.set_option(ReuseAddress(true), error);
  // "::" alone takes IPv4 as well; beside an IPv4 address it would take that one's port.
  if (!error && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(!only_one), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, HttpHandler handler, ErrorPage error_page);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void listen_on_all();
  ErrorCode try_listen(const std::vector<tcp::endpoint>& endpoints);
  asio::awaitable<void> accept_all(tcp::acceptor& acceptor);
  void adopt(tcp::socket socket, Worker& worker);
  void stop_listening();
  template <class Action>
  void for_all_connections(Action action);

  ServerState state;
  std::optional<TlsContext> tls;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<tcp::acceptor> acceptors;  // of the first worker's thread, once it runs
  size_t next_worker = 0;
  uint16_t port = 0;
};

HttpServer::Impl::Impl(const HttpOptions& options, HttpHandler handler, ErrorPage error_page) {
  state.options = options;
  state.handler = std::move(handler);
  state.error_page = std::move(error_page);
  if (options.threads < 1) fail("The HTTP server was given {} threads; expected at least 1", options.threads);
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    fail("TLS needs a certificate and a key; only the {} was given", options.tls_key.empty() ? "certificate" : "key");
  }
  if (!options.tls_certificate.empty()) tls.emplace(options.tls_certificate, options.tls_key);
  for (int i = 0; i < options.threads; ++i) workers.push_back(std::make_unique<Worker>());
  listen_on_all();
}

HttpServer::Impl::~Impl() {
  state.draining = true;
  state.closing = true;
  stop_listening();
  {
    // The first worker gives new connections to the others, which must not end before it has stopped.
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&] { return state.listeners == 0; });
  }
  for_all_connections([](Connection& connection) { connection.abort(); });
  for (const auto& worker : workers) worker->guard.reset();
  for (const auto& worker : workers) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

/// Listens on every address of the host.
void HttpServer::Impl::listen_on_all() {
  const HttpOptions& options = state.options;
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) fail("The host to listen on is empty; expected a name or an address, such as 127.0.0.1 or ::");

  ErrorCode error;
  tcp::resolver resolver(workers.front()->io);
  const auto found = resolver.resolve(host, fmt::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) fail("Cannot listen on {}: {}", address_text(host, options.port), error.message());
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) endpoints.push_back(endpoint);
  }
  // Where any port will do, the one that the first address gets may be taken on the next address.
  const int attempts = options.port == 0 ? kPortAttempts : 1;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    error = try_listen(endpoints);
    if (!error) return;
  }
  fail("Cannot listen on {}: {}", address_text(host, options.port), error.message());
}

ErrorCode HttpServer::Impl::try_listen(const std::vector<tcp::endpoint>& endpoints) {
  acceptors.clear();
  port = state.options.port;
  ErrorCode missing;
  for (tcp::endpoint endpoint : endpoints) {
    endpoint.port(port);
    tcp::acceptor acceptor(workers.front()->io);
    ErrorCode error = listen(acceptor, endpoint, endpoints.size() == 1);
    if (is_missing_family(error)) {
      missing = error;
      continue;
    }
    if (error) return error;
    port = acceptor.local_endpoint(error).port();
    if (error) return error;
    acceptors.push_back(std::move(acceptor));
  }
  return acceptors.empty() ? missing : ErrorCode{};
}

asio::awaitable<void> HttpServer::Impl::accept_all(tcp::acceptor& acceptor) {
  asio::steady_timer timer(workers.front()->io);
  while (!state.draining) {
    Worker& worker = *workers[next_worker++ % workers.size()];
    ErrorCode error;
    tcp::socket socket = co_await acceptor.async_accept(worker.io, asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      try {
        adopt(std::move(socket), worker);
        continue;
      } catch (const std::exception&) {
        // Out of memory: this client is turned away by the closing of its socket.
      }
    }
    if (error == asio::error::operation_aborted || error == asio::error::connection_aborted) continue;
    // Out of file descriptors, most likely: clients wait in the queue of the system until some are free again.
    timer.expires_after(kAcceptPause);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  const std::scoped_lock lock(state.mutex);
  --state.listeners;
  state.changed.notify_all();
}

void HttpServer::Impl::adopt(tcp::socket socket, Worker& worker) {
  ++state.accepted;
  bool turn_away = false;
  {
    const std::scoped_lock lock(state.mutex);
    turn_away = state.connections - state.turned_away >= state.options.max_connections;
    if (turn_away && state.turned_away >= kMaxTurnedAway) {
      ++state.refused;
      return;
    }
  }
  ErrorCode ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  // A machine that has vanished without a word is noticed by the system's own probes, or when what was sent to it is
  // not acknowledged.
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInSystem, sizeof(kUnsentInSystem));
  constexpr std::chrono::milliseconds kLeast{1}, kMost{3'600'000};
  limit_unacknowledged(socket.native_handle(), std::clamp(state.options.write_timeout, kLeast, kMost));
  std::string peer = peer_text(socket);
  auto wire = tls ? tls->wrap(std::move(socket)) : make_plain_wire(std::move(socket));
  auto connection =
      std::make_shared<Connection>(state, worker.io, worker.connections, std::move(wire), std::move(peer), turn_away);
  asio::co_spawn(worker.io, Connection::run(std::move(connection)), asio::detached);
}

void HttpServer::Impl::stop_listening() {
  asio::post(workers.front()->io, [this] {
    ErrorCode ignored;
    for (tcp::acceptor& acceptor : acceptors) acceptor.close(ignored);
  });
}

template <class Action>
void HttpServer::Impl::for_all_connections(Action action) {
  for (const auto& worker : workers) {
    asio::post(worker->io, [&connections = worker->connections, action] {
      for (Connection* connection : connections) action(*connection);
    });
  }
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, ErrorPage error_page)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(error_page))) {
  for (const auto& worker : impl_->workers) worker->thread = start_quiet_thread(*worker);
  for (tcp::acceptor& acceptor : impl_->acceptors) {
    {
      const std::scoped_lock lock(impl_->state.mutex);
      ++impl_->state.listeners;
    }
    asio::co_spawn(impl_->workers.front()->io, impl_->accept_all(acceptor), asio::detached);
  }
}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const {
  return impl_->port;
}

void HttpServer::drain() {
  impl_->state.draining = true;
  impl_->stop_listening();
  impl_->for_all_connections([](Connection& connection) { connection.wake(); });
}

bool HttpServer::wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock(impl_->state.mutex);
  return impl_->state.changed.wait_for(lock, at_most, [this] { return impl_->state.connections == 0; });
}

HttpStats HttpServer::stats() const {
  const ServerState& state = impl_->state;
  HttpStats stats;
  stats.streams = state.streams;
  stats.accepted = state.accepted;
  stats.refused = state.refused;
  const std::scoped_lock lock(state.mutex);
  stats.connections = state.connections;
  return stats;
}

}  // namespace carat::server

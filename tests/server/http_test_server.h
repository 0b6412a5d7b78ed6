// A server with a scripted handler for tests, and a holder of exchanges that are answered later.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "server/http_server.h"

namespace carat::server {

/// Exchanges that wait for the test to answer them.
class Inbox {
 public:
  void put(std::shared_ptr<HttpExchange> exchange) {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(exchange));
    came_.notify_all();
  }

  std::shared_ptr<HttpExchange> take() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, std::chrono::seconds(30), [&] { return !waiting_.empty(); })) return nullptr;
    std::shared_ptr<HttpExchange> exchange = std::move(waiting_.front());
    waiting_.pop_front();
    return exchange;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::shared_ptr<HttpExchange>> waiting_;
};

/// Whether it becomes true within half a minute.
inline bool eventually(const std::function<bool()>& is_true) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// /echo answers with what it was asked, /later puts the exchange into `inbox`; other paths are 404.
class TestServer {
 public:
  explicit TestServer(const HttpOptions& options = {}) { start(options); }

  void start(HttpOptions options) {
    options.port = 0;
    server = std::make_unique<HttpServer>(
        options, [this](std::shared_ptr<HttpExchange> exchange) { handle(std::move(exchange)); },
        [](const HttpRequest& request, int status, const std::string& message) {
          return HttpResponse{status,
                              "text/plain",
                              fmt::format("{} {} {}: {}", status, request.method, request.path, message),
                              {{"X-Page", "error"}}};
        });
  }

  uint16_t port() const { return server->port(); }

  Inbox inbox;
  std::function<void(std::shared_ptr<HttpExchange>)> scripted;  // for /scripted
  std::unique_ptr<HttpServer> server;

 private:
  void handle(std::shared_ptr<HttpExchange> exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/echo") {
      exchange->respond({200,
                         "text/plain",
                         fmt::format("{}|{}|{}|{}", request.method, request.query, request.peer, request.body),
                         {{"X-Echo", std::string(request.header("x-echo"))}}});
    } else if (request.path == "/later") {
      inbox.put(std::move(exchange));
    } else if (request.path == "/scripted") {
      scripted(std::move(exchange));
    } else {
      exchange->respond({404, "text/plain", "no such path"});
    }
  }
};

}  // namespace carat::server

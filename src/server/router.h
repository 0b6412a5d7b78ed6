// Which handler answers which path, and what every request goes through first.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/exchange.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/model_service.h"
#include "server/response_store.h"

namespace carat::server {

struct RouterOptions {
  std::vector<std::string> api_keys;      // any of them opens; none: open to all
  std::vector<std::string> cors_origins;  // "*" or origins of pages that may use the server from a browser
  bool loopback = true;                   // reached from this machine only: Host must name it
  std::string host;                       // what the server is bound to
  bool change_adapters = true;            // POST and DELETE on /v1/adapters
  std::string version;
  /// One line of a log per request, when it has been answered.
  std::function<void(const HttpRequest& request, int status, double seconds)> log = {};
};

/// Answers requests of all dialects. Thread-safe; all it is given must outlive it.
class Router {
 public:
  Router(ModelService& service, Metrics& metrics, RouterOptions options);

  void handle(std::shared_ptr<HttpExchange> exchange);

  /// An error in the dialect of the request's path.
  HttpResponse error(const HttpRequest& request, const ApiError& error) const;

  /// Where the numbers of connections come from; the transport is made after the router.
  void set_transport(std::function<HttpStats()> stats) { transport_ = std::move(stats); }

 private:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  struct Route {
    std::string method;
    std::string path;  // ends in "/": whatever is below it, too
    Handler handler;
    bool open = false;  // without an API key
  };

  void add(std::string method, std::string path, Handler handler, bool open = false);
  bool allowed(const HttpRequest& request) const;
  bool same_site(const HttpRequest& request) const;
  bool origin_allowed(std::string_view origin) const;
  Headers cors_headers(const HttpRequest& request) const;
  std::string stats_text() const;
  void refresh_gauges() const;

  ModelService& service_;
  Metrics& metrics_;
  RouterOptions options_;
  std::shared_ptr<ResponseStore> store_;
  std::function<HttpStats()> transport_;
  std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::vector<Route> routes_;
};

}  // namespace carat::server

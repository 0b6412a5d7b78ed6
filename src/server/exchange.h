// One HTTP request and its answer: the seam between the transport (http_server.h) and what answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carat::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models/x": percent-decoded, without the query
  std::string query;   // "a=1&b=2": as it came
  Headers headers;
  std::string body;
  std::string peer;  // address of the client
  std::string id;    // X-Request-Id as it came, where it is short and harmless, else a new one

  /// The first header of that name, case aside; empty when there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers = {};
};

/// The answer to one request: either one respond(), or begin_events(), any number of write(), end(). All members may be
/// called from any thread, return at once, and are harmless once the client is gone: what is written then is dropped.
/// An exchange whose last reference goes away unanswered ends with status 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  virtual void respond(HttpResponse response) = 0;

  /// Starts a stream of server-sent events (status 200, text/event-stream). While nothing is written for some seconds
  /// the transport sends comments, so that proxies and clients see a living connection.
  virtual void begin_events(Headers headers = {}) = 0;
  /// Appends text to the stream: one or more whole events.
  virtual void write(std::string text) = 0;
  /// Ends the stream.
  virtual void end() = 0;

  /// The client has left, or is so slow that it counts as gone.
  virtual bool gone() const = 0;
  /// Calls `action` once, soon, when the client leaves before the answer is complete; at once when it is gone already.
  virtual void on_gone(std::function<void()> action) = 0;
};

/// Answers requests. Called on a thread of the transport, which it must not hold up: long work goes elsewhere, with the
/// exchange. May throw: the client then gets status 500.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

}  // namespace carat::server

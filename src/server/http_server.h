// HTTP/1.1 over TCP, optionally TLS, on Boost.Beast.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/exchange.h"

namespace carat::server {

struct HttpOptions {
  std::string host = "127.0.0.1";  // a name (all its addresses) or an address; "::" takes IPv4 as well
  uint16_t port = 8080;            // 0: any free one
  std::string tls_certificate;     // PEM files (the certificate with its chain); both or neither
  std::string tls_key;
  int threads = 1;
  size_t max_connections = 4096;  // more get status 503
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_body_bytes = size_t{64} << 20;
  std::chrono::milliseconds header_timeout{15'000};    // from the first byte of a request to the end of its headers
  std::chrono::milliseconds body_timeout{60'000};      // from there to the end of its body
  std::chrono::milliseconds idle_timeout{75'000};      // of a kept-alive connection between requests
  std::chrono::milliseconds write_timeout{60'000};     // without any progress
  std::chrono::milliseconds comment_interval{10'000};  // of silence in a stream of events
  size_t max_backlog = size_t{8} << 20;  // unsent bytes of a stream beyond which its client counts as gone
};

/// Makes the answer to a request that the transport itself refuses: malformed, too large, too slow, or whose handler
/// failed. `request` has what is known of it: always an id. Called on threads of the transport; should not throw.
using ErrorPage = std::function<HttpResponse(const HttpRequest& request, int status, const std::string& message)>;

struct HttpStats {
  size_t connections = 0;  // open now
  size_t streams = 0;      // of them: streaming events
  uint64_t accepted = 0;
  uint64_t refused = 0;  // requests and connections that the transport itself refused
};

/// Listens as soon as it exists. Handlers run on its threads, which get no signals. All members may be called from any
/// thread, wait() and the destructor from any but those.
///
/// A client that closes its side of the connection before its answer is complete counts as gone, even if it could still
/// read. Exchanges may outlive the server; their clients are gone then.
class HttpServer {
 public:
  /// Throws Error naming the address when it cannot be listened on, or the file of a certificate that cannot be used.
  HttpServer(const HttpOptions& options, HttpHandler handler, ErrorPage error_page);
  /// Closes everything at once: clients that wait are gone, their actions have been called.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

  /// Stops listening; connections end with their current answer, idle ones at once. Returns at once.
  void drain();
  /// Waits until no connection is left, at most that long. Returns whether none is.
  bool wait(std::chrono::milliseconds at_most);

  HttpStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat::server

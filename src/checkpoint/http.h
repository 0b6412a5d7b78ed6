// One HTTP(S) GET with redirects followed by hand, so that a token goes to the host it belongs to and to no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carat {

/// The network or the server failed in a way that may pass: no connection, a broken transfer, 408, 429, 5xx.
class TransientError : public Error {
 public:
  TransientError(const std::string& sentence, int wait_seconds = 0) : Error(sentence), wait_seconds_(wait_seconds) {}
  /// What the server asked for by Retry-After; 0 when it did not.
  int wait_seconds() const { return wait_seconds_; }

 private:
  int wait_seconds_;
};

struct HttpReply {
  int status = 0;                              // of the last hop
  std::string url;                             // of the last hop
  std::map<std::string, std::string> headers;  // of the last hop, names in lower case
  std::map<std::string, std::string> linked;   // x-linked-* of any hop: what a hub says about a file before redirecting
  std::string error_text;                      // the first KiB of a body with status >= 400

  /// A header of the last hop, or "".
  std::string header(const std::string& name) const;
};

struct HttpRequest {
  std::string url;    // http or https
  std::string token;  // sent as a bearer token to the origin (scheme, host, port) of `token_url` only; empty: none
  std::string token_url;
  uint64_t offset = 0;  // > 0 asks for the bytes from here on; the server may answer 200 with all of them
  /// Called once when the final reply is 2xx, before its body. May throw to give up.
  std::function<void(const HttpReply&)> on_start;
  /// The body of a 2xx reply as it arrives. May throw to give up.
  std::function<void(std::span<const std::byte>)> on_body;
};

/// Performs the request. Replies with any status below 500 other than 408 and 429 are returned. Throws TransientError
/// (see there), Error for a bad URL or redirect, and whatever the callbacks throw. Proxy variables (https_proxy …) and
/// certificate variables (CURL_CA_BUNDLE, SSL_CERT_FILE, REQUESTS_CA_BUNDLE) are honoured. Thread-safe.
HttpReply http_get(const HttpRequest& request);

/// "a b/c" with everything outside the unreserved characters and '/' percent-encoded; '/' too when `slash` is set.
std::string url_encode(std::string_view text, bool slash = false);
/// "scheme://host:port" in lower case. Throws Error for anything that is not an http(s) URL.
std::string url_origin(const std::string& url);

}  // namespace carat

// Reads one request from bytes as they come: the parser of Boost.Beast with the checks that it leaves to its user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/exchange.h"

namespace carat::server {

struct RequestLimits {
  size_t header_bytes = 0;  // request line and headers
  size_t body_bytes = 0;    // decoded
};

class RequestReader {
 public:
  enum class State : uint8_t { kHeaders, kBody, kComplete, kFailed };

  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes from the front of `input` what it can; what is left belongs to the next request (kComplete) or waits for
  /// more bytes. Stops behind the headers once, so that the caller can answer an expectation.
  State read(std::string& input);
  State state() const;
  /// A byte of the request has come; empty lines before it do not count.
  bool begun() const;

  /// The headers have come, and the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const;
  /// The client would send another request on the connection. Valid from kBody on.
  bool keep_alive() const;
  /// The client understands chunked answers. Valid from kBody on.
  bool is_http11() const;

  /// Why it failed: a status and a sentence.
  int error_status() const;
  const std::string& error_message() const;

  /// The request; as much as is known of it when it is not complete. Its id is the client's or a new one; `peer` is
  /// empty.
  HttpRequest take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat::server

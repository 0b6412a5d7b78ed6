// The text of HTTP: what may stand in a request's target and id, and how the head of an answer is written. Pure
// functions.
#pragma once

#include <cstddef>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "server/exchange.h"

namespace carat::server {

/// Whether two names of headers are the same: case aside.
bool same_name(std::string_view a, std::string_view b);

struct Target {
  std::string path;   // percent-decoded
  std::string query;  // as it came, without the '?'
};

/// Takes apart the target of a request: "/path?query", "http://host/path?query" or "*". None when it is neither of
/// them, has a bad escape or a fragment, or its decoded path has a control character or is not UTF-8.
std::optional<Target> parse_target(std::string_view target);

/// Whether a client's X-Request-Id may be taken over: 1 to 128 of the characters A-Z a-z 0-9 . _ -.
bool is_request_id(std::string_view id);

/// 32 random hexadecimal digits. Any thread may call it.
std::string make_request_id();

/// "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(std::time_t time);

/// "Not Found" for 404; "Status" for a number that has no phrase.
std::string_view reason_phrase(int status);

/// Whether an answer of this status has neither a body nor a length.
bool has_no_body(int status);

/// How the end of an answer's body is told.
enum class Framing {
  kNone,     // there is no body
  kLength,   // Content-Length
  kChunked,  // Transfer-Encoding: chunked
  kClose,    // the connection ends
};

struct ResponseHead {
  int status = 200;
  std::string_view content_type;  // empty: no such header
  std::string_view request_id;
  Framing framing = Framing::kLength;
  size_t length = 0;  // of kLength
  bool keep_alive = true;
  std::time_t time = 0;
};

/// The status line and all headers, with the empty line behind them. Of `more` those are left out whose name is not a
/// token or that the head writes itself (Date, Content-Length, …); control characters in values become spaces, so that
/// no value can begin a header of its own.
std::string write_head(const ResponseHead& head, const Headers& more);

/// The line before a chunk of that many bytes.
std::string chunk_line(size_t bytes);

}  // namespace carat::server

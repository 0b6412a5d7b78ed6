#include "server/http_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>

#include "tokenizer/utf8.h"

namespace carat::server {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z');
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return is_alphanumeric(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = utf8_unit(text, at);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    at += unit.length;
  }
  return true;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<std::string> decode_path(std::string_view raw) {
  std::string path;
  path.reserve(raw.size());
  for (size_t at = 0; at < raw.size(); ++at) {
    char c = raw[at];
    if (c == '%') {
      if (raw.size() - at < 3) return std::nullopt;
      const int high = hex_digit(raw[at + 1]);
      const int low = hex_digit(raw[at + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      at += 2;
    }
    if (is_control(c)) return std::nullopt;
    path += c;
  }
  if (!is_utf8(path)) return std::nullopt;
  return path;
}

bool starts_with_scheme(std::string_view target, std::string_view scheme) {
  return target.size() >= scheme.size() && same_name(target.substr(0, scheme.size()), scheme);
}

bool is_written_by_head(std::string_view name) {
  static constexpr std::array kOwn = {"server",     "date",       "x-request-id", "content-length", "transfer-encoding",
                                      "connection", "keep-alive", "trailer",      "upgrade"};
  return std::any_of(kOwn.begin(), kOwn.end(), [&](std::string_view own) { return same_name(own, name); });
}

void append_value(std::string& head, std::string_view value) {
  for (const char c : value) head += is_control(c) && c != '\t' ? ' ' : c;
}

void append_header(std::string& head, std::string_view name, std::string_view value) {
  head += name;
  head += ": ";
  append_value(head, value);
  head += "\r\n";
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<Target> parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!starts_with_scheme(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    if (target.empty()) return std::nullopt;
    const size_t path = target.find_first_of("/?#");
    if (path == 0) return std::nullopt;  // no host
    target.remove_prefix(std::min(path, target.size()));
    if (target.empty()) return Target{"/", ""};
    break;
  }
  if (target == "*") return Target{"*", ""};
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  const size_t question = std::min(target.find('?'), target.size());
  if (question == 0 || target.front() != '/') return std::nullopt;
  std::optional<std::string> path = decode_path(target.substr(0, question));
  if (!path) return std::nullopt;
  return Target{std::move(*path), std::string(target.substr(std::min(question + 1, target.size())))};
}

bool is_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return is_alphanumeric(c) || c == '.' || c == '_' || c == '-';
  });
}

std::string make_request_id() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  const uint64_t high = random();
  const uint64_t low = random();
  return fmt::format("{:016x}{:016x}", high, low);
}

std::string http_date(std::time_t time) {
  // Not strftime, whose names follow the locale.
  static constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[static_cast<size_t>(parts.tm_wday)],
                     parts.tm_mday, kMonths[static_cast<size_t>(parts.tm_mon)], parts.tm_year + 1900, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 507:
      return "Insufficient Storage";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

bool has_no_body(int status) {
  return status < 200 || status == 204 || status == 304;
}

std::string write_head(const ResponseHead& head, const Headers& more) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason_phrase(head.status));
  text.reserve(512);
  append_header(text, "Server", "carat");
  append_header(text, "Date", http_date(head.time));
  append_header(text, "X-Request-Id", head.request_id);
  if (!head.content_type.empty()) append_header(text, "Content-Type", head.content_type);
  if (head.framing == Framing::kLength) append_header(text, "Content-Length", fmt::to_string(head.length));
  if (head.framing == Framing::kChunked) append_header(text, "Transfer-Encoding", "chunked");
  append_header(text, "Connection", head.keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : more) {
    if (!is_token(name) || is_written_by_head(name)) continue;
    if (!head.content_type.empty() && same_name(name, "content-type")) continue;
    append_header(text, name, value);
  }
  text += "\r\n";
  return text;
}

std::string chunk_line(size_t bytes) {
  return fmt::format("{:x}\r\n", bytes);
}

}  // namespace carat::server

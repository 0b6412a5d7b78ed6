#include "checkpoint/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

namespace carat {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kConnectSeconds = 30;
constexpr long kStallSeconds = 60;  // a transfer that moves nothing for so long has broken
constexpr size_t kErrorText = 1024;

struct EasyFree {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct ListFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
struct UrlFree {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Easy = std::unique_ptr<CURL, EasyFree>;
using HeaderList = std::unique_ptr<curl_slist, ListFree>;
using Url = std::unique_ptr<CURLU, UrlFree>;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// For messages: signed redirects carry long secrets behind the question mark.
std::string shown(const std::string& url) {
  return url.substr(0, url.find('?'));
}

Url parse_url(const std::string& text) {
  Url url(curl_url());
  if (!url || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) fail("'{}' is not a URL", text);
  return url;
}

std::string part_of(const Url& url, CURLUPart which) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
  const std::unique_ptr<char, decltype(&curl_free)> owner(text, curl_free);
  return text;
}

std::string redirected(const std::string& from, const std::string& location) {
  const Url url = parse_url(from);
  if (location.empty() || curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK) {
    fail("{} redirects to '{}', which is not a URL", shown(from), shown(location));
  }
  const std::string scheme = part_of(url, CURLUPART_SCHEME);
  if (scheme != "https" && (scheme != "http" || from.starts_with("https:"))) {
    fail("{} redirects to {}, which is less safe; not followed", shown(from), shown(location));
  }
  char* text = nullptr;  // without the default port, so that signatures made over the URL still hold
  if (curl_url_get(url.get(), CURLUPART_URL, &text, 0) != CURLUE_OK) fail("{} redirects to a bad URL", shown(from));
  const std::unique_ptr<char, decltype(&curl_free)> owner(text, curl_free);
  return text;
}

std::optional<std::string> certificate_bundle() {
  for (const char* variable : {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return value;
  }
  return std::nullopt;
}

/// One hop in flight. The callbacks run inside C code, so an exception is kept and thrown again afterwards.
struct Transfer {
  const HttpRequest& request;
  HttpReply& reply;
  bool started = false;
  std::exception_ptr failure;

  void on_header(std::string_view line) {
    line = trimmed(line);
    if (line.starts_with("HTTP/")) {  // also after "100 Continue" or a proxy's reply
      reply.headers.clear();
      const size_t space = line.find(' ');
      reply.status = 0;
      if (space != std::string_view::npos) {
        std::from_chars(line.data() + space + 1, line.data() + line.size(), reply.status);
      }
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string name = lower(line.substr(0, colon));
    const std::string value(trimmed(line.substr(colon + 1)));
    reply.headers[name] = value;
    if (name.starts_with("x-linked-")) reply.linked[name] = value;
  }

  void start() {
    if (started) return;
    started = true;
    if (request.on_start) request.on_start(reply);
  }

  void on_body(std::span<const std::byte> bytes) {
    if (reply.status >= 200 && reply.status < 300) {
      start();
      if (request.on_body) request.on_body(bytes);
    } else if (reply.status >= 400 && reply.error_text.size() < kErrorText) {
      const size_t room = std::min(bytes.size(), kErrorText - reply.error_text.size());
      reply.error_text.append(reinterpret_cast<const char*>(bytes.data()), room);
    }
  }

  template <typename Body>
  size_t guarded(size_t size, const Body& body) {
    try {
      body();
      return size;
    } catch (...) {
      failure = std::current_exception();
      return size == 0 ? 1 : 0;  // anything but `size` makes the library stop
    }
  }

  static size_t header_callback(char* data, size_t, size_t size, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    return transfer->guarded(size, [&] { transfer->on_header({data, size}); });
  }
  static size_t body_callback(char* data, size_t, size_t size, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    return transfer->guarded(size, [&] { transfer->on_body(std::as_bytes(std::span(data, size))); });
  }
};

void perform_hop(CURL* curl, const HttpRequest& request, HttpReply& reply) {
  Transfer transfer{request, reply, false, nullptr};
  HeaderList headers;
  if (!request.token.empty() && url_origin(reply.url) == url_origin(request.token_url)) {
    headers.reset(curl_slist_append(nullptr, ("Authorization: Bearer " + request.token).c_str()));
    if (!headers) fail("no memory for a request");
  }
  const std::string range = fmt::format("{}-", request.offset);
  const auto bundle = certificate_bundle();
  std::array<char, CURL_ERROR_SIZE> message{};
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, reply.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "carat");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message.data());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, Transfer::header_callback);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Transfer::body_callback);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (request.offset > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  if (bundle) curl_easy_setopt(curl, CURLOPT_CAINFO, bundle->c_str());
  const CURLcode code = curl_easy_perform(curl);
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  if (code != CURLE_OK) {
    const std::string why = message[0] != '\0' ? message.data() : curl_easy_strerror(code);
    const std::string sentence = fmt::format("cannot fetch {}: {}", shown(reply.url), why);
    const bool final = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
                       code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT;
    if (final) throw Error(sentence);
    throw TransientError(sentence);
  }
  if (reply.status >= 200 && reply.status < 300) transfer.start();  // a body of no bytes
}

int retry_after(const HttpReply& reply) {
  int seconds = 0;
  const std::string text = reply.header("retry-after");
  std::from_chars(text.data(), text.data() + text.size(), seconds);  // a date is read as 0: the usual waiting then
  return std::clamp(seconds, 0, 120);
}

}  // namespace

std::string HttpReply::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpReply http_get(const HttpRequest& request) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialised != CURLE_OK) fail("cannot start libcurl: {}", curl_easy_strerror(initialised));
  const Easy curl(curl_easy_init());
  if (!curl) fail("no memory for a request");
  url_origin(request.url);  // rejects what is not http(s)
  HttpReply reply;
  reply.url = request.url;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    perform_hop(curl.get(), request, reply);
    const int status = reply.status;
    if (status == 408 || status == 429 || status >= 500) {
      throw TransientError(fmt::format("{} answered with status {}", shown(reply.url), status), retry_after(reply));
    }
    const bool redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    if (!redirect) return reply;
    reply.url = redirected(reply.url, reply.header("location"));
    reply.headers.clear();
    reply.error_text.clear();
  }
  fail("{} redirects more than {} times", request.url, kMaxRedirects);
}

std::string url_encode(std::string_view text, bool slash) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == '.' || c == '~' || (c == '/' && !slash);
    if (plain) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

std::string url_origin(const std::string& url) {
  const Url parsed = parse_url(url);
  const std::string scheme = lower(part_of(parsed, CURLUPART_SCHEME));
  if (scheme != "http" && scheme != "https") fail("'{}' is neither an http nor an https URL", url);
  return fmt::format("{}://{}:{}", scheme, lower(part_of(parsed, CURLUPART_HOST)), part_of(parsed, CURLUPART_PORT));
}

}  // namespace carat

// A client that says exactly what a test wants, on a blocking socket or through TLS.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/exchange.h"
#include "server/http_text.h"

namespace carat::server {

struct ClientAnswer {
  int status = 0;  // 0: the connection ended before there was an answer
  Headers headers;
  std::string body;
  bool complete = false;  // the body came to the end that its headers promise

  std::string header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (same_name(key, name)) return value;
    }
    return {};
  }
};

class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{30};

  /// `receive_buffer`: bytes that the system keeps for the client, 0 for its own choice.
  explicit HttpClient(uint16_t port, int receive_buffer = 0) : HttpClient() {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    connect_to(port);
  }
  /// Connects later.
  HttpClient() {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0) throw std::runtime_error("no socket");
    const int one = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void connect_to(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }

  /// Speaks TLS from here on, at most of that version (0: any). Returns whether the server agreed.
  bool start_tls(int max_version = 0) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (max_version != 0) SSL_CTX_set_max_proto_version(context_.get(), max_version);
    SSL_CTX_set_security_level(context_.get(), 0);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_);
    ERR_clear_error();
    if (SSL_connect(ssl_.get()) == 1) return true;
    ssl_.reset();
    return false;
  }

  /// Returns whether all could be sent.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ssl_ ? SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()))
                                : ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  void shut_down_writing() { shutdown(socket_, SHUT_WR); }

  void close() {
    if (socket_ < 0) return;
    ssl_.reset();
    ::close(socket_);
    socket_ = -1;
  }

  /// Closes without the usual farewell.
  void reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }

  /// Receives more into `unread`. False at the end of the connection, or when nothing came for `patience`.
  bool receive(std::chrono::milliseconds patience = kPatience) {
    if (!ssl_ || SSL_pending(ssl_.get()) == 0) {
      pollfd ask{socket_, POLLIN, 0};
      if (poll(&ask, 1, static_cast<int>(patience.count())) <= 0) return false;
    }
    char buffer[65536];
    const ssize_t got = ssl_ ? SSL_read(ssl_.get(), buffer, sizeof(buffer)) : recv(socket_, buffer, sizeof(buffer), 0);
    if (got <= 0) {
      ended = true;
      return false;
    }
    unread.append(buffer, static_cast<size_t>(got));
    return true;
  }

  /// Whether `text` comes; what is before it and itself are taken away.
  bool read_past(std::string_view text, std::chrono::milliseconds patience = kPatience) {
    for (;;) {
      const size_t at = unread.find(text);
      if (at != std::string::npos) {
        unread.erase(0, at + text.size());
        return true;
      }
      if (!receive(patience)) return false;
    }
  }

  /// Whether the server ends the connection in that time; whatever comes before is dropped.
  bool ends(std::chrono::milliseconds patience = kPatience) {
    const Clock::time_point until = Clock::now() + patience;
    while (!ended && Clock::now() < until) {
      receive(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()));
      unread.clear();
    }
    return ended;
  }

  ClientAnswer read_head() {
    ClientAnswer answer;
    size_t end = 0;
    while ((end = unread.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) return answer;
    }
    const std::string head = unread.substr(0, end + 2);
    unread.erase(0, end + 4);
    if (!head.starts_with("HTTP/1.1 ")) throw std::runtime_error("not HTTP: " + head);
    for (size_t line = head.find("\r\n") + 2; line < head.size();) {
      const size_t line_end = head.find("\r\n", line);
      const size_t colon = head.find(": ", line);
      if (colon == std::string::npos || colon > line_end) throw std::runtime_error("bad header line: " + head);
      answer.headers.emplace_back(head.substr(line, colon - line), head.substr(colon + 2, line_end - colon - 2));
      line = line_end + 2;
    }
    answer.status = std::stoi(head.substr(9, 3));
    return answer;
  }

  /// Reads one chunk of a chunked body; empty at its end. False when the connection ended.
  bool read_chunk(std::string& chunk) {
    size_t line = 0;
    while ((line = unread.find("\r\n")) == std::string::npos) {
      if (!receive()) return false;
    }
    const size_t size = std::stoul(unread.substr(0, line), nullptr, 16);
    while (unread.size() < line + 2 + size + 2) {
      if (!receive()) return false;
    }
    chunk = unread.substr(line + 2, size);
    if (unread.compare(line + 2 + size, 2, "\r\n") != 0) throw std::runtime_error("bad chunk");
    unread.erase(0, line + 2 + size + 2);
    return true;
  }

  ClientAnswer read_answer(bool head_only = false) {
    ClientAnswer answer = read_head();
    if (answer.status == 0) return answer;
    const std::string length = answer.header("content-length");
    if (head_only || has_no_body(answer.status)) {
      answer.complete = true;
    } else if (answer.header("transfer-encoding") == "chunked") {
      std::string chunk;
      while (read_chunk(chunk)) {
        if (chunk.empty()) {
          answer.complete = true;
          break;
        }
        answer.body += chunk;
      }
    } else if (!length.empty()) {
      const size_t size = std::stoul(length);
      while (unread.size() < size && receive()) {
      }
      answer.complete = unread.size() >= size;
      answer.body = unread.substr(0, size);
      unread.erase(0, size);
    } else {
      while (receive()) {
      }
      answer.complete = ended;
      answer.body = std::move(unread);
      unread.clear();
    }
    return answer;
  }

  ClientAnswer ask(std::string_view request) {
    send(request);
    return read_answer(request.starts_with("HEAD "));
  }

  std::string unread;
  bool ended = false;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  int socket_ = -1;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
};

inline std::string get(std::string_view target, std::string_view headers = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", target, headers);
}

inline std::string post(std::string_view target, std::string_view body, std::string_view headers = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{}\r\n{}", target, body.size(), headers,
                     body);
}

}  // namespace carat::server

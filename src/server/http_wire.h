// What a connection reads from and writes to: a socket, with TLS around it or not.
#pragma once

// clang-format off
#include "server/http_asio.h"  // before Asio's own headers
// clang-format on

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace carat::server {

/// One connection's bytes. All members are called on the thread of the socket's context, which also calls `done`, never
/// inside the call that it was given to. Buffers must live until then. At most one operation of each kind at a time.
/// Closing the socket ends them.
class Wire {
 public:
  using Done = std::function<void(const boost::system::error_code& error, size_t bytes)>;
  using Output = std::array<boost::asio::const_buffer, 2>;

  virtual ~Wire() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;
  /// Comes first.
  virtual void handshake(Done done) = 0;
  virtual void read_some(boost::asio::mutable_buffer into, Done done) = 0;
  virtual void write_some(const Output& from, Done done) = 0;
  /// Tells the other side that nothing more will be written.
  virtual void finish(Done done) = 0;
};

std::unique_ptr<Wire> make_plain_wire(boost::asio::ip::tcp::socket socket);

/// TLS 1.2 or newer, with one certificate.
class TlsContext {
 public:
  /// PEM files: the certificate with its chain, and its key. Throws Error naming the file that cannot be used.
  TlsContext(const std::string& certificate, const std::string& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// The context must outlive the wire. Any thread may call it.
  std::unique_ptr<Wire> wrap(boost::asio::ip::tcp::socket socket) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat::server

// clang-format off
#include "server/http_wire.h"  // before Asio's own headers
// clang-format on

#include <openssl/ssl.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

#include "base/error.h"

namespace carat::server {
namespace {

namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class TlsWire : public Wire {
 public:
  TlsWire(tcp::socket socket, ssl::context& context) : stream_(std::move(socket), context) {}

  tcp::socket& socket() override { return stream_.next_layer(); }
  void handshake(Done done) override {
    stream_.async_handshake(ssl::stream_base::server, [done = std::move(done)](ErrorCode error) { done(error, 0); });
  }
  void read_some(boost::asio::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void write_some(const Output& from, Done done) override { stream_.async_write_some(from, std::move(done)); }
  void finish(Done done) override {
    stream_.async_shutdown([done = std::move(done)](ErrorCode error) { done(error, 0); });
  }

 private:
  ssl::stream<tcp::socket> stream_;
};

}  // namespace

struct TlsContext::Impl {
  // Streams of all threads share it and change nothing but its count of references, which is atomic.
  ssl::context context{ssl::context::tls_server};
};

TlsContext::TlsContext(const std::string& certificate, const std::string& key) : impl_(std::make_unique<Impl>()) {
  ssl::context& context = impl_->context;
  SSL_CTX* handle = context.native_handle();
  SSL_CTX_set_min_proto_version(handle, TLS1_2_VERSION);
  SSL_CTX_set_options(handle, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Buffers of 34 KB a connection are given back while nothing is read or written; sessions are not kept.
  SSL_CTX_set_mode(handle, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(handle, SSL_SESS_CACHE_OFF);

  ErrorCode error;
  // A key with a passphrase fails instead of asking for it on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  context.use_certificate_chain_file(certificate, error);
  if (error) fail("The TLS certificate {} cannot be used: {}; expected a PEM file", certificate, error.message());
  context.use_private_key_file(key, ssl::context::pem, error);
  if (error) {
    fail("The TLS key {} cannot be used: {}; expected a PEM file without passphrase, with the key of {}", key,
         error.message(), certificate);
  }
  if (SSL_CTX_check_private_key(handle) != 1) {
    fail("The TLS key {} does not belong to the certificate {}", key, certificate);
  }
}

TlsContext::~TlsContext() = default;

std::unique_ptr<Wire> TlsContext::wrap(tcp::socket socket) const {
  return std::make_unique<TlsWire>(std::move(socket), impl_->context);
}

}  // namespace carat::server

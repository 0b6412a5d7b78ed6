#include "server/http_wire.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace carat::server {
namespace {

using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class PlainWire : public Wire {
 public:
  explicit PlainWire(tcp::socket socket) : socket_(std::move(socket)) {}

  tcp::socket& socket() override { return socket_; }
  void handshake(Done done) override { succeed(std::move(done)); }
  void read_some(boost::asio::mutable_buffer into, Done done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write_some(const Output& from, Done done) override { socket_.async_write_some(from, std::move(done)); }
  void finish(Done done) override {
    ErrorCode ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    succeed(std::move(done));
  }

 private:
  void succeed(Done done) {
    boost::asio::post(socket_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }

  tcp::socket socket_;
};

}  // namespace

std::unique_ptr<Wire> make_plain_wire(tcp::socket socket) {
  return std::make_unique<PlainWire>(std::move(socket));
}

}  // namespace carat::server

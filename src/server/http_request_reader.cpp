#include "server/http_request_reader.h"

#include <fmt/format.h>

#include <boost/beast/http/parser.hpp>
#include <optional>

#include "server/http_text.h"

namespace carat::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using ErrorCode = boost::beast::error_code;

/// A body that takes memory as its bytes come. (Beast's string_body reserves what Content-Length promises, which costs
/// a client nothing.)
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool IsRequest, class Fields>
    reader(http::header<IsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, ErrorCode& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, ErrorCode& error) {
      error = {};
      for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
        const asio::const_buffer buffer = *it;
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return boost::beast::buffer_bytes(buffers);
    }
    void finish(ErrorCode& error) { error = {}; }

   private:
    value_type& body_;
  };
};

std::string text(boost::beast::string_view view) {
  return {view.data(), view.size()};
}

}  // namespace

struct RequestReader::Impl {
  explicit Impl(const RequestLimits& wanted) : limits(wanted) {
    parser.header_limit(static_cast<uint32_t>(std::min<size_t>(limits.header_bytes, UINT32_MAX)));
    parser.body_limit(limits.body_bytes);
    parser.eager(false);  // a step at a time
  }

  State fail(int status, std::string message) {
    error_status = status;
    error_message = std::move(message);
    return state = State::kFailed;
  }

  State fail(ErrorCode error) {
    if (error == http::error::header_limit) return headers_too_large();
    if (error == http::error::body_limit) {
      return fail(413, fmt::format("The body of the request is larger than {} bytes, the most that this server takes.",
                                   limits.body_bytes));
    }
    return fail(400, fmt::format("The request is not valid HTTP: {}.", error.message()));
  }

  State headers_too_large() {
    return fail(431,
                fmt::format("The headers of the request are larger than {} bytes, the most that this server takes.",
                            limits.header_bytes));
  }

  /// Copies what the parser knows. Returns whether the target is one that can be answered.
  bool note_headers() {
    const auto& message = parser.get();
    if (message.target().empty()) return false;
    request.method = text(message.method_string());
    for (const auto& field : message) request.headers.emplace_back(text(field.name_string()), text(field.value()));
    std::optional<Target> target = parse_target({message.target().data(), message.target().size()});
    if (!target) return false;
    request.path = std::move(target->path);
    request.query = std::move(target->query);
    return true;
  }

  /// What Beast has no opinion on.
  State check_headers() {
    const auto& message = parser.get();
    if (!note_headers()) return fail(400, "The target of the request is not a path of valid percent-encoded UTF-8.");
    if (message.version() >= 11 && message.count(http::field::host) != 1) {
      return fail(400, fmt::format("The request has {} Host headers; HTTP/1.1 asks for one.",
                                   message.count(http::field::host)));
    }
    // A body whose end nobody can tell would be read as the next request.
    if (message.count(http::field::transfer_encoding) > 0 && (!parser.chunked() || message.version() < 11)) {
      return fail(501, "The request has a Transfer-Encoding other than chunked.");
    }
    const std::string_view expectation = request.header("expect");
    if (!expectation.empty() && !same_name(expectation, "100-continue")) {
      return fail(417, "The request has an Expect header other than 100-continue.");
    }
    return state = parser.is_done() ? State::kComplete : State::kBody;
  }

  State read_headers(std::string& input) {
    // Empty lines before a request are left over from careless clients' earlier bodies.
    if (!begun) input.erase(0, std::min(input.find_first_not_of("\r\n"), input.size()));
    if (input.empty()) return state;
    begun = true;
    ErrorCode error;
    const size_t taken = parser.put(asio::buffer(input), error);
    header_bytes += taken;
    input.erase(0, taken);
    if (error == http::error::need_more) {
      if (header_bytes + input.size() < limits.header_bytes) return state;
      error = http::error::header_limit;
    }
    if (error) {
      note_headers();  // so that the error can have the shape that its path asks for
      return fail(error);
    }
    return header_bytes > limits.header_bytes ? headers_too_large() : check_headers();
  }

  State read_body(std::string& input) {
    std::string_view rest = input;
    ErrorCode error;
    while (!rest.empty() && !error && !parser.is_done()) {
      const size_t before = parser.get().body().size();
      const size_t taken = parser.put(asio::buffer(rest), error);  // one chunk, or one line before a chunk, …
      rest.remove_prefix(taken);
      const bool is_body = parser.get().body().size() > before;
      // … of which Beast bears any length.
      const size_t framing = error == http::error::need_more ? rest.size() : taken;
      if (!is_body && framing > limits.header_bytes) {
        return fail(400, "A chunk of the request's body has a header or trailers that are too large.");
      }
    }
    input.erase(0, input.size() - rest.size());
    if (error && error != http::error::need_more) return fail(error);
    return state = parser.is_done() ? State::kComplete : State::kBody;
  }

  const RequestLimits limits;
  http::request_parser<GrowingBody> parser;
  State state = State::kHeaders;
  bool begun = false;
  size_t header_bytes = 0;  // taken so far
  HttpRequest request;
  int error_status = 0;
  std::string error_message;
};

RequestReader::RequestReader(const RequestLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestReader::~RequestReader() = default;

RequestReader::State RequestReader::read(std::string& input) {
  switch (impl_->state) {
    case State::kHeaders:
      return impl_->read_headers(input);
    case State::kBody:
      return impl_->read_body(input);
    case State::kComplete:
    case State::kFailed:
      break;
  }
  return impl_->state;
}

RequestReader::State RequestReader::state() const {
  return impl_->state;
}

bool RequestReader::begun() const {
  return impl_->begun;
}

bool RequestReader::expects_continue() const {
  return impl_->state == State::kBody && is_http11() && !impl_->request.header("expect").empty();
}

bool RequestReader::keep_alive() const {
  return impl_->parser.get().keep_alive();
}

bool RequestReader::is_http11() const {
  return impl_->parser.get().version() >= 11;
}

int RequestReader::error_status() const {
  return impl_->error_status;
}

const std::string& RequestReader::error_message() const {
  return impl_->error_message;
}

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(impl_->request);
  if (impl_->state == State::kComplete) request.body = std::move(impl_->parser.get().body());
  const std::string_view id = request.header("x-request-id");
  request.id = is_request_id(id) ? std::string(id) : make_request_id();
  return request;
}

}  // namespace carat::server

// Requests as a socket delivers them. The first byte says in how large pieces the rest arrives; what is made of it does
// not depend on that, and keeps the limits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_request_reader.h"
#include "server/http_text.h"

namespace {

using carat::server::HttpRequest;
using carat::server::RequestReader;
using State = RequestReader::State;

constexpr carat::server::RequestLimits kLimits{512, 1024};

void check(bool holds) {
  if (!holds) __builtin_trap();
}

/// All requests of a connection, up to the first that fails.
std::vector<HttpRequest> read_all(std::string_view text, size_t piece) {
  std::vector<HttpRequest> requests;
  std::string input;
  for (;;) {
    RequestReader reader(kLimits);
    for (;;) {
      const State before = reader.state();
      const State state = reader.read(input);
      if (state == State::kComplete || state == State::kFailed) break;
      if (state != before && !input.empty()) continue;
      check(input.size() <= kLimits.header_bytes + 256);
      if (text.empty()) return requests;
      input += text.substr(0, piece);
      text.remove_prefix(std::min(piece, text.size()));
    }
    if (reader.state() == State::kFailed) {
      check(reader.error_status() >= 400 && !reader.error_message().empty());
      reader.take();
      return requests;
    }
    requests.push_back(reader.take());
    const HttpRequest& request = requests.back();
    check(request.body.size() <= kLimits.body_bytes);
    check(request.path == "*" || request.path.starts_with('/'));
    check(carat::server::is_request_id(request.id));
    // No header of an answer can be forged with what a request holds.
    const std::string head = carat::server::write_head({.content_type = request.query, .request_id = request.id},
                                                       {{request.path, request.body}, {"X", request.path}});
    check(head.find("\r\n\r\n") == head.size() - 4);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::vector<HttpRequest> whole = read_all(text, 256);
  const std::vector<HttpRequest> parts = read_all(text, size_t{1} + data[0] % 256);
  check(whole.size() == parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    check(whole[i].method == parts[i].method && whole[i].path == parts[i].path && whole[i].query == parts[i].query);
    check(whole[i].headers == parts[i].headers && whole[i].body == parts[i].body);
  }
  return 0;
}

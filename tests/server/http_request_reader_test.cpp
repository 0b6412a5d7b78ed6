#include "server/http_request_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "http_client.h"
#include "server/http_text.h"

namespace carat::server {
namespace {

using State = RequestReader::State;
constexpr RequestLimits kLimits{1024, 4096};

struct Outcome {
  State state = State::kHeaders;
  int status = 0;
  HttpRequest request;
  std::string left;
};

/// Feeds the text in pieces of that many bytes.
Outcome read_in_pieces(std::string_view text, size_t piece, const RequestLimits& limits = kLimits) {
  RequestReader reader(limits);
  Outcome outcome;
  std::string input;
  while (!text.empty() || !input.empty()) {
    const size_t bytes = std::min(piece, text.size());
    input += text.substr(0, bytes);
    text.remove_prefix(bytes);
    State before = outcome.state;
    size_t size = input.size();
    for (;;) {
      outcome.state = reader.read(input);
      if (outcome.state == before && input.size() == size) break;
      before = outcome.state;
      size = input.size();
    }
    if (outcome.state == State::kComplete || outcome.state == State::kFailed || text.empty()) break;
  }
  outcome.status = reader.error_status();
  outcome.left = input + std::string(text);
  outcome.request = reader.take();
  return outcome;
}

int status_of(std::string_view text) {
  return read_in_pieces(text, text.size()).status;
}

TEST(HttpRequestReader, PiecesMakeNoDifference) {
  const std::string after = "GET /next HTTP/1.1\r\n";
  const std::vector<std::string> texts = {
      get("/a%20b?c=d", "X-One: 1\r\nx-two:  2 \r\n"),
      post("/v1/chat", R"({"a":1})", "Content-Type: application/json\r\n"),
      "\r\n\r\nPOST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n "
      "world\r\n0\r\nT: 1\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET / HTTP/1.0\r\n\r\n",
  };
  for (const std::string& text : texts) {
    const Outcome whole = read_in_pieces(text + after, 100000);
    ASSERT_EQ(whole.state, State::kComplete) << text;
    EXPECT_EQ(whole.left, after);
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      const Outcome parts = read_in_pieces(text + after, piece);
      ASSERT_EQ(parts.state, State::kComplete) << piece << " " << text;
      EXPECT_EQ(parts.request.method, whole.request.method);
      EXPECT_EQ(parts.request.path, whole.request.path);
      EXPECT_EQ(parts.request.query, whole.request.query);
      EXPECT_EQ(parts.request.headers, whole.request.headers);
      EXPECT_EQ(parts.request.body, whole.request.body);
      EXPECT_EQ(parts.left, whole.left);
    }
  }
  EXPECT_EQ(read_in_pieces(texts[2], 3).request.body, "hello world");
}

TEST(HttpRequestReader, MalformedRequestsAreRefused) {
  const std::string host = "Host: a\r\n\r\n";
  for (const std::string& text : {
           std::string("nonsense\r\n\r\n"),
           "GET / HTTP/2.0\r\n" + host,
           "GET  / HTTP/1.1\r\n" + host,
           "GET /\r\n" + host,
           "G(T / HTTP/1.1\r\n" + host,
           "GET /\x01 HTTP/1.1\r\n" + host,
           std::string("GET / HTTP/1.1\r\n\r\n"),  // no host
           "GET / HTTP/1.1\r\nHost: a\r\n" + host,
           "GET / HTTP/1.1\r\nX : 1\r\n" + host,
           "GET / HTTP/1.1\r\nX\r\n" + host,
           "GET / HTTP/1.1\r\nX: a\x01\r\n" + host,
           "GET /%zz HTTP/1.1\r\n" + host,
           "CONNECT host:1 HTTP/1.1\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: x\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: -1\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n" + host,
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n" + host,
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + "zz\r\n",
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + "3\r\nabcd\r\n0\r\n\r\n",
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + "ffffffffffffffffff\r\n",
       }) {
    for (const size_t piece : {size_t{1}, text.size()}) {
      const Outcome outcome = read_in_pieces(text, piece);
      EXPECT_EQ(outcome.state, State::kFailed) << text;
      EXPECT_EQ(outcome.status, 400) << text;
    }
  }
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + host), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n" + host), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + host), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nExpect: a miracle\r\nContent-Length: 3\r\n" + host), 417);
}

TEST(HttpRequestReader, HeadersHaveALimit) {
  const auto sized = [](size_t bytes) {
    const std::string bare = get("/", "X: \r\n");
    return get("/", "X: " + std::string(bytes - bare.size(), 'x') + "\r\n");
  };
  for (const size_t piece : {size_t{1}, size_t{100}, size_t{100000}}) {
    EXPECT_EQ(read_in_pieces(sized(kLimits.header_bytes), piece).state, State::kComplete) << piece;
    EXPECT_EQ(read_in_pieces(sized(kLimits.header_bytes + 1), piece).status, 431) << piece;
    // What has no end is not waited for.
    EXPECT_EQ(read_in_pieces("GET /" + std::string(5000, 'a'), piece).status, 431) << piece;
    EXPECT_EQ(read_in_pieces("GET / HTTP/1.1\r\nX: " + std::string(5000, 'a'), piece).status, 431) << piece;
    std::string many = "GET / HTTP/1.1\r\n";
    for (int i = 0; i < 1000; ++i) many += "X: y\r\n";
    EXPECT_EQ(read_in_pieces(many, piece).status, 431) << piece;
  }
}

TEST(HttpRequestReader, BodiesHaveALimit) {
  const std::string body(kLimits.body_bytes, 'x');
  EXPECT_EQ(read_in_pieces(post("/", body), 1000).request.body, body);
  // Before a byte of the body is there; the path is known all the same.
  const Outcome outcome = read_in_pieces("POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4097\r\n\r\n", 1000);
  EXPECT_EQ(outcome.status, 413);
  EXPECT_EQ(outcome.request.path, "/v1/x");
  EXPECT_EQ(outcome.request.method, "POST");

  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(head + "1001\r\n"), 413);
  std::string many = head;
  for (size_t i = 0; i < kLimits.body_bytes; ++i) many += "1\r\nx\r\n";
  EXPECT_EQ(read_in_pieces(many + "0\r\n\r\n", 1000).request.body, body);
  EXPECT_EQ(read_in_pieces(many + "1\r\nx\r\n0\r\n\r\n", 1000).status, 413);
  // Neither may what stands around the chunks be endless.
  EXPECT_EQ(read_in_pieces(head + "1;" + std::string(100000, 'x'), 500).status, 400);
  EXPECT_EQ(read_in_pieces(head + "0\r\nX: " + std::string(100000, 'x'), 500).status, 400);
  std::string trailers = head + "0\r\n";
  for (int i = 0; i < 10000; ++i) trailers += "X: y\r\n";
  EXPECT_EQ(read_in_pieces(trailers, 500).status, 400);
}

TEST(HttpRequestReader, TrailersAreNotHeaders) {
  const std::string text =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: Bearer x\r\n\r\n";
  const Outcome outcome = read_in_pieces(text, 7);
  EXPECT_EQ(outcome.state, State::kComplete);
  EXPECT_EQ(outcome.request.header("authorization"), "");
}

TEST(HttpRequestReader, KnowsWhoWaitsForLeave) {
  RequestReader reader(kLimits);
  std::string input = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nexpect: 100-Continue\r\n\r\n";
  EXPECT_FALSE(reader.begun());
  EXPECT_EQ(reader.read(input), State::kBody);
  EXPECT_TRUE(reader.begun());
  EXPECT_TRUE(reader.expects_continue());
  input = "ok";
  EXPECT_EQ(reader.read(input), State::kComplete);
  EXPECT_FALSE(reader.expects_continue());
  EXPECT_EQ(reader.take().body, "ok");
}

TEST(HttpRequestReader, KeepsTheConnectionAsTheVersionSays) {
  const auto keeps = [](std::string input) {
    RequestReader reader(kLimits);
    EXPECT_EQ(reader.read(input), State::kComplete);
    return reader.keep_alive();
  };
  EXPECT_TRUE(keeps(get("/")));
  EXPECT_FALSE(keeps(get("/", "Connection: close\r\n")));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
}

TEST(HttpRequestReader, TakesOverHarmlessIdsOnly) {
  EXPECT_EQ(read_in_pieces(get("/", "X-Request-Id: abc-1\r\n"), 100).request.id, "abc-1");
  const std::string made = read_in_pieces(get("/", "X-Request-Id: <script>\r\n"), 100).request.id;
  EXPECT_TRUE(is_request_id(made));
  EXPECT_EQ(made.size(), 32U);
}

}  // namespace
}  // namespace carat::server

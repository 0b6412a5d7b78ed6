// Streams of events, and clients that leave.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "http_client.h"
#include "http_test_server.h"

namespace carat::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// A client whose stream of events has begun.
struct Stream {
  explicit Stream(TestServer& server, int receive_buffer = 0) : client(server.port(), receive_buffer) {
    client.send(get("/later"));
    exchange = server.inbox.take();
    exchange->begin_events();
    head = client.read_head();
  }

  std::string chunk() {
    std::string text;
    return client.read_chunk(text) ? text : "the connection ended";
  }

  HttpClient client;
  std::shared_ptr<HttpExchange> exchange;
  ClientAnswer head;
};

TEST(HttpStream, HasItsHeadersBeforeItsEvents) {
  TestServer server;
  HttpClient client(server.port());
  client.send(get("/later", "X-Request-Id: abc\r\n"));
  const auto exchange = server.inbox.take();
  exchange->begin_events({{"X-Own", "1"}, {"Transfer-Encoding", "none"}});
  const ClientAnswer head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(head.header("Cache-Control"), "no-cache");
  EXPECT_EQ(head.header("X-Accel-Buffering"), "no");
  EXPECT_EQ(head.header("Connection"), "keep-alive");
  EXPECT_EQ(head.header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(head.header("X-Request-Id"), "abc");
  EXPECT_EQ(head.header("Server"), "carat");
  EXPECT_EQ(head.header("X-Own"), "1");
  EXPECT_NE(head.header("Date"), "");
  EXPECT_EQ(server.server->stats().streams, 1U);
  std::string chunk;
  for (int i = 0; i < 50; ++i) {
    const std::string event = fmt::format("data: {}\n\n", i);
    exchange->write(event);
    ASSERT_TRUE(client.read_chunk(chunk));
    EXPECT_EQ(chunk, event);
  }
  exchange->end();
  ASSERT_TRUE(client.read_chunk(chunk));
  EXPECT_EQ(chunk, "");
  // The connection takes the next request.
  EXPECT_EQ(client.ask(get("/echo")).status, 200);
  EXPECT_EQ(server.server->stats().streams, 0U);
  EXPECT_EQ(server.server->stats().accepted, 1U);
  EXPECT_FALSE(exchange->gone());
}

TEST(HttpStream, WritesThatWaitShareAChunk) {
  TestServer server;
  server.scripted = [](const auto& exchange) {
    exchange->begin_events();
    for (int i = 0; i < 100; ++i) exchange->write(fmt::format("data: {}\n\n", i));
    exchange->write("");
    exchange->end();
    exchange->write("data: late\n\n");
    exchange->end();
    exchange->respond({500, "text/plain", "late"});
    exchange->begin_events();
  };
  std::string all;
  for (int i = 0; i < 100; ++i) all += fmt::format("data: {}\n\n", i);
  HttpClient client(server.port());
  client.send(get("/scripted") + get("/echo"));
  client.read_head();
  std::string chunk;
  ASSERT_TRUE(client.read_chunk(chunk));
  EXPECT_EQ(chunk, all);
  ASSERT_TRUE(client.read_chunk(chunk));
  EXPECT_EQ(chunk, "");
  EXPECT_EQ(client.read_answer().body, "GET||127.0.0.1|");
}

TEST(HttpStream, WhatComesInTheWrongOrderIsDropped) {
  TestServer server;
  server.scripted = [](const auto& exchange) {
    exchange->write("data: early\n\n");
    exchange->end();
    exchange->respond({200, "text/plain", "first"});
    exchange->respond({200, "text/plain", "second"});
    exchange->begin_events();
    exchange->write("data: late\n\n");
  };
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ask(get("/scripted")).body, "first");
}

TEST(HttpStream, SilenceIsFilledWithComments) {
  HttpOptions options;
  options.comment_interval = milliseconds(100);
  TestServer server(options);
  Stream stream(server);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream.chunk(), ": keep-alive\n\n");
  EXPECT_GE(Clock::now() - start, milliseconds(250));
  // Not where there is none.
  for (int i = 0; i < 10; ++i) {
    stream.exchange->write("data\n\n");
    std::string chunk = stream.chunk();
    if (chunk[0] == ':') chunk = stream.chunk();  // on a machine that is busy elsewhere
    EXPECT_EQ(chunk, "data\n\n");
    std::this_thread::sleep_for(milliseconds(10));
  }
  stream.exchange->end();
  // Nor after the end.
  EXPECT_FALSE(stream.client.read_past(": keep-alive", milliseconds(250)));
}

TEST(HttpStream, AnAbandonedStreamIsCut) {
  TestServer server;
  Stream stream(server);
  stream.exchange->write("data: 1\n\n");
  stream.exchange.reset();
  EXPECT_EQ(stream.chunk(), "data: 1\n\n");
  std::string chunk;
  EXPECT_FALSE(stream.client.read_chunk(chunk));  // no end mark
  EXPECT_TRUE(stream.client.ended);
  EXPECT_EQ(server.server->stats().streams, 0U);
}

TEST(HttpStream, ThreadsMayWriteTogether) {
  TestServer server;
  Stream stream(server);
  constexpr int kThreads = 4;
  constexpr int kEvents = 500;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEvents; ++i) stream.exchange->write(fmt::format("{} {}\n\n", t, i));
      });
    }
  }
  stream.exchange->end();
  std::string all;
  for (std::string chunk = stream.chunk(); !chunk.empty(); chunk = stream.chunk()) all += chunk;
  std::vector<int> next(kThreads, 0);
  size_t events = 0;
  for (size_t at = 0; at < all.size(); ++events) {
    const size_t end = all.find("\n\n", at);
    ASSERT_NE(end, std::string::npos);
    int thread = 0;
    int number = 0;
    ASSERT_EQ(std::sscanf(all.c_str() + at, "%d %d", &thread, &number), 2);
    EXPECT_EQ(number, next.at(static_cast<size_t>(thread))++);
    at = end + 2;
  }
  EXPECT_EQ(events, size_t{kThreads} * kEvents);
}

/// How clients leave.
enum class Leave { kClose, kReset, kHalfClose };

void leave(HttpClient& client, Leave how) {
  switch (how) {
    case Leave::kClose:
      client.close();
      break;
    case Leave::kReset:
      client.reset();
      break;
    case Leave::kHalfClose:
      client.shut_down_writing();
      break;
  }
}

class HttpGone : public testing::TestWithParam<Leave> {};

TEST_P(HttpGone, IsNoticedInASilentStream) {
  TestServer server;
  Stream stream(server);
  std::atomic<int> actions{0};
  stream.exchange->on_gone([&] { ++actions; });
  stream.exchange->on_gone([&] { ++actions; });
  stream.exchange->on_gone([] { throw std::runtime_error("ignored"); });
  EXPECT_FALSE(stream.exchange->gone());
  const Clock::time_point start = Clock::now();
  leave(stream.client, GetParam());
  EXPECT_TRUE(eventually([&] { return actions == 2; }));
  EXPECT_LT(Clock::now() - start, milliseconds(5000));  // long before the first comment
  EXPECT_TRUE(stream.exchange->gone());
  stream.exchange->on_gone([&] { ++actions; });  // at once
  EXPECT_EQ(actions, 3);
  stream.exchange->write("data\n\n");
  stream.exchange->end();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
  EXPECT_EQ(server.server->stats().streams, 0U);
}

TEST_P(HttpGone, IsNoticedWhileAnAnswerIsMade) {
  TestServer server;
  HttpClient client(server.port());
  client.send(post("/later", "x"));
  const auto exchange = server.inbox.take();
  std::atomic<int> actions{0};
  exchange->on_gone([&] { ++actions; });
  leave(client, GetParam());
  EXPECT_TRUE(eventually([&] { return actions == 1; }));
  EXPECT_TRUE(exchange->gone());
  exchange->respond({200, "text/plain", "nobody hears"});
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST_P(HttpGone, IsNoticedBehindRequestsSentAhead) {
  TestServer server;
  HttpClient client(server.port());
  client.send(get("/later"));
  const auto exchange = server.inbox.take();
  // More than the server reads ahead, and little enough that the end of the connection still fits into the system's
  // buffers.
  for (int i = 0; i < 100; ++i) client.send(get("/echo", "X: " + std::string(950, 'x') + "\r\n"));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(exchange->gone());
  leave(client, GetParam());
  EXPECT_TRUE(eventually([&] { return exchange->gone(); }));
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST_P(HttpGone, IsNoticedInABusyStream) {
  TestServer server;
  Stream stream(server);
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    while (!stop) {
      stream.exchange->write("data: something\n\n");
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  stream.chunk();
  leave(stream.client, GetParam());
  EXPECT_TRUE(eventually([&] { return stream.exchange->gone(); }));
  stop = true;
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

INSTANTIATE_TEST_SUITE_P(Ways, HttpGone, testing::Values(Leave::kClose, Leave::kReset, Leave::kHalfClose));

TEST(HttpStream, ActionsOfCompleteAnswersAreNotCalled) {
  TestServer server;
  std::atomic<int> actions{0};
  auto token = std::make_shared<int>(0);
  {
    Stream stream(server);
    stream.exchange->on_gone([&actions, token] { ++actions; });
    stream.exchange->end();
    EXPECT_EQ(stream.chunk(), "");
    EXPECT_TRUE(eventually([&] { return token.use_count() == 1; }));  // given up
    stream.exchange->on_gone([&] { ++actions; });
    stream.client.close();
    EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
    EXPECT_FALSE(stream.exchange->gone());
    stream.exchange->on_gone([&] { ++actions; });
  }
  EXPECT_EQ(actions, 0);
}

TEST(HttpStream, ActionsMayUseTheExchange) {
  TestServer server;
  Stream stream(server);
  std::atomic<bool> called{false};
  stream.exchange->on_gone([&, exchange = stream.exchange] {
    exchange->write("data\n\n");
    exchange->end();
    exchange->on_gone([&] { called = exchange->gone(); });
  });
  stream.client.close();
  EXPECT_TRUE(eventually([&] { return called.load(); }));
}

TEST(HttpStream, AClientThatDoesNotReadIsGone) {
  HttpOptions options;
  options.max_backlog = 1'000'000;
  TestServer server(options);
  Stream stream(server, 4096);
  std::atomic<int> actions{0};
  stream.exchange->on_gone([&] { ++actions; });
  // Slowly enough that the connection is stuck in a write when the last one comes.
  const std::string event(300'000, 'x');
  size_t written = 0;
  while (!stream.exchange->gone() && written < 100'000'000) {
    stream.exchange->write(event);
    written += event.size();
    std::this_thread::sleep_for(milliseconds(30));
  }
  EXPECT_TRUE(stream.exchange->gone());
  EXPECT_GT(written, options.max_backlog);
  EXPECT_LT(written, options.max_backlog + 20'000'000);   // what the system holds, and what was sent before
  EXPECT_TRUE(eventually([&] { return actions == 1; }));  // long before the limit on writes
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpStream, ALargeStreamOfAReaderIsNoBacklog) {
  HttpOptions options;
  options.max_backlog = 100'000;
  TestServer server(options);
  Stream stream(server);
  const std::string event(50'000, 'x');
  for (int i = 0; i < 200; ++i) {
    stream.exchange->write(event);
    size_t got = 0;
    while (got < event.size()) {
      const std::string chunk = stream.chunk();
      ASSERT_EQ(chunk[0], 'x');
      got += chunk.size();
    }
  }
  EXPECT_FALSE(stream.exchange->gone());
}

TEST(HttpStream, TheServerMayGoFirst) {
  for (int threads = 1; threads <= 2; ++threads) {
    std::vector<std::shared_ptr<HttpExchange>> kept;
    std::vector<std::unique_ptr<HttpClient>> clients;
    std::atomic<int> gone{0};
    HttpOptions options;
    options.threads = threads;
    TestServer server(options);
    for (int i = 0; i < 20; ++i) {
      clients.push_back(std::make_unique<HttpClient>(server.port(), i % 5 == 4 ? 4096 : 0));
      clients.back()->send(i % 5 == 3 ? "GET /echo HTTP/1.1\r\n" : get("/later"));
      if (i % 5 == 3) continue;
      kept.push_back(server.inbox.take());
      kept.back()->on_gone([&] { ++gone; });
      if (i % 2 == 0) kept.back()->begin_events();
      if (i % 4 == 0) kept.back()->write(std::string(1'000'000, 'x'));  // more than the sockets take
    }
    const Clock::time_point start = Clock::now();
    server.server.reset();
    EXPECT_LT(Clock::now() - start, milliseconds(10'000));
    EXPECT_EQ(gone, static_cast<int>(kept.size()));
    for (const auto& client : clients) EXPECT_TRUE(client->ends());
    for (const auto& exchange : kept) {
      EXPECT_TRUE(exchange->gone());
      exchange->begin_events();
      exchange->write("data\n\n");
      exchange->end();
      exchange->respond({200, "text/plain", ""});
    }
  }
}

TEST(HttpStream, TheServerMayGoWhileClientsCome) {
  for (int round = 0; round < 20; ++round) {
    HttpOptions options;
    options.threads = 2;
    auto server = std::make_unique<TestServer>(options);
    const uint16_t port = server->port();
    std::vector<std::jthread> clients;
    for (int c = 0; c < 3; ++c) {
      clients.emplace_back([port] {
        try {
          for (int i = 0; i < 50; ++i) {
            HttpClient client(port);
            client.ask(get("/echo"));
          }
        } catch (const std::runtime_error&) {
          // The server is gone.
        }
      });
    }
    std::this_thread::sleep_for(milliseconds(2));
    server->server.reset();
  }
}

TEST(HttpStream, ManyAtATimeDoNotMix) {
  constexpr int kStreams = 300;
  constexpr int kEvents = 20;
  HttpOptions options;
  options.threads = 2;
  TestServer server(options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<std::shared_ptr<HttpExchange>> exchanges;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(get(fmt::format("/later?{}", i)));
  }
  for (int i = 0; i < kStreams; ++i) {
    exchanges.push_back(server.inbox.take());
    ASSERT_NE(exchanges.back(), nullptr);
    exchanges.back()->begin_events();
  }
  EXPECT_TRUE(eventually([&] { return server.server->stats().streams == kStreams; }));
  std::vector<std::jthread> writers;
  for (int half = 0; half < 2; ++half) {
    writers.emplace_back([&, half] {
      for (int event = 0; event < kEvents; ++event) {
        for (size_t i = static_cast<size_t>(half); i < kStreams; i += 2) {
          exchanges[i]->write(fmt::format("{}:{}\n\n", exchanges[i]->request().query, event));
        }
      }
      for (size_t i = static_cast<size_t>(half); i < kStreams; i += 2) exchanges[i]->end();
    });
  }
  for (int i = 0; i < kStreams; ++i) {
    std::string expected;
    for (int event = 0; event < kEvents; ++event) expected += fmt::format("{}:{}\n\n", i, event);
    const ClientAnswer answer = clients[static_cast<size_t>(i)]->read_answer();
    EXPECT_TRUE(answer.complete);
    EXPECT_EQ(answer.body, expected);
  }
  EXPECT_EQ(server.server->stats().connections, size_t{kStreams});
}

size_t resident_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(HttpStream, SilentStreamsAreCheap) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  constexpr size_t kStreams = 1000;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit many = before;
  many.rlim_cur = std::min<rlim_t>(before.rlim_max, 2 * kStreams + 200);
  if (many.rlim_cur < 2 * kStreams + 200) GTEST_SKIP() << "only " << before.rlim_max << " files may be open";
  if (before.rlim_cur < many.rlim_cur) setrlimit(RLIMIT_NOFILE, &many);
  HttpOptions options;
  options.comment_interval = milliseconds(200);
  TestServer server(options);
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<Stream>(server));
  malloc_trim(0);  // so that what earlier tests left behind does not count
  const size_t start = resident_bytes();
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<Stream>(server));
    streams.back()->exchange->write(std::string(3000, 'x'));
  }
  for (size_t i = 1; i <= kStreams; ++i) {
    std::string& unread = streams[i]->client.unread;
    EXPECT_TRUE(streams[i]->client.read_past(": keep-alive\n\n"));  // so that all have written and are silent
    std::string().swap(unread);
  }
  malloc_trim(0);
  const size_t end = resident_bytes();
  const size_t each = (std::max(start, end) - start) / kStreams;
  RecordProperty("bytes_per_stream", static_cast<int>(each));
  EXPECT_LT(each, 30'000U);  // with its client
  streams.clear();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace carat::server

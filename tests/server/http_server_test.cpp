#include "server/http_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "http_client.h"
#include "http_test_server.h"

namespace carat::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

TEST(HttpServer, AnswersWithItsHeaders) {
  TestServer server;
  HttpClient client(server.port());
  const ClientAnswer answer = client.ask(post("/echo?a=b", "hello", "X-Echo: x\r\nX-Request-Id: my-id\r\n"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "POST|a=b|127.0.0.1|hello");
  EXPECT_EQ(answer.header("X-Echo"), "x");
  EXPECT_EQ(answer.header("Server"), "carat");
  EXPECT_EQ(answer.header("X-Request-Id"), "my-id");
  EXPECT_EQ(answer.header("Content-Type"), "text/plain");
  EXPECT_TRUE(answer.header("Date").ends_with(" GMT"));
  EXPECT_EQ(answer.header("Connection"), "keep-alive");

  const ClientAnswer missing = client.ask(get("/nowhere", "X-Request-Id: a b\r\n"));
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.header("X-Request-Id").size(), 32U);
}

TEST(HttpServer, KeepsConnections) {
  TestServer server;
  HttpClient client(server.port());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client.ask(post("/echo", std::to_string(i))).body, fmt::format("POST||127.0.0.1|{}", i));
  }
  EXPECT_EQ(server.server->stats().accepted, 1U);
  EXPECT_EQ(client.ask(get("/echo", "Connection: close\r\n")).header("Connection"), "close");
  EXPECT_TRUE(client.ends());
  client.close();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  // Each answer comes from another thread, and later ones sooner.
  std::vector<std::jthread> threads;
  server.scripted = [&](std::shared_ptr<HttpExchange> exchange) {
    threads.emplace_back([exchange, wait = 20 - static_cast<int>(threads.size())] {
      std::this_thread::sleep_for(milliseconds(wait));
      exchange->respond({200, "text/plain", exchange->request().query});
    });
  };
  HttpClient client(server.port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += get(fmt::format("/scripted?{}", i)) + post("/echo", std::to_string(i));
  client.send(all);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.read_answer().body, std::to_string(i));
    EXPECT_EQ(client.read_answer().body, fmt::format("POST||127.0.0.1|{}", i));
  }
}

TEST(HttpServer, TakesMoreAheadThanItReads) {
  TestServer server;
  HttpClient client(server.port());
  const std::string padding(10000, 'p');
  constexpr int kRequests = 50;  // far more than a connection holds of later requests
  std::thread sender([&] {
    client.send(get("/later"));
    for (int i = 0; i < kRequests; ++i) client.send(post("/echo", std::to_string(i) + padding));
  });
  const auto exchange = server.inbox.take();
  std::this_thread::sleep_for(milliseconds(50));
  exchange->respond({200, "text/plain", "first"});
  EXPECT_EQ(client.read_answer().body, "first");
  for (int i = 0; i < kRequests; ++i)
    EXPECT_EQ(client.read_answer().body, fmt::format("POST||127.0.0.1|{}{}", i, padding));
  sender.join();
}

TEST(HttpServer, TakesBodiesOfEveryShape) {
  TestServer server;
  HttpClient client(server.port());
  EXPECT_EQ(client
                .ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "3\r\nabc\r\na;x\r\n0123456789\r\n0\r\n\r\n")
                .body,
            "POST||127.0.0.1|abc0123456789");
  const std::string large(5'000'000, 'x');
  EXPECT_EQ(client.ask(post("/echo", large)).body, "POST||127.0.0.1|" + large);
  EXPECT_EQ(client.ask(post("/echo", "")).body, "POST||127.0.0.1|");
}

TEST(HttpServer, GivesLeaveToContinue) {
  TestServer server;
  HttpClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(client.read_past("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send("body");
  EXPECT_EQ(client.read_answer().body, "POST||127.0.0.1|body");
  // Not to those who do not wait for it.
  EXPECT_EQ(client.ask(post("/echo", "body", "Expect: 100-continue\r\n")).body, "POST||127.0.0.1|body");
}

TEST(HttpServer, HeadIsGetWithoutBody) {
  TestServer server;
  HttpClient client(server.port());
  const ClientAnswer answer = client.ask("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Content-Length"), "16");  // HEAD||127.0.0.1|
  EXPECT_EQ(client.ask(get("/echo")).body, "GET||127.0.0.1|");

  client.send("HEAD /later HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = server.inbox.take();
  exchange->begin_events();
  exchange->write("data: 1\n\n");
  EXPECT_EQ(client.read_answer(true).header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(eventually([&] { return exchange->gone(); }));  // nobody reads on
  exchange->write("data: 2\n\n");
  EXPECT_EQ(client.ask(get("/echo")).body, "GET||127.0.0.1|");
}

TEST(HttpServer, AnswersWithoutBodyHaveNone) {
  TestServer server;
  server.scripted = [](const auto& exchange) { exchange->respond({204, "text/plain", "dropped"}); };
  HttpClient client(server.port());
  const ClientAnswer answer = client.ask("OPTIONS /scripted HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.header("Content-Length"), "");
  EXPECT_EQ(client.ask(get("/echo")).body, "GET||127.0.0.1|");
}

TEST(HttpServer, SpeaksHttp10) {
  TestServer server;
  {
    HttpClient client(server.port());
    EXPECT_EQ(client.ask("GET /echo HTTP/1.0\r\n\r\n").body, "GET||127.0.0.1|");
    EXPECT_TRUE(client.ends());
  }
  {
    HttpClient client(server.port());
    EXPECT_EQ(client.ask("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").header("Connection"), "keep-alive");
    client.send("GET /later HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const auto exchange = server.inbox.take();
    exchange->begin_events();
    exchange->write("data: 1\n\n");
    exchange->end();
    const ClientAnswer answer = client.read_answer();
    EXPECT_EQ(answer.header("Transfer-Encoding"), "");
    EXPECT_EQ(answer.header("Connection"), "close");
    EXPECT_EQ(answer.body, "data: 1\n\n");
  }
}

TEST(HttpServer, RefusesWithTheErrorPage) {
  HttpOptions options;
  options.max_header_bytes = 1000;
  options.max_body_bytes = 5000;
  TestServer server(options);
  struct Case {
    std::string request;
    int status;
    std::string page;
  };
  const std::vector<Case> cases = {
      {"nonsense\r\n\r\n", 400, "400  : "},
      {"GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, "400 GET : "},
      {get("/echo", "X: " + std::string(2000, 'x') + "\r\n"), 431, "431 GET /echo: "},
      {post("/echo", std::string(5001, 'x')), 413, "413 POST /echo: "},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5001\r\n\r\n", 413, "413 POST /echo: "},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5001\r\nExpect: 100-continue\r\n\r\n", 413,
       "413 POST /echo: "},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1389\r\n", 413, "413 POST /echo: "},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "501 POST /echo: "},
  };
  uint64_t refused = 0;
  for (const Case& expected : cases) {
    HttpClient client(server.port());
    const ClientAnswer answer = client.ask(expected.request);
    EXPECT_EQ(answer.status, expected.status) << expected.request.substr(0, 100);
    EXPECT_TRUE(answer.body.starts_with(expected.page)) << answer.body;
    EXPECT_EQ(answer.header("X-Page"), "error");
    EXPECT_EQ(answer.header("Connection"), "close");
    EXPECT_EQ(answer.header("Server"), "carat");
    EXPECT_EQ(answer.header("X-Request-Id").size(), 32U);
    EXPECT_TRUE(client.ends());
    EXPECT_EQ(server.server->stats().refused, ++refused);
  }
}

TEST(HttpServer, ARefusedUploadStillReadsItsAnswer) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  TestServer server(options);
  for (int i = 0; i < 10; ++i) {
    HttpClient client(server.port());
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
    EXPECT_TRUE(client.send(std::string(3'000'000, 'x')));  // more than the sockets hold: the server reads on
    EXPECT_EQ(client.read_answer().status, 413);
  }
}

TEST(HttpServer, SlowHeadersEndInTotalTime) {
  HttpOptions options;
  options.header_timeout = milliseconds(300);
  TestServer server(options);
  HttpClient client(server.port());
  const Clock::time_point start = Clock::now();
  const std::string request = get("/echo", "X: " + std::string(10000, 'x') + "\r\n");
  // A byte every ten milliseconds, which a limit on silence would bear for minutes.
  for (size_t i = 0; i < request.size() && client.unread.empty(); ++i) {
    if (!client.send(request.substr(i, 1))) break;
    client.receive(milliseconds(10));
  }
  EXPECT_EQ(client.read_answer().status, 408);
  EXPECT_TRUE(client.ends());
  EXPECT_GE(since(start), milliseconds(300));
  EXPECT_LT(since(start), milliseconds(10'000));
}

TEST(HttpServer, SlowBodiesEndInTotalTime) {
  HttpOptions options;
  options.body_timeout = milliseconds(300);
  for (const std::string head : {"Content-Length: 10000", "Transfer-Encoding: chunked"}) {
    TestServer server(options);
    HttpClient client(server.port());
    client.send(fmt::format("POST /echo HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n", head));
    for (int i = 0; i < 1000 && client.unread.empty(); ++i) {
      if (!client.send(head.starts_with("C") ? "x" : "1\r\nx\r\n")) break;
      client.receive(milliseconds(10));
    }
    const ClientAnswer answer = client.read_answer();
    EXPECT_EQ(answer.status, 408);
    EXPECT_TRUE(answer.body.starts_with("408 POST /echo: ")) << answer.body;
    EXPECT_TRUE(client.ends());
  }
}

TEST(HttpServer, IdleConnectionsEndSilently) {
  HttpOptions options;
  options.idle_timeout = milliseconds(200);
  TestServer server(options);
  HttpClient silent(server.port());
  HttpClient used(server.port());
  EXPECT_EQ(used.ask(get("/echo")).status, 200);
  // Empty lines are not a request and do not lengthen the wait.
  HttpClient blank(server.port());
  for (int i = 0; i < 3000 && !blank.ended; ++i) {
    if (!blank.send("\r\n")) break;
    blank.receive(milliseconds(10));
  }
  EXPECT_TRUE(blank.unread.empty());
  for (HttpClient* client : {&silent, &used}) {
    EXPECT_FALSE(client->receive());
    EXPECT_TRUE(client->ended);
    EXPECT_TRUE(client->unread.empty());
  }
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
  EXPECT_EQ(server.server->stats().refused, 0U);
}

TEST(HttpServer, WritesThatDoNotMoveEnd) {
  HttpOptions options;
  options.write_timeout = milliseconds(300);
  TestServer server(options);
  server.scripted = [](const auto& exchange) { exchange->respond({200, "text/plain", std::string(50'000'000, 'x')}); };
  HttpClient stuck(server.port(), 4096);
  stuck.send(get("/scripted"));
  EXPECT_TRUE(eventually([&] { return server.server->stats().connections == 1; }));
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpServer, WritesThatMoveMayTakeLong) {
  HttpOptions options;
  options.write_timeout = milliseconds(1500);
  TestServer server(options);
  server.scripted = [](const auto& exchange) { exchange->respond({200, "text/plain", std::string(50'000'000, 'x')}); };
  HttpClient slow(server.port());
  slow.send(get("/scripted"));
  for (const Clock::time_point start = Clock::now(); since(start) < milliseconds(2200);) {
    ASSERT_TRUE(slow.receive());
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(slow.read_answer().body.size(), 50'000'000U);
}

TEST(HttpServer, TurnsAwayTooManyConnections) {
  HttpOptions options;
  options.max_connections = 3;
  TestServer server(options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    EXPECT_EQ(clients.back()->ask(get("/echo")).status, 200);
  }
  for (int i = 0; i < 5; ++i) {
    HttpClient late(server.port());
    late.send(get("/echo"));
    const ClientAnswer answer = late.read_answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_TRUE(answer.body.starts_with("503 ")) << answer.body;
    EXPECT_TRUE(late.ends());
  }
  for (const auto& client : clients) EXPECT_EQ(client->ask(get("/echo")).status, 200);
  clients.pop_back();
  EXPECT_TRUE(eventually([&] {
    HttpClient next(server.port());
    return next.ask(get("/echo")).status == 200;
  }));
}

TEST(HttpServer, UnansweredExchangesAre500) {
  TestServer server;
  HttpClient client(server.port());
  server.scripted = [](const auto&) {};
  EXPECT_TRUE(client.ask(get("/scripted")).body.starts_with("500 GET /scripted: "));
  server.scripted = [](const auto&) { fail("the sky fell"); };
  EXPECT_EQ(client.ask(get("/scripted")).body, "500 GET /scripted: the sky fell");
  server.scripted = [](const auto&) { throw 1; };
  EXPECT_EQ(client.ask(get("/scripted")).status, 500);
  std::shared_ptr<HttpExchange> kept;
  server.scripted = [&](auto exchange) {
    kept = exchange;
    throw std::runtime_error("kept");
  };
  EXPECT_EQ(client.ask(get("/scripted")).status, 500);
  kept->respond({200, "text/plain", "too late"});
  client.send(get("/later"));
  std::thread([&] { server.inbox.take().reset(); }).join();
  EXPECT_EQ(client.read_answer().status, 500);
  EXPECT_EQ(client.ask(get("/echo")).status, 200);
}

TEST(HttpServer, AFailingErrorPageIsReplaced) {
  HttpOptions options;
  options.port = 0;
  HttpServer server(
      options, [](const auto&) {}, [](auto&&...) -> HttpResponse { fail("no page"); });
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(get("/")).status, 500);
  HttpServer none(
      options, [](const auto&) {}, nullptr);
  HttpClient other(none.port());
  EXPECT_EQ(other.ask(get("/")).status, 500);
}

TEST(HttpServer, DrainsToTheLastAnswer) {
  TestServer server;
  HttpClient idle(server.port());
  EXPECT_EQ(idle.ask(get("/echo")).status, 200);
  HttpClient fresh(server.port());
  HttpClient busy(server.port());
  busy.send(get("/later"));
  const auto busy_exchange = server.inbox.take();
  HttpClient streaming(server.port());
  streaming.send(get("/later"));
  const auto stream_exchange = server.inbox.take();
  stream_exchange->begin_events();
  HttpClient asking(server.port());
  asking.send("GET /echo HTTP/1.1\r\n");
  EXPECT_TRUE(eventually([&] { return server.server->stats().connections == 5; }));
  std::this_thread::sleep_for(milliseconds(50));  // so that the first line has come

  server.server->drain();
  server.server->drain();
  EXPECT_TRUE(idle.ends());
  EXPECT_TRUE(fresh.ends());
  EXPECT_TRUE(eventually([&] {
    try {
      HttpClient late(server.port());
      return late.ends(milliseconds(1000));
    } catch (const std::runtime_error&) {
      return true;
    }
  }));
  EXPECT_FALSE(server.server->wait(milliseconds(20)));
  EXPECT_FALSE(busy_exchange->gone());

  stream_exchange->write("data: 1\n\n");
  stream_exchange->end();
  const ClientAnswer stream = streaming.read_answer();
  EXPECT_TRUE(stream.complete);
  EXPECT_EQ(stream.body, "data: 1\n\n");
  EXPECT_TRUE(streaming.ends());
  busy_exchange->respond({200, "text/plain", "done"});
  const ClientAnswer answer = busy.read_answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(busy.ends());
  asking.send("Host: a\r\n\r\n");
  EXPECT_EQ(asking.read_answer().header("Connection"), "close");
  asking.close();
  busy.close();
  streaming.close();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpServer, ListensWhereItIsTold) {
  for (const std::string host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    HttpOptions options;
    options.host = host;
    TestServer server(options);
    HttpClient client(server.port());
    EXPECT_EQ(client.ask(get("/echo")).status, 200) << host;
  }
  const auto failure = [](const std::string& host, uint16_t port) -> std::string {
    HttpOptions options;
    options.host = host;
    options.port = port;
    try {
      HttpServer server(
          options, [](const auto&) {}, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TestServer server;
  EXPECT_NE(failure("127.0.0.1", server.port()).find(fmt::format("127.0.0.1:{}", server.port())), std::string::npos);
  EXPECT_NE(failure("no.such.host.invalid", 8080).find("no.such.host.invalid:8080"), std::string::npos);
  EXPECT_NE(failure("203.0.113.7", 8080).find("203.0.113.7:8080"), std::string::npos);
  EXPECT_NE(failure("2001:db8::1", 8080).find("[2001:db8::1]:8080"), std::string::npos);
  EXPECT_NE(failure("", 8080).find("empty"), std::string::npos);
}

TEST(HttpServer, ListensOnIpv6) {
  for (const std::string host : {"::1", "[::1]", "::"}) {
    HttpOptions options;
    options.host = host;
    std::unique_ptr<TestServer> server;
    try {
      server = std::make_unique<TestServer>(options);
    } catch (const Error& error) {
      GTEST_SKIP() << "no IPv6 here: " << error.what();
    }
    if (host != "::") continue;
    HttpClient client(server->port());  // over IPv4, whose address is then shown as such
    EXPECT_EQ(client.ask(get("/echo")).body, "GET||127.0.0.1|");
  }
}

TEST(HttpServer, WaitsForFileDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_cur, 256);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  TestServer server;
  {
    HttpClient first(server.port());
    EXPECT_EQ(first.ask(get("/echo")).status, 200);
    HttpClient waiting;
    std::vector<int> taken;
    for (int copy = dup(0); copy >= 0; copy = dup(0)) taken.push_back(copy);
    waiting.connect_to(server.port());
    waiting.send(get("/echo"));
    EXPECT_FALSE(waiting.receive(milliseconds(300)));
    EXPECT_FALSE(waiting.ended);
    EXPECT_EQ(first.ask(get("/echo")).status, 200);  // the others are served
    for (const int copy : taken) ::close(copy);
    EXPECT_EQ(waiting.read_answer().status, 200);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(HttpServer, ServesOnSeveralThreads) {
  HttpOptions options;
  options.threads = 4;
  TestServer server(options);
  std::vector<std::jthread> clients;
  std::atomic<int> right{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) {
        HttpClient client(server.port());
        for (int j = 0; j < 5; ++j) {
          const std::string body = fmt::format("{}-{}-{}", c, i, j);
          if (client.ask(post("/echo", body)).body == "POST||127.0.0.1|" + body) ++right;
        }
      }
    });
  }
  clients.clear();
  EXPECT_EQ(right, 8 * 20 * 5);
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

}  // namespace
}  // namespace carat::server

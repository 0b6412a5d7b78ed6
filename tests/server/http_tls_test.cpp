// TLS, with a certificate made here.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "http_client.h"
#include "http_test_server.h"

namespace carat::server {
namespace {

using std::chrono::milliseconds;

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  return {data, size};
}

/// Self-signed PEM files of a new key in a directory of their own.
class Certificate {
 public:
  Certificate() {
    directory_ = std::filesystem::temp_directory_path() / fmt::format("carat-http-tls-{}-{}", getpid(), ++count_);
    std::filesystem::create_directories(directory_);
    const std::unique_ptr<EVP_PKEY, Free> key(EVP_EC_gen("P-256"));
    const std::unique_ptr<X509, Free> certificate(X509_new());
    X509_set_version(certificate.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                               0);
    X509_set_issuer_name(certificate.get(), name);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    const std::unique_ptr<BIO, Free> out(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(out.get(), certificate.get());
    write("certificate.pem", text_of(out.get()));
    const std::unique_ptr<BIO, Free> plain(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(plain.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    write("key.pem", text_of(plain.get()));
    const std::unique_ptr<BIO, Free> locked(BIO_new(BIO_s_mem()));
    std::string word = "secret";
    PEM_write_bio_PrivateKey(locked.get(), key.get(), EVP_aes_128_cbc(), reinterpret_cast<unsigned char*>(word.data()),
                             static_cast<int>(word.size()), nullptr, nullptr);
    write("locked.pem", text_of(locked.get()));
    write("garbage.pem", "no PEM file");
  }
  ~Certificate() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  std::string path(const std::string& name) const { return (directory_ / name).string(); }

  HttpOptions options() const {
    HttpOptions options;
    options.tls_certificate = path("certificate.pem");
    options.tls_key = path("key.pem");
    return options;
  }

 private:
  void write(const std::string& name, const std::string& text) const { std::ofstream(directory_ / name) << text; }

  static inline int count_ = 0;
  std::filesystem::path directory_;
};

TEST(HttpTls, ServesRequestsAndStreams) {
  const Certificate certificate;
  TestServer server(certificate.options());
  HttpClient client(server.port());
  ASSERT_TRUE(client.start_tls());
  EXPECT_EQ(client.ask(post("/echo", "hello")).body, "POST||127.0.0.1|hello");
  const std::string large(3'000'000, 'x');
  std::thread sender([&] { client.send(post("/echo", large)); });
  sender.join();
  EXPECT_EQ(client.read_answer().body, "POST||127.0.0.1|" + large);
  client.send(get("/later"));
  const auto exchange = server.inbox.take();
  exchange->begin_events();
  EXPECT_EQ(client.read_head().status, 200);
  for (int i = 0; i < 20; ++i) {
    const std::string event = fmt::format("data: {}\n\n", i);
    exchange->write(event);
    std::string chunk;
    ASSERT_TRUE(client.read_chunk(chunk));
    EXPECT_EQ(chunk, event);
  }
  exchange->end();
  std::string chunk;
  ASSERT_TRUE(client.read_chunk(chunk));
  EXPECT_EQ(client.ask(get("/echo", "Connection: close\r\n")).status, 200);
  EXPECT_TRUE(client.ends());
}

TEST(HttpTls, NoticesClientsThatLeave) {
  const Certificate certificate;
  TestServer server(certificate.options());
  for (const bool streaming : {false, true}) {
    for (const bool reset : {false, true}) {
      HttpClient client(server.port());
      ASSERT_TRUE(client.start_tls());
      client.send(get("/later"));
      const auto exchange = server.inbox.take();
      if (streaming) exchange->begin_events();
      if (reset) {
        client.reset();
      } else {
        client.close();
      }
      EXPECT_TRUE(eventually([&] { return exchange->gone(); }));
    }
  }
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpTls, RefusesOldVersionsAndPlainText) {
  const Certificate certificate;
  TestServer server(certificate.options());
  {
    HttpClient client(server.port());
    EXPECT_FALSE(client.start_tls(TLS1_1_VERSION));
  }
  {
    HttpClient client(server.port());
    EXPECT_TRUE(client.start_tls(TLS1_2_VERSION));
    EXPECT_EQ(client.ask(get("/echo")).status, 200);
  }
  HttpClient plain(server.port());
  plain.send(get("/echo"));
  EXPECT_TRUE(plain.ends());
  plain.close();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpTls, SlowHandshakesEnd) {
  const Certificate certificate;
  HttpOptions options = certificate.options();
  options.header_timeout = milliseconds(200);
  TestServer server(options);
  HttpClient client(server.port());
  EXPECT_FALSE(client.receive());
  EXPECT_TRUE(client.ended);
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpTls, LimitsHoldAsWithoutIt) {
  const Certificate certificate;
  HttpOptions options = certificate.options();
  options.max_connections = 1;
  options.max_body_bytes = 1000;
  options.header_timeout = milliseconds(2000);
  TestServer server(options);
  HttpClient client(server.port());
  ASSERT_TRUE(client.start_tls());
  HttpClient late(server.port());
  ASSERT_TRUE(late.start_tls());
  EXPECT_EQ(late.read_answer().status, 503);
  EXPECT_TRUE(late.ends());
  client.send("GET /echo HTTP/1.1\r\n");
  EXPECT_EQ(client.read_answer().status, 408);
  EXPECT_TRUE(client.ends());
  client.close();
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
  HttpClient large(server.port());
  ASSERT_TRUE(large.start_tls());
  EXPECT_EQ(large.ask(post("/echo", std::string(100'000, 'x'))).status, 413);
}

TEST(HttpTls, TheServerMayGoFirst) {
  const Certificate certificate;
  TestServer server(certificate.options());
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<std::shared_ptr<HttpExchange>> kept;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    if (i % 4 == 3) continue;  // no handshake
    ASSERT_TRUE(clients.back()->start_tls());
    if (i % 4 == 2) continue;  // no request
    clients.back()->send(get("/later"));
    kept.push_back(server.inbox.take());
    kept.back()->begin_events();
    if (i % 4 == 1) kept.back()->write(std::string(5'000'000, 'x'));
  }
  server.server.reset();
  for (const auto& exchange : kept) EXPECT_TRUE(exchange->gone());
  for (const auto& client : clients) EXPECT_TRUE(client->ends());
}

TEST(HttpTls, DrainsIdleConnections) {
  const Certificate certificate;
  TestServer server(certificate.options());
  HttpClient client(server.port());
  ASSERT_TRUE(client.start_tls());
  EXPECT_EQ(client.ask(get("/echo")).status, 200);
  server.server->drain();
  EXPECT_TRUE(client.ends());
  EXPECT_TRUE(server.server->wait(HttpClient::kPatience));
}

TEST(HttpTls, UnusableFilesAreNamed) {
  const Certificate certificate;
  const Certificate other;
  const auto failure = [](const std::string& certificate_path, const std::string& key) -> std::string {
    HttpOptions options;
    options.port = 0;
    options.tls_certificate = certificate_path;
    options.tls_key = key;
    try {
      HttpServer server(
          options, [](const auto&) {}, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string good = certificate.path("certificate.pem");
  const std::string key = certificate.path("key.pem");
  EXPECT_EQ(failure(good, key), "");
  const auto names = [&](const std::string& message, const std::string& path) {
    EXPECT_NE(message.find(path), std::string::npos) << message;
  };
  names(failure(certificate.path("missing.pem"), key), "missing.pem");
  names(failure(certificate.path("garbage.pem"), key), "garbage.pem");
  names(failure(good, certificate.path("missing.pem")), "missing.pem");
  names(failure(good, certificate.path("garbage.pem")), "garbage.pem");
  names(failure(good, certificate.path("locked.pem")), "locked.pem");
  names(failure(good, other.path("key.pem")), other.path("key.pem"));
  names(failure(good, ""), "certificate");
  names(failure("", key), "key");
}

}  // namespace
}  // namespace carat::server

#include "server/http_text.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace carat::server {
namespace {

TEST(HttpText, TargetsAreTakenApart) {
  struct Case {
    std::string target, path, query;
  };
  const std::vector<Case> cases = {
      {"/", "/", ""},
      {"/v1/models", "/v1/models", ""},
      {"/v1/models?a=%20b&c", "/v1/models", "a=%20b&c"},
      {"/a?b?c", "/a", "b?c"},
      {"/a?", "/a", ""},
      {"/%41%62%63+d", "/Abc+d", ""},
      {"/gemma%3Aadapter%2Fx", "/gemma:adapter/x", ""},
      {"/%E2%82%AC", "/\xE2\x82\xAC", ""},
      {"/%2541", "/%41", ""},  // decoded once
      {"/%3Fa", "/?a", ""},
      {"http://host:1/v1?x", "/v1", "x"},
      {"HTTPS://host", "/", ""},
      {"*", "*", ""},
  };
  for (const Case& expected : cases) {
    const std::optional<Target> found = parse_target(expected.target);
    ASSERT_TRUE(found) << expected.target;
    EXPECT_EQ(found->path, expected.path) << expected.target;
    EXPECT_EQ(found->query, expected.query) << expected.target;
  }
}

TEST(HttpText, BadTargetsAreRefused) {
  for (const std::string target :
       {"",       "a",      "?a",      "/%",        "/%4",       "/%4g",    "/%g4",       "/%+1",        "/% 1",
        "/a%00b", "/a%0Ab", "/a%7f",   "/a\x01",    "/%FF",      "/%C0%AF", "/%ED%A0%80", "/%E2%82",     "/\xff",
        "/a#b",   "#",      "http://", "http:///a", "http://?a", "host:80", "**",         "ftp://host/a"}) {
    EXPECT_FALSE(parse_target(target)) << target;
  }
}

TEST(HttpText, EveryByteOfAPathSurvivesEncoding) {
  for (int byte = 0x20; byte < 0x7f; ++byte) {
    char escaped[4];
    std::snprintf(escaped, sizeof(escaped), "%%%02x", static_cast<unsigned>(byte));
    const auto target = parse_target(std::string("/") + escaped);
    ASSERT_TRUE(target) << byte;
    EXPECT_EQ(target->path, std::string("/") + static_cast<char>(byte));
  }
}

TEST(HttpText, RequestIdsAreShortAndHarmless) {
  EXPECT_TRUE(is_request_id("a"));
  EXPECT_TRUE(is_request_id("req_1-2.Z"));
  EXPECT_TRUE(is_request_id(std::string(128, 'x')));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id(std::string(129, 'x')));
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const bool harmless = byte < 128 && (std::isalnum(byte) != 0 || c == '.' || c == '_' || c == '-');
    EXPECT_EQ(is_request_id(std::string(1, c)), harmless) << byte;
  }
}

TEST(HttpText, MadeRequestIdsAreValidAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = make_request_id();
    EXPECT_EQ(id.size(), 32U);
    EXPECT_TRUE(is_request_id(id));
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000U);
}

TEST(HttpText, DatesAreThoseOfTheStandard) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(http_date(1709164800), "Thu, 29 Feb 2024 00:00:00 GMT");
}

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; ++at) ++found;
  return found;
}

TEST(HttpText, HeadsCannotBeForged) {
  ResponseHead head;
  head.status = 404;
  head.content_type = "text/plain\r\nX-A: 1";
  head.request_id = "id";
  head.length = 7;
  const std::string text = write_head(head, {{"X-Good", "a\r\nX-Evil: 1\r\n\r\n<html>"},
                                             {"X Bad", "1"},
                                             {"X-Bad\r\nX-Evil", "1"},
                                             {"", "1"},
                                             {"Content-Length", "99"},
                                             {"transfer-encoding", "chunked"},
                                             {"Connection", "upgrade"},
                                             {"DATE", "never"},
                                             {"content-type", "text/html"},
                                             {"Retry-After", "3"}});
  EXPECT_TRUE(text.starts_with("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_TRUE(text.ends_with("\r\n\r\n"));
  EXPECT_EQ(count(text, "\r\n\r\n"), 1U);
  EXPECT_EQ(count(text, "\r\nX-Evil"), 0U);
  EXPECT_EQ(count(text, "\r\nX-A"), 0U);
  EXPECT_EQ(count(text, "X Bad"), 0U);
  EXPECT_EQ(count(text, "\r\n: "), 0U);
  EXPECT_EQ(count(text, "\r\nContent-Length: 7\r\n"), 1U);
  EXPECT_EQ(count(text, "99"), 0U);
  EXPECT_EQ(count(text, "chunked"), 0U);
  EXPECT_EQ(count(text, "upgrade"), 0U);
  EXPECT_EQ(count(text, "never"), 0U);
  EXPECT_EQ(count(text, "text/html"), 0U);
  EXPECT_EQ(count(text, "\r\nRetry-After: 3\r\n"), 1U);
  EXPECT_EQ(count(text, "\r\nConnection: keep-alive\r\n"), 1U);
}

TEST(HttpText, HeadsTellHowTheBodyEnds) {
  ResponseHead head;
  head.framing = Framing::kChunked;
  EXPECT_EQ(count(write_head(head, {}), "Transfer-Encoding: chunked\r\n"), 1U);
  EXPECT_EQ(count(write_head(head, {}), "Content-Length"), 0U);
  for (const Framing framing : {Framing::kNone, Framing::kClose}) {
    head.framing = framing;
    head.keep_alive = false;
    EXPECT_EQ(count(write_head(head, {}), "Transfer-Encoding"), 0U);
    EXPECT_EQ(count(write_head(head, {}), "Content-Length"), 0U);
    EXPECT_EQ(count(write_head(head, {}), "Connection: close\r\n"), 1U);
  }
}

}  // namespace
}  // namespace carat::server

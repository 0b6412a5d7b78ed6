#include "server/chat_page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace carat::server {
namespace {

std::string page_file() {
  std::ifstream in(std::filesystem::path(CARAT_TEST_DATA).parent_path() / "web" / "index.html", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ChatPage, IsTheFileByteForByte) {
  ASSERT_FALSE(page_file().empty());
  EXPECT_EQ(kChatPage, page_file());
}

TEST(ChatPage, SaysWhatItsPolicyIsWhereNoHeaderDoes) {
  // frame-ancestors works in the header only.
  const std::string_view inner = kChatPagePolicy.substr(0, kChatPagePolicy.rfind("; frame-ancestors"));
  EXPECT_NE(kChatPage.find("content=\"" + std::string(inner) + "\""), std::string_view::npos);
}

}  // namespace
}  // namespace carat::server

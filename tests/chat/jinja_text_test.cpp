#include "chat/jinja_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "chat/unicode.h"

namespace carat {
namespace {

/// FNV-1a, as tools and tests in any language can compute it.
class Digest {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      state_ = (state_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

/// The digests are those of Python 3.11's str methods over all code points but the surrogates, joined as UTF-8.
TEST(JinjaText, UnicodeIsPythons) {
  Digest upper;
  Digest lower;
  Digest classes;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    unicode::append(text, code);
    size_t position = 0;
    ASSERT_EQ(unicode::next(text, position), code);
    ASSERT_EQ(position, text.size());
    ASSERT_EQ(unicode::strip(text).empty(), unicode::is_space(code));
    upper.add(unicode::upper(text));
    lower.add(unicode::lower(text));
    classes.add(std::string(1, static_cast<char>(unicode::is_printable(code) + 2 * unicode::is_space(code))));
  }
  EXPECT_EQ(upper.value(), 0xf1a6102c65729830u);
  EXPECT_EQ(lower.value(), 0xc319d02e8283b91eu);
  EXPECT_EQ(classes.value(), 0x5e4341afd67cc8dbu);
}

TEST(JinjaText, BytesThatAreNoUtf8StayAsTheyAre) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t n = random() % 6; n > 0; --n) bytes += static_cast<char>(0x80 + random() % 0x80);
    size_t invalid = 0;
    for (size_t position = 0; position < bytes.size();) {
      const size_t before = position;
      if (unicode::next(bytes, position) == unicode::kInvalid) ++invalid;
      ASSERT_GT(position, before);
      ASSERT_LE(position, bytes.size());
    }
    if (invalid == bytes.size()) {
      EXPECT_EQ(unicode::upper(bytes), bytes);
      EXPECT_EQ(unicode::lower(bytes), bytes);
      EXPECT_EQ(unicode::strip(bytes), bytes);
    }
  }
}

TEST(JinjaText, FloatsPrintAsPythonPrintsThem) {
  const std::vector<std::pair<double, const char*>> known = {{0.0, "0.0"},
                                                             {-0.0, "-0.0"},
                                                             {1.0, "1.0"},
                                                             {-1.5, "-1.5"},
                                                             {0.1, "0.1"},
                                                             {1000000000000000.0, "1000000000000000.0"},
                                                             {1e+16, "1e+16"},
                                                             {123456789012345.6, "123456789012345.6"},
                                                             {1e+20, "1e+20"},
                                                             {1e+22, "1e+22"},
                                                             {0.0001, "0.0001"},
                                                             {1e-05, "1e-05"},
                                                             {1.25e-07, "1.25e-07"},
                                                             {5e-324, "5e-324"},
                                                             {1.7976931348623157e+308, "1.7976931348623157e+308"},
                                                             {9007199254740992.0, "9007199254740992.0"},
                                                             {100.0, "100.0"},
                                                             {123456.0, "123456.0"}};
  for (const auto& [value, text] : known) {
    const Json json = value;
    EXPECT_EQ(jinja::to_text(&json), text);
  }
  std::mt19937_64 random(4);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    const Json json = value;
    EXPECT_EQ(std::strtod(jinja::to_text(&json).c_str(), nullptr), value);
  }
}

TEST(JinjaText, ContainersPrintAsRepr) {
  Json value;
  value["a"] = {"x'y", "q\"", "both'\"", std::string("\n\t\r\\\0\x7f", 6) + "\u00ad\u200b\U000e0001\u00e9\u65e5"};
  value["n"] = nullptr;
  value["t"] = true;
  value["f"] = 1.0;
  value["e"] = Json::object();
  value["l"] = Json::array();
  EXPECT_EQ(jinja::to_text(&value), R"({'a': ["x'y", 'q"', 'both\'"', '\n\t\r\\\x00\x7f\xad\u200b\U000e0001)"
                                    "\u00e9\u65e5"
                                    R"('], 'n': None, 't': True, 'f': 1.0, 'e': {}, 'l': []})");
  EXPECT_EQ(jinja::to_text(nullptr), "");
}

TEST(JinjaText, DictsortIgnoresCaseAndIsStable) {
  const Json value = Json::parse(R"({"b":1,"B":2,"a":3,"É":4,"é":5,"_":6,"C":7})");
  std::string order;
  for (const auto& [key, item] : jinja::dictsort(value)) order += std::string(key) + " ";
  EXPECT_EQ(order, "_ a b B C É é ");
  EXPECT_TRUE(jinja::dictsort(Json::array({1})).empty());
}

TEST(JinjaText, TruthIsPythons) {
  for (const char* text : {"null", "false", "0", "0.0", "-0.0", "\"\"", "[]", "{}"}) {
    const Json value = Json::parse(text);
    EXPECT_FALSE(jinja::truthy(&value)) << text;
  }
  for (const char* text : {"true", "1", "-1", "0.5", "\" \"", "[0]", "{\"\":0}", "18446744073709551615"}) {
    const Json value = Json::parse(text);
    EXPECT_TRUE(jinja::truthy(&value)) << text;
  }
  EXPECT_FALSE(jinja::truthy(nullptr));
}

}  // namespace
}  // namespace carat

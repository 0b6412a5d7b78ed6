#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokenizer/golden_cases.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace carat {
namespace {

std::shared_ptr<const Tokenizer> small() {
  static const auto tokenizer = Tokenizer::from_json(test_path("small.json"));
  return tokenizer;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = utf8_unit(text, at);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    at += unit.length;
  }
  return true;
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string stream(const std::vector<int>& ids, bool with_specials = false) {
  StreamDecoder decoder(small(), with_specials);
  std::string text;
  for (const int id : ids) {
    const std::string delta = decoder.push(id);
    EXPECT_TRUE(is_utf8(delta));
    text += delta;
  }
  return text + decoder.finish();
}

TEST(StreamDecoder, EqualsDecodeOnWellFormedText) {
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    EXPECT_EQ(stream(golden.ids), small()->decode(golden.ids));
    EXPECT_EQ(stream(golden.ids, true), small()->decode(golden.ids, true));
  }
}

// Byte by byte, as a model emits byte tokens: the oracle is Python's decode(errors="replace").
TEST(StreamDecoder, ReplacesMaximalIllFormedSequences) {
  const auto goldens = nlohmann::json::parse(read_test_file("small.goldens.json")).at("utf8");
  ASSERT_GT(goldens.size(), 100u);
  for (const auto& golden : goldens) {
    std::vector<int> ids;
    for (const char byte : bytes_of(golden.at(0).get<std::string>())) {
      const auto id = small()->id(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
      ASSERT_TRUE(id);
      ids.push_back(*id);
    }
    EXPECT_EQ(stream(ids), golden.at(1).get<std::string>()) << golden.at(0);
  }
}

TEST(StreamDecoder, HoldsBackAtMostAnUnfinishedCharacter) {
  for (const std::string character : {"é", "你", "😀"}) {
    StreamDecoder decoder(small());
    for (size_t i = 0; i < character.size(); ++i) {
      const int id = *small()->id(fmt::format("<0x{:02X}>", static_cast<uint8_t>(character[i])));
      EXPECT_EQ(decoder.push(id), i + 1 < character.size() ? "" : character);
    }
    EXPECT_EQ(decoder.finish(), "");
  }
  StreamDecoder decoder(small());
  EXPECT_EQ(decoder.push(*small()->id("<0xF0>")), "");
  EXPECT_EQ(decoder.push(*small()->id("<0x9F>")), "");
  EXPECT_EQ(decoder.push(*small()->id("a")), "\uFFFDa");
  EXPECT_EQ(decoder.push(*small()->id("<0xF0>")), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, UnknownIdsAreErrors) {
  StreamDecoder decoder(small());
  EXPECT_THROW(decoder.push(-1), std::runtime_error);
}

}  // namespace
}  // namespace carat

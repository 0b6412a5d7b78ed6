#include "sampling/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace carat {
namespace {

struct Outcome {
  std::string text;
  std::string matched;
};

/// The whole text at once: the first byte at which some stop string is complete ends it; the longest of those counts.
Outcome whole_text(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (!stop.empty() && stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          stop.size() > best.size()) {
        best = stop;
      }
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

/// Bytes that have to wait: the longest tail that is a proper prefix of a stop string.
size_t must_wait(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = text.size(); length > 0; --length) {
    const std::string tail = text.substr(text.size() - length);
    for (const std::string& stop : stops) {
      if (stop.size() > length && stop.compare(0, length, tail) == 0) return length;
    }
  }
  return 0;
}

std::string random_text(std::mt19937_64& random, size_t length, int letters) {
  static const std::vector<std::string> kLetters = {"a", "b", "c", "\xc3\xa9", "\xf0\x9f\x98\x80"};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += kLetters[random() % static_cast<size_t>(letters)];
  return text;
}

TEST(StopFilter, AnySplitGivesWhatTheWholeTextGives) {
  std::mt19937_64 random(51);
  int matches = 0;
  for (int round = 0; round < 10000; ++round) {
    const int letters = 1 + static_cast<int>(random() % 5);
    const std::string text = random_text(random, random() % 30, letters);
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = random_text(random, random() % 6, letters);
    const Outcome expected = whole_text(text, stops);
    StopFilter filter(stops);
    std::string shown;
    size_t at = 0;
    while (at < text.size()) {
      const size_t length = std::min<size_t>(random() % 7, text.size() - at);
      shown += filter.push(text.substr(at, length));
      at += length;
      if (filter.stopped()) break;
      // Nothing waits that need not.
      const std::string so_far = text.substr(0, at);
      ASSERT_EQ(shown, so_far.substr(0, so_far.size() - must_wait(so_far, stops)));
    }
    EXPECT_TRUE(!filter.stopped() || filter.push("more").empty());
    const std::string rest = filter.finish();
    if (filter.stopped()) {
      EXPECT_EQ(rest, "");
      ++matches;
    }
    shown += rest;
    ASSERT_EQ(shown, expected.text);
    ASSERT_EQ(filter.matched(), expected.matched);
    ASSERT_EQ(filter.stopped(), !expected.matched.empty());
    EXPECT_EQ(filter.finish(), "");
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 9000);
}

TEST(StopFilter, MatchAcrossPieces) {
  StopFilter filter({"beta gamma"});
  EXPECT_EQ(filter.push("alpha"), "alpha");
  EXPECT_EQ(filter.push(" be"), " ");
  EXPECT_EQ(filter.push("ta gam"), "");
  EXPECT_EQ(filter.push("ma delta"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.matched(), "beta gamma");
  EXPECT_EQ(filter.push(" epsilon"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, AnUnfinishedStopStringIsDelivered) {
  StopFilter filter({"DEFGHIJ"});
  EXPECT_EQ(filter.push("DEFG"), "");
  EXPECT_EQ(filter.finish(), "DEFG");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, WholeCharactersComeOutWhole) {
  StopFilter filter({"\xc3\xa9!"});  // é!
  EXPECT_EQ(filter.push("caf\xc3\xa9"), "caf");
  EXPECT_EQ(filter.push("\xc3\xa8"), "\xc3\xa9\xc3\xa8");  // è shares é's first byte
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, WithoutStopStringsEverythingPasses) {
  for (const auto& stops : {std::vector<std::string>{}, std::vector<std::string>{"", ""}}) {
    StopFilter filter(stops);
    EXPECT_EQ(filter.push("anything"), "anything");
    EXPECT_EQ(filter.finish(), "");
    EXPECT_FALSE(filter.stopped());
  }
}

}  // namespace
}  // namespace carat

// Calls in fenced blocks of JSON: what is one, what is text, whatever the split.
#include "chat/json_calls.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace carat {
namespace {

using Kind = SpeechEvent::Kind;

Json tools() {
  return Json::parse(R"([{"type": "function", "function": {"name": "send"}},
                         {"type": "function", "function": {"name": "send_message"}}])");
}

/// Neighbouring texts joined.
std::vector<SpeechEvent> hear(const std::vector<std::string>& pieces) {
  JsonCallParser parser(tools());
  std::vector<SpeechEvent> events;
  for (const std::string& piece : pieces) {
    std::vector<SpeechEvent> now;
    parser.push(piece, now);
    events.insert(events.end(), now.begin(), now.end());
  }
  parser.finish(events);
  std::vector<SpeechEvent> joined;
  for (const SpeechEvent& event : events) {
    if (event.kind == Kind::kText && !joined.empty() && joined.back().kind == Kind::kText) {
      joined.back().text += event.text;
    } else {
      joined.push_back(event);
    }
  }
  return joined;
}

std::vector<SpeechEvent> text(const std::string& all) {
  return {{Kind::kText, all, {}}};
}

TEST(JsonCalls, OneObjectIsACall) {
  EXPECT_EQ(hear({"```json\n{\"name\": \"send\", \"arguments\": {\"to\": \"a`b\", \"n\": [1, {}]}}\n```"}),
            (std::vector<SpeechEvent>{{Kind::kToolCall, "send", R"({"to":"a`b","n":[1,{}]})"}}));
  EXPECT_EQ(hear({"```tool_code\n{\"parameters\": {}, \"name\": \"send_message\"}```"}),
            (std::vector<SpeechEvent>{{Kind::kToolCall, "send_message", "{}"}}));
}

TEST(JsonCalls, AListIsSeveralAndTextAroundStays) {
  EXPECT_EQ(
      hear({"Sure:\n```json\n[{\"name\":\"send\",\"arguments\":{}},\n{\"name\":\"send_message\",\"arguments\":{\"x\":"
            "\"```\\n\"}}]\n```\nDone."}),
      (std::vector<SpeechEvent>{{Kind::kText, "Sure:\n", {}},
                                {Kind::kToolCall, "send", "{}"},
                                {Kind::kToolCall, "send_message", R"({"x":"```\n"})"},
                                {Kind::kText, "\nDone.", {}}}));
}

TEST(JsonCalls, AWholeValueCountsWithoutTheEndOfItsBlock) {
  EXPECT_EQ(hear({"```json\n{\"name\": \"send\", \"arguments\": {}}\n"}),
            (std::vector<SpeechEvent>{{Kind::kToolCall, "send", "{}"}}));
}

TEST(JsonCalls, OtherBlocksAreText) {
  for (const char* block : {
           "```json\n{\"name\": \"stranger\", \"arguments\": {}}\n```",
           "```json\n{\"name\": \"send\", \"arguments\": 1}\n```",
           "```json\n{\"name\": \"send\"}\n```",
           "```json\n{\"name\": \"send\", \"arguments\": {}, \"more\": 1}\n```",
           "```json\n{\"name\": \"send\", \"arguments\": {}} and more\n```",
           "```json\n[]\n```",
           "```json\n[1]\n```",
           "```json5\n{}\n```",
           "```json\n{\"name\": \"send\", \"arguments\": {",
           "```json\n{\"name\": \"send\", \"arguments\": {]}\n```",
           "```python\nprint(1)\n```",
           "a ```json\n{\"name\": \"send\", \"arguments\": {}}\n```",
           "``",
           "```json",
       }) {
    EXPECT_EQ(hear({block}), text(block));
  }
}

TEST(JsonCalls, ABlockMayBeginInsideOneThatIsNone) {
  EXPECT_EQ(hear({"```json\n```json\n{\"name\": \"send\", \"arguments\": {}}\n```"}),
            (std::vector<SpeechEvent>{{Kind::kText, "```json\n", {}}, {Kind::kToolCall, "send", "{}"}}));
}

TEST(JsonCalls, HoldsBackNoMoreThanMayBecomeACall) {
  JsonCallParser parser(tools());
  std::vector<SpeechEvent> events;
  parser.push("plain ` text\n", events);
  EXPECT_EQ(events, text("plain ` text\n"));
  events.clear();
  parser.push("```json\n{\"nam", events);
  EXPECT_TRUE(events.empty());
  parser.push("es\"", events);
  EXPECT_EQ(events, text("```json\n{\"names\""));
}

TEST(JsonCalls, SplitsChangeNothingAndNoTextIsLost) {
  std::mt19937 random(11);
  const std::vector<std::string> pieces = {"```json\n",
                                           "```tool_code\n",
                                           "```",
                                           "\n",
                                           "{\"name\": ",
                                           "\"send\"",
                                           ", \"arguments\": ",
                                           "{}",
                                           "{\"a\": \"x\"}",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           " ",
                                           "text",
                                           "\"",
                                           "\\",
                                           "`",
                                           "é"};
  int calls = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string all;
    for (size_t n = random() % 12; n > 0; --n) all += pieces[random() % pieces.size()];
    if (random() % 3 == 0) all += "\n```json\n{\"name\": \"send\", \"arguments\": {\"k\": [\"`\"]}}\n```";
    std::vector<std::string> split;
    for (size_t at = 0; at < all.size();) {
      const size_t length = 1 + random() % 5;
      split.push_back(all.substr(at, length));
      at += length;
    }
    const std::vector<SpeechEvent> whole = hear({all});
    ASSERT_EQ(hear(split), whole) << all;
    size_t text_bytes = 0;
    bool called = false;
    for (const SpeechEvent& event : whole) {
      text_bytes += event.kind == Kind::kText ? event.text.size() : 0;
      called |= event.kind == Kind::kToolCall;
    }
    calls += called ? 1 : 0;
    if (!called) {
      ASSERT_EQ(text_bytes, all.size()) << all;
    }
  }
  EXPECT_GT(calls, 2'000);
}

}  // namespace
}  // namespace carat

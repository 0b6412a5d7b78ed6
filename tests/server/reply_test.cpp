// From tokens to events: order, stop strings, thoughts, budgets, calls.
#include "server/reply.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/checkpoint.h"

namespace carat::server {
namespace {

/// A vocabulary whose pieces are chosen by the test: Gemma 4's markers and a few words.
class ReplyTest : public testing::Test {
 protected:
  static std::shared_ptr<const Tokenizer> tokenizer() {
    static const auto instance = Tokenizer::from_json_text(R"({
      "added_tokens": [
        {"id": 0, "content": "<pad>", "special": true}, {"id": 1, "content": "<eos>", "special": true},
        {"id": 2, "content": "<bos>", "special": true}, {"id": 3, "content": "<unk>", "special": true},
        {"id": 4, "content": "<|channel>", "special": true}, {"id": 5, "content": "<channel|>", "special": true},
        {"id": 6, "content": "<|tool_call>", "special": true}, {"id": 7, "content": "<tool_call|>", "special": true},
        {"id": 8, "content": "<|\"|>", "special": true}],
      "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [], "vocab": {
        "<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<|channel>": 4, "<channel|>": 5, "<|tool_call>": 6,
        "<tool_call|>": 7, "<|\"|>": 8, "thought": 9, "\n": 10, "alpha": 11, "▁be": 12, "ta▁gam": 13, "ma▁delta": 14,
        "call:f{": 15, "a:1": 16, "}": 17, "x": 18, "DEFG": 19, "<0xF0>": 20, "<0x9F>": 21, "<0x98>": 22, "<0x80>": 23,
        "call:g{}": 24, "▁": 25}}})",
                                                           "test");
    return instance;
  }
  static constexpr SpeechMarkers kMarkers{
      .channel_open = 4, .channel_close = 5, .tool_call_open = 6, .tool_call_close = 7, .quote = 8};

  struct Said {
    std::string text, reasoning;
    std::vector<ReplyEvent> calls;
    std::vector<TokenReport> tokens;
    ReplyEnd end;
    size_t taken = 0;  // tokens until a stop
    std::vector<int> forced;
  };

  static Said say(const std::vector<int>& tokens, const ReplyOptions& options, bool speech = true,
                  FinishReason finish = FinishReason::kStopToken, std::string_view prompt = "") {
    ReplyParser parser;
    if (speech) parser.emplace<SpeechParser>(kMarkers, prompt);
    ReplyReader reader(tokenizer(), std::move(parser), kMarkers, options);
    Said said;
    const auto take = [&] {
      for (const ReplyEvent& event : reader.events()) {
        if (event.kind == ReplyEvent::Kind::kText) said.text += event.text;
        if (event.kind == ReplyEvent::Kind::kReasoning) said.reasoning += event.text;
        if (event.kind == ReplyEvent::Kind::kToolCall) said.calls.push_back(event);
        EXPECT_FALSE(event.text.empty());
      }
      said.tokens.insert(said.tokens.end(), reader.tokens().begin(), reader.tokens().end());
    };
    for (const int token : tokens) {
      ++said.taken;
      const Verdict verdict = reader.push({.token = token, .ends = false, .logprob = -0.5f, .top = {}});
      take();
      if (verdict.next) said.forced.push_back(*verdict.next);
      if (verdict.stop) break;
    }
    GenerationEnd end;
    end.finish = said.taken < tokens.size() ? FinishReason::kStopText : finish;
    end.generated_tokens = static_cast<int64_t>(said.taken);
    reader.finish(end, said.end);
    take();
    return said;
  }
};

TEST_F(ReplyTest, StopStringsReachAcrossTokensAndKeepWhatComesBefore) {
  const Said said = say({11, 12, 13, 14, 18}, {.stop = {"beta gamma"}, .thinking_budget = {}});
  EXPECT_EQ(said.text, "alpha ");
  EXPECT_EQ(said.taken, 4U);
  EXPECT_EQ(said.end.reason, EndReason::kStopSequence);
  EXPECT_EQ(said.end.stop_sequence, "beta gamma");
}

TEST_F(ReplyTest, WhatIsHeldBackForAStopStringComesAtTheEnd) {
  const Said said = say({19}, {.stop = {"DEFGHIJ"}, .thinking_budget = {}}, false);
  EXPECT_EQ(said.text, "DEFG");
  EXPECT_EQ(said.end.reason, EndReason::kStop);
  EXPECT_EQ(said.end.stop_sequence, "");
}

TEST_F(ReplyTest, CharactersInSeveralTokensComeWhole) {
  EXPECT_EQ(say({20, 21, 22, 23}, {}, false).text, "\xF0\x9F\x98\x80");
  EXPECT_EQ(say({20, 21}, {}, false).text, "\xEF\xBF\xBD");
  EXPECT_EQ(say({20, 21}, {}, true).text, "\xEF\xBF\xBD");
}

TEST_F(ReplyTest, ACharacterThatAMarkerCutsBelongsToWhatTheMarkerEnds) {
  const Said said = say({4, 9, 10, 11, 20, 21, 5, 18}, {});
  EXPECT_EQ(said.reasoning, "alpha\xEF\xBF\xBD");
  EXPECT_EQ(said.text, "x");
}

TEST_F(ReplyTest, StopStringsAreLookedForInTheAnswerAlone) {
  const Said said = say({4, 9, 10, 11, 5, 18, 11, 18}, {.stop = {"alpha"}, .thinking_budget = {}});
  EXPECT_EQ(said.reasoning, "alpha");
  EXPECT_EQ(said.text, "x");
  EXPECT_EQ(said.end.reason, EndReason::kStopSequence);
}

TEST_F(ReplyTest, AThoughtThatIsCutIsNoNormalEnd) {
  for (const FinishReason finish : {FinishReason::kMaxTokens, FinishReason::kStopToken}) {
    const Said said = say({4, 9, 10, 11}, {}, true, finish);
    EXPECT_EQ(said.reasoning, "alpha");
    EXPECT_EQ(said.text, "");
    EXPECT_EQ(said.end.reason, EndReason::kLength);
    EXPECT_TRUE(said.end.thought_open);
    EXPECT_EQ(said.end.usage.reasoning_tokens, 4);
  }
  const Said resumed = say({11, 5, 18}, {}, true, FinishReason::kStopToken, "<|turn>model\n<|channel>thought\n");
  EXPECT_EQ(resumed.reasoning, "alpha");
  EXPECT_EQ(resumed.text, "x");
  EXPECT_EQ(resumed.end.reason, EndReason::kStop);
}

TEST_F(ReplyTest, AThinkingBudgetClosesTheThought) {
  const Said said = say({4, 9, 10, 11, 11, 11}, {.stop = {}, .thinking_budget = 4});
  ASSERT_FALSE(said.forced.empty());
  EXPECT_EQ(said.forced.front(), 5);
  EXPECT_EQ(said.forced.size(), 3U);  // asked for again as long as the thought goes on
  EXPECT_TRUE(say({18, 18, 18}, {.stop = {}, .thinking_budget = 1}).forced.empty());
}

TEST_F(ReplyTest, CallsAreNumberedAndEndTheReplyWhenOnlyOneIsWanted) {
  const std::vector<int> two{18, 6, 15, 16, 17, 7, 6, 24, 7};
  const Said both = say(two, {.stop = {}, .thinking_budget = {}});
  ASSERT_EQ(both.calls.size(), 2U);
  EXPECT_EQ(both.calls[0].text, "f");
  EXPECT_EQ(both.calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(both.calls[0].call_index, 0);
  EXPECT_EQ(both.calls[1].call_index, 1);
  EXPECT_NE(both.calls[0].call_id, both.calls[1].call_id);
  EXPECT_EQ(both.calls[0].call_id.size(), 29U);
  EXPECT_EQ(both.text, "x");
  EXPECT_EQ(both.end.reason, EndReason::kToolCalls);

  const Said one = say(two, {.stop = {}, .parallel_calls = false, .thinking_budget = {}});
  EXPECT_EQ(one.calls.size(), 1U);
  EXPECT_EQ(one.taken, 6U);
  EXPECT_EQ(one.end.reason, EndReason::kToolCalls);
}

TEST_F(ReplyTest, TextBeforeACallComesBeforeItThoughAStopStringCouldBegin) {
  const Said said = say({19, 6, 24, 7, 18}, {.stop = {"DEFGHIJ"}, .thinking_budget = {}});
  EXPECT_EQ(said.text, "DEFGx");
  EXPECT_EQ(said.calls.size(), 1U);
}

TEST_F(ReplyTest, EveryTokenIsReported) {
  const Said said = say({18, 6, 24, 7, 20, 21}, {.stop = {}, .logprobs = true, .thinking_budget = {}});
  ASSERT_EQ(said.tokens.size(), 6U);
  EXPECT_EQ(said.tokens[1].bytes, "<|tool_call>");
  EXPECT_EQ(said.tokens[4].bytes, "\xF0");
  EXPECT_EQ(said.tokens[0].logprob, -0.5f);
}

TEST_F(ReplyTest, FencedJsonIsACallOnlyWhenToolsAreKnown) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  ReplyReader reader(tokenizer(), JsonCallParser(tools), kMarkers, {});
  EXPECT_FALSE(reader.push({.token = 11, .ends = false, .logprob = 0, .top = {}}).stop);
  ASSERT_EQ(reader.events().size(), 1U);
  EXPECT_EQ(reader.events()[0].text, "alpha");
}

}  // namespace
}  // namespace carat::server

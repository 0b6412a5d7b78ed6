// The public interface on tiny checkpoints with a tokenizer.
#include "carat/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"

namespace carat {
namespace {

std::filesystem::path model(const char* name) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "gguf" / (std::string(name) + ".gguf");
}

std::vector<int> random_prompt(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> ids{2};
  while (ids.size() < count) ids.push_back(static_cast<int>(300 + random() % 200));
  return ids;
}

GenerateResult generate(Engine& engine, std::vector<int> prompt, int max_tokens = 12) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return engine.generate(request);
}

class EngineTest : public testing::TestWithParam<const char*> {
 protected:
  static Engine open(int chunk = 64) { return Engine::load(model(GetParam()), {.threads = 2, .chunk = chunk}); }
};

// Prefix reuse on full and sliding layers: continuing, editing, shortening, repeating. Each equals a cold run, and what
// is said to be reused is a real common prefix or nothing.
TEST_P(EngineTest, ReusedPrefixesGiveTheTextOfAColdRun) {
  Engine engine = open();
  const std::vector<int> base = random_prompt(200, 1);
  std::vector<std::vector<int>> prompts{base, base};
  prompts.push_back(base);
  prompts.back().insert(prompts.back().end(), {310, 320, 330});           // a next turn
  prompts.push_back(std::vector<int>(base.begin(), base.begin() + 190));  // the last turn edited away
  prompts.push_back(std::vector<int>(base.begin(), base.begin() + 100));  // far before the window
  prompts.back().insert(prompts.back().end(), 50, 400);
  prompts.push_back(random_prompt(30, 2));
  prompts.push_back({2});
  prompts.push_back(base);
  for (const std::vector<int>& prompt : prompts) {
    const GenerateResult warm = generate(engine, prompt);
    Engine fresh = open();
    const GenerateResult cold = generate(fresh, prompt);
    EXPECT_EQ(warm.tokens, cold.tokens);
    EXPECT_EQ(cold.reused_tokens, 0);
    EXPECT_LT(warm.reused_tokens, static_cast<int64_t>(prompt.size()));
  }
  // The same prompt again computes its last token only.
  generate(engine, base, 1);
  EXPECT_EQ(generate(engine, base, 1).reused_tokens, static_cast<int64_t>(base.size()) - 1);
}

TEST_P(EngineTest, ChunksDoNotChangeTheText) {
  const std::vector<int> prompt = random_prompt(150, 3);
  Engine one = open(1);
  Engine many = open(512);
  EXPECT_EQ(generate(one, prompt).tokens, generate(many, prompt).tokens);
}

TEST_P(EngineTest, SeedDecidesTheText) {
  Engine engine = open();
  GenerateRequest request;
  request.prompt = random_prompt(20, 4);
  request.max_tokens = 20;
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 1;
  const GenerateResult first = engine.generate(request);
  generate(engine, random_prompt(40, 5));
  EXPECT_EQ(engine.generate(request).tokens, first.tokens);
  request.sampling.seed = 2;
  EXPECT_NE(engine.generate(request).tokens, first.tokens);
}

TEST_P(EngineTest, EveryStopTokenStopsAndNoneIsLost) {
  Engine engine = open();
  EXPECT_TRUE(std::is_sorted(engine.stop_tokens().begin(), engine.stop_tokens().end()));
  EXPECT_FALSE(engine.stop_tokens().empty());
  const GenerateResult free = generate(engine, random_prompt(20, 6), 30);
  ASSERT_GE(free.tokens.size(), 5u);
  // A token of the caller's ends generation where it first appears, and is not part of the text.
  GenerateRequest request;
  request.prompt = random_prompt(20, 6);
  request.max_tokens = 30;
  request.stop_tokens = {free.tokens[4]};
  const GenerateResult stopped = engine.generate(request);
  const auto first = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[4]);
  EXPECT_EQ(stopped.tokens, std::vector<int>(free.tokens.begin(), first));
  EXPECT_EQ(stopped.finish, FinishReason::kStopToken);
  // The model's own still stop: forced by a bias.
  for (const int token : engine.stop_tokens()) {
    if (token >= engine.vocab_size()) continue;
    request.sampling.logit_bias = {{token, 1e6f}};
    const GenerateResult forced = engine.generate(request);
    EXPECT_TRUE(forced.tokens.empty()) << token;
    EXPECT_EQ(forced.finish, FinishReason::kStopToken);
  }
}

TEST_P(EngineTest, PiecesAreTheText) {
  Engine engine = open();
  GenerateRequest request;
  request.prompt = random_prompt(20, 7);
  request.max_tokens = 25;
  std::string streamed;
  const GenerateResult result = engine.generate(request, [&](const Piece& piece) {
    streamed += piece.text;
    return true;
  });
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.finish, result.tokens.size() == 25 ? FinishReason::kMaxTokens : FinishReason::kStopToken);
  int calls = 0;
  const GenerateResult cancelled = engine.generate(request, [&](const Piece&) { return ++calls < 3; });
  EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
  EXPECT_EQ(cancelled.tokens.size(), 3u);
  request.max_tokens = 0;
  EXPECT_TRUE(engine.generate(request).tokens.empty());
}

TEST_P(EngineTest, BosComesOnce) {
  Engine engine = open();
  const std::vector<int> text = engine.encode("Hello");
  EXPECT_EQ(std::count(text.begin(), text.end(), 2), 1);
  EXPECT_EQ(text.front(), 2);
  EXPECT_EQ(engine.encode("<bos>Hello"), text);
  const std::vector<int> chat =
      engine.encode_chat({.messages = R"([{"role": "user", "content": "Hello"}])", .tools = ""});
  EXPECT_EQ(std::count(chat.begin(), chat.end(), 2), 1);
  EXPECT_EQ(chat.front(), 2);
}

// A user who writes a control token says it; only the conversation's form makes one.
TEST_P(EngineTest, ControlTokensInMessagesAreText) {
  const Engine engine = open();
  const std::string said = "a<bos>b <eos>";
  const std::vector<int> ids =
      engine.encode_chat({.messages = R"([{"role": "user", "content": ")" + said + R"("}])", .tools = ""});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 0);
  EXPECT_NE(engine.decode(ids).find(said), std::string::npos);
  // The model's own words keep theirs.
  const std::vector<int> own = engine.encode_chat(
      {.messages = R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y<eos>"}])", .tools = ""});
  EXPECT_EQ(std::count(own.begin(), own.end(), 1), 1);
}

TEST_P(EngineTest, RefusesWhatItCannotDo) {
  Engine engine = open();
  EXPECT_THROW(generate(engine, {}), Error);
  EXPECT_THROW(generate(engine, {2, 1 << 20}), Error);
  EXPECT_THROW(generate(engine, {2}, -1), Error);
  EXPECT_THROW(generate(engine, std::vector<int>(static_cast<size_t>(engine.context_length()) + 1, 2)), Error);
  EXPECT_THROW(engine.encode_chat({.messages = "not JSON", .tools = ""}), Error);
  GenerateRequest request;
  request.prompt = {2};
  request.sampling.top_p = 7.0f;
  EXPECT_THROW(engine.generate(request), Error);
  request.sampling = {};
  EXPECT_EQ(engine.generate(request).prompt_tokens, 1);  // and goes on working
}

/// A copy of the model whose context is `tokens`: in a GGUF file 4 bytes behind the key and the 4 bytes of its type.
std::filesystem::path with_context(const char* name, uint32_t tokens) {
  std::ifstream in(model(name), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string key = ".context_length";
  const size_t at = bytes.find(key);
  if (at == std::string::npos) fail("the golden names no context");
  std::memcpy(bytes.data() + at + key.size() + 4, &tokens, sizeof tokens);
  const auto path = std::filesystem::path(testing::TempDir()) / fmt::format("context.{}.{}.gguf", getpid(), name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST_P(EngineTest, AFullContextEndsTheAnswerAndALongerPromptIsRefused) {
  constexpr int kContext = 100;
  const std::filesystem::path path = with_context(GetParam(), kContext);
  Engine engine = Engine::load(path, {.threads = 2, .chunk = 64});
  std::filesystem::remove(path);
  ASSERT_EQ(engine.context_length(), kContext);
  GenerateRequest request;
  request.max_tokens = 50;
  for (const int token : engine.stop_tokens()) {
    if (token < engine.vocab_size()) request.sampling.logit_bias.emplace_back(token, -1e6f);
  }
  for (const int prompt : {90, kContext}) {
    request.prompt = random_prompt(static_cast<size_t>(prompt), 9);
    const GenerateResult result = engine.generate(request);
    EXPECT_EQ(result.finish, FinishReason::kContext);
    EXPECT_EQ(result.tokens.size(), static_cast<size_t>(kContext - prompt + 1));  // one follows the last position
  }
  request.prompt = random_prompt(kContext + 1, 9);
  try {
    engine.generate(request);
    FAIL() << "a prompt longer than the context was read";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the prompt has 101 tokens; the model's context is 100");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineTest, testing::Values("dense.q4_0", "pli.q8_0", "moe.q8_0", "gemma3.q8_0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace carat

// Ids against Hugging Face's `tokenizers`, text for text, and the laws that hold for any bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

#include "checkpoint/gguf.h"
#include "tokenizer/golden_cases.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

using Specials = Tokenizer::Specials;

void expect_golden(const Tokenizer& tokenizer, const std::string& goldens) {
  for (const GoldenCase& golden : golden_cases(goldens)) {
    EXPECT_EQ(tokenizer.encode(golden.text), golden.ids) << testing::PrintToString(golden.text);
    EXPECT_EQ(tokenizer.encode(golden.text, Specials::kText), golden.ids_as_text)
        << testing::PrintToString(golden.text);
  }
}

std::shared_ptr<const Tokenizer> small() {
  static const auto tokenizer = Tokenizer::from_json(test_path("small.json"));
  return tokenizer;
}

/// The file that an environment variable names; null (the test is skipped) when it is not set.
std::shared_ptr<const GgufFile> gguf_from_environment(const char* variable) {
  const char* path = std::getenv(variable);
  return path ? GgufFile::open(path) : nullptr;
}

TEST(Goldens, SmallGemma) {
  expect_golden(*small(), "small.goldens.json");
}

TEST(Goldens, OptionsThatGemmaLeavesAlone) {
  expect_golden(*Tokenizer::from_json(test_path("variant.json")), "variant.goldens.json");
}

TEST(Goldens, Gemma3InsideGguf) {
  const auto file = gguf_from_environment("CARAT_MODEL_270M");
  if (!file) GTEST_SKIP() << "CARAT_MODEL_270M does not name Gemma 3 270M's GGUF file";
  const auto tokenizer = Tokenizer::from_gguf(*file);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_ids(), (std::vector<int>{1, 106}));
  // The file has 262,144 rows and pieces; tokenizer.json goes on with one that only pictures use.
  constexpr int kImageSoftToken = 262144;
  for (const GoldenCase& golden : golden_cases("gemma3.goldens.json")) {
    if (std::ranges::count(golden.ids, kImageSoftToken) > 0) continue;
    EXPECT_EQ(tokenizer->encode(golden.text), golden.ids) << testing::PrintToString(golden.text);
    EXPECT_EQ(tokenizer->encode(golden.text, Specials::kText), golden.ids_as_text)
        << testing::PrintToString(golden.text);
  }
}

TEST(Goldens, Gemma4InsideGguf) {
  const auto file = gguf_from_environment("CARAT_GEMMA4_VOCAB");
  if (!file) GTEST_SKIP() << "CARAT_GEMMA4_VOCAB does not name a GGUF file with Gemma 4's vocabulary";
  const auto tokenizer = Tokenizer::from_gguf(*file);

  // One text, then a separator line; one line of ids a text.
  const std::string texts = read_test_file("gemma4_vectors.inp");
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(read_test_file("gemma4_vectors.out"));
  size_t begin = 0, count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const size_t end = std::min(texts.find(separator, begin), texts.size());
    const std::string text = texts.substr(begin, end - begin);
    begin = std::min(end + separator.size(), texts.size());
    std::istringstream numbers(line);
    const std::vector<int> ids{std::istream_iterator<int>(numbers), {}};
    EXPECT_EQ(tokenizer->encode(text), ids) << testing::PrintToString(text);
  }
  EXPECT_GE(count, 40u);
  EXPECT_EQ(begin, texts.size());

  EXPECT_EQ(tokenizer->encode(" Linus"), (std::vector<int>{9684, 605}));
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_ids(), (std::vector<int>{1, 50, 106}));
  EXPECT_EQ(tokenizer->encode("<|turn>user\n").front(), 105);
  for (const char* control : {"<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<|\"|>", "<bos>"}) {
    EXPECT_EQ(tokenizer->encode(control).size(), 1u) << control;
    EXPECT_GT(tokenizer->encode(control, Specials::kText).size(), 1u) << control;
  }
}

TEST(Encoding, EveryByteStringComesBack) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {
      "a",        " ",    "\n\n",  "é", "你",     "😀", "\xff", "\x80", "\xe2",      "\x96",   "\x81",
      "\xe2\x96", "\xf0", "<bos>", "<", "<0x0A>", "▁", "\0",   "the ", ">\xe2\x96", " Linus", "\xed\xa0\x80"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) {
      text += random() % 3 ? parts[random() % parts.size()] : std::string(1, static_cast<char>(random()));
    }
    // A mark that stands for itself comes back as the space that it stands for.
    const std::string_view mark = "▁";
    std::string expected;
    for (size_t at = 0; at < text.size(); ++at) {
      const bool is_mark = text.compare(at, mark.size(), mark) == 0;
      expected += is_mark ? ' ' : text[at];
      if (is_mark) at += mark.size() - 1;
    }
    for (const auto specials : {Specials::kParse, Specials::kText}) {
      EXPECT_EQ(small()->decode(small()->encode(text, specials), true), expected) << testing::PrintToString(text);
    }
  }
}

TEST(Encoding, UntrustedTextNeverHoldsControlTokens) {
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    for (const int id : small()->encode(golden.text, Specials::kText)) EXPECT_FALSE(small()->is_special(id));
  }
}

// A long text takes the word cache; its words one by one do not. No piece here reaches across these words.
TEST(Encoding, LongTextsEqualTheirWords) {
  std::mt19937 random(11);
  const std::vector<std::string> words = {" the", " Linus", " function", " naïve", " 你好世界",
                                          " x",   "\n",     "  ",        " ",      " 👍🏽"};
  std::string text;
  std::vector<int> expected;
  for (int i = 0; i < 20000; ++i) {
    std::string word = words[random() % words.size()];
    if (random() % 4 == 0) word += std::to_string(random());
    word += '.';  // keeps runs of spaces and newlines apart
    text += word;
    const auto ids = small()->encode(word);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(small()->encode(text), expected);
}

// Quadratic algorithms need minutes here.
TEST(Encoding, MegabytesOfOneLetterAreNoTrouble) {
  for (const std::string unit : {"a", " ", "\n", "é", "\xff", "<", "ab"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    EXPECT_EQ(small()->decode(small()->encode(text)), text);
  }
}

TEST(Decoding, ControlTokensAreWrittenOnRequest) {
  const auto ids = small()->encode("<start_of_turn>user\nhi<end_of_turn>\n");
  EXPECT_EQ(small()->decode(ids), "user\nhi\n");
  EXPECT_EQ(small()->decode(ids, true), "<start_of_turn>user\nhi<end_of_turn>\n");
  EXPECT_TRUE(small()->is_special(ids.front()));
  EXPECT_EQ(small()->token_bytes(ids.front()), "");
  EXPECT_EQ(small()->piece(ids.front()), "<start_of_turn>");
}

TEST(Decoding, TokenBytesJoinToTheText) {
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    std::string joined;
    for (const int id : golden.ids) joined += small()->token_bytes(id);
    EXPECT_EQ(joined, small()->decode(golden.ids));
  }
}

TEST(Decoding, UnknownIdsAreErrors) {
  for (const int id : {-1, small()->vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_THROW(small()->decode({id}), std::runtime_error);
    EXPECT_THROW(small()->piece(id), std::runtime_error);
    EXPECT_THROW(small()->token_bytes(id), std::runtime_error);
    EXPECT_FALSE(small()->is_special(id));
  }
}

TEST(Decoding, PiecesAndIdsAreInverse) {
  for (int id = 0; id < small()->vocab_size(); ++id) EXPECT_EQ(small()->id(small()->piece(id)), id);
  EXPECT_EQ(small()->id("no such piece"), std::nullopt);
}

}  // namespace
}  // namespace carat

// The vocabularies inside GGUF files against the tokenizer.json that they were converted from.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "checkpoint/files.h"
#include "checkpoint/gguf.h"
#include "tokenizer/golden_cases.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

using Specials = Tokenizer::Specials;
using testing::GgufBuilder;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kByte = 6;

/// What a converter writes.
struct Metadata {
  std::string model;
  std::vector<std::string> tokens, merges;
  std::vector<float> scores;
  std::vector<int32_t> types;
  std::map<std::string, uint32_t> ids;  // bos_token_id and so on
};

std::shared_ptr<const Tokenizer> load(const Metadata& metadata) {
  GgufBuilder builder;
  if (!metadata.model.empty()) builder.string("tokenizer.ggml.model", metadata.model);
  if (!metadata.tokens.empty()) builder.strings("tokenizer.ggml.tokens", metadata.tokens);
  if (!metadata.scores.empty()) builder.array("tokenizer.ggml.scores", 6, metadata.scores);
  if (!metadata.types.empty()) builder.array("tokenizer.ggml.token_type", 5, metadata.types);
  if (!metadata.merges.empty()) builder.strings("tokenizer.ggml.merges", metadata.merges);
  for (const auto& [name, id] : metadata.ids) builder.u32("tokenizer.ggml." + name, id);
  const auto bytes = builder.build();
  return Tokenizer::from_gguf(*GgufFile::parse(bytes, "test.gguf"));  // the tokenizer keeps nothing of the file
}

/// small.json as converters write Gemma 3 (scores) or Gemma 4 (merges).
Metadata converted(bool scored) {
  const auto json = nlohmann::json::parse(read_test_file("small.json"));
  Metadata result;
  result.model = scored ? "llama" : "gemma4";
  result.ids = {{"bos_token_id", 2}, {"eos_token_id", 1}, {"unknown_token_id", 3}};
  const auto& vocabulary = json.at("model").at("vocab");
  size_t size = 0;
  for (const auto& token : json.at("added_tokens")) size = std::max(size, token.at("id").get<size_t>() + 1);
  size = std::max(size, vocabulary.size());
  result.tokens.resize(size);
  result.scores.assign(size, -1e6f);
  result.types.assign(size, kNormal);
  for (const auto& [piece, id] : vocabulary.items()) {
    result.tokens[id.get<size_t>()] = piece;
    if (piece.size() == 6 && piece.starts_with("<0x")) result.types[id.get<size_t>()] = kByte;
  }
  float score = 0;  // the first merge that makes a piece tells its place among the scores
  for (const auto& merge : json.at("model").at("merges")) {
    const std::string left = merge.at(0), right = merge.at(1);
    result.merges.push_back(left + " " + right);
    float& of_piece = result.scores[vocabulary.at(left + right).get<size_t>()];
    if (of_piece == -1e6f) of_piece = score -= 1;
  }
  if (scored) result.merges.clear();
  for (const auto& token : json.at("added_tokens")) {
    const auto id = token.at("id").get<size_t>();
    const std::string content = token.at("content");
    result.tokens[id] = content;
    if (token.at("special") || content.starts_with("<unused") || content == "<mask>") {
      result.types[id] = kControl;
    } else if (scored) {
      result.types[id] = kUserDefined;
      result.scores[id] = -1000;
      std::string& piece = result.tokens[id];  // converters write the marks of these as spaces
      for (size_t at; (at = piece.find("▁")) != std::string::npos;) piece.replace(at, 3, " ");
    }
  }
  return result;
}

TEST(TokenizerGguf, ScoresGiveTheIdsOfMerges) {
  const auto tokenizer = load(converted(true));
  const auto json = Tokenizer::from_json(test_path("small.json"));
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    EXPECT_EQ(tokenizer->encode(golden.text), golden.ids) << ::testing::PrintToString(golden.text);
    EXPECT_EQ(tokenizer->encode(golden.text, Specials::kText), golden.ids_as_text)
        << ::testing::PrintToString(golden.text);
    EXPECT_EQ(tokenizer->decode(golden.ids), json->decode(golden.ids));
  }
  for (int id = 0; id < json->vocab_size(); ++id) {
    EXPECT_EQ(tokenizer->is_special(id), json->is_special(id)) << json->piece(id);
    EXPECT_EQ(tokenizer->piece(id), json->piece(id));
  }
}

// Gemma 4's vocabulary adds no newlines, HTML tags or runs of marks: merges make them. A text with the tags or with
// marks next to spaces may then be cut elsewhere.
TEST(TokenizerGguf, MergesGiveTheSameIds) {
  const auto tokenizer = load(converted(false));
  int compared = 0;
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    if (golden.text.find_first_of("<[") != std::string::npos || golden.text.find("▁") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->encode(golden.text), golden.ids) << ::testing::PrintToString(golden.text);
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

TEST(TokenizerGguf, MergesWithoutResultNeverApply) {
  const auto expected = load(converted(false))->encode(" Linus Torvalds");
  Metadata metadata = converted(false);
  // Ahead of all others, so that a reader that applied them would.
  metadata.merges.insert(metadata.merges.begin(), {"u s▁", "n u", "s ▁T", "▁L qq"});
  metadata.tokens.push_back("unrelated");
  metadata.types.push_back(kNormal);
  EXPECT_EQ(load(metadata)->encode(" Linus Torvalds"), expected);
}

TEST(TokenizerGguf, EndTokensAreAUnion) {
  Metadata metadata = converted(true);
  metadata.ids["eot_token_id"] = 7;
  const auto tokenizer = load(metadata);
  for (const int id : {1, 7, tokenizer->id("<end_of_turn>").value()}) {
    EXPECT_EQ(std::ranges::count(tokenizer->eos_ids(), id), 1);
  }
  EXPECT_EQ(tokenizer->bos_id(), 2);
}

TEST(TokenizerGguf, RefusesWhatItDoesNotSupport) {
  struct Refusal {
    const char* words;
    std::function<void(Metadata&)> change;
    bool scored = true;
  };
  const Refusal refusals[] = {
      {"no tokenizer.ggml.model", [](Metadata& m) { m.model.clear(); }},
      {"\"gpt2\"", [](Metadata& m) { m.model = "gpt2"; }},
      {"tokenizer.ggml.tokens", [](Metadata& m) { m.tokens.clear(); }},
      {"token_type", [](Metadata& m) { m.types.pop_back(); }},
      {"token_type", [](Metadata& m) { m.types.clear(); }},
      {"scores", [](Metadata& m) { m.scores.pop_back(); }},
      {"scores", [](Metadata& m) { m.scores.clear(); }},
      {"bos_token_id is 1000000", [](Metadata& m) { m.ids["bos_token_id"] = 1000000; }},
      {"merges is missing", [](Metadata& m) { m.merges.clear(); }, false},
      {"merges[0]", [](Metadata& m) { m.merges[0] = "ab"; }, false},
      {"merges[1]", [](Metadata& m) { m.merges[1] = ""; }, false},
      {"merges[2]", [](Metadata& m) { m.merges[2] = "a b c"; }, false},
      {"merges[3]", [](Metadata& m) { m.merges[3] = "a "; }, false},
  };
  for (const Refusal& refusal : refusals) {
    Metadata metadata = converted(refusal.scored);
    refusal.change(metadata);
    std::string message;
    try {
      load(metadata);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find(refusal.words), std::string::npos) << refusal.words << " / " << message;
  }
}

}  // namespace
}  // namespace carat

// What a tokenizer.json may say: each thing that carat does not support is refused by name, not misread.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "tokenizer/golden_cases.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

using Json = nlohmann::json;

Json variant() {
  return Json::parse(read_test_file("variant.json"));
}

std::shared_ptr<const Tokenizer> load(const Json& json) {
  return Tokenizer::from_json_text(json.dump(), "test.json");
}

/// The error that a changed file gives; empty when it loads.
std::string error_of(const std::function<void(Json&)>& change) {
  Json json = variant();
  change(json);
  try {
    load(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TokenizerJson, RefusesWhatItDoesNotSupport) {
  struct Refusal {
    const char* words;
    std::function<void(Json&)> change;
  };
  const Refusal refusals[] = {
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"normalizer", [](Json& j) { j["normalizer"]["content"] = "_"; }},
      {"pre_tokenizer",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "ByteLevel"}};
       }},
      {"decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "ByteLevel"}};
       }},
      {"expected BPE", [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"continuing_subword_prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }},
      {"end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = 1; }},
      {"unk_token \"<none>\"", [](Json& j) { j["model"]["unk_token"] = "<none>"; }},
      {"unk_token", [](Json& j) { j["model"]["unk_token"] = 3; }},
      {"which model.vocab lacks", [](Json& j) { j["model"]["merges"].push_back("x 你"); }},
      {"expected two pieces", [](Json& j) { j["model"]["merges"].push_back("abc"); }},
      {"expected two pieces", [](Json& j) { j["model"]["merges"].push_back("a b c"); }},
      {"3 sides",
       [](Json& j) {
         j["model"]["merges"].push_back({"a", "b", "c"});
       }},
      {"not a tokenizer file", [](Json& j) { j["model"]["merges"].push_back(7); }},
      {"byte token", [](Json& j) { j["model"]["merges"].push_back("<0x41> a"); }},
      {"with the id", [](Json& j) { j["model"]["vocab"]["again"] = 5; }},
      {"id -1", [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
      {"id 4194304", [](Json& j) { j["model"]["vocab"]["a"] = 1 << 22; }},
      {"not a tokenizer file", [](Json& j) { j["model"]["vocab"]["a"] = "one"; }},
      {"no \"model\"", [](Json& j) { j.erase("model"); }},
      {"no \"vocab\"", [](Json& j) { j["model"].erase("vocab"); }},
      {"lstrip", [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }},
      {"single_word", [](Json& j) { j["added_tokens"][0]["single_word"] = true; }},
      {"without an id", [](Json& j) { j["added_tokens"][0].erase("id"); }},
      {"elsewhere in the file", [](Json& j) { j["added_tokens"][0]["id"] = 3; }},
      {"belongs to", [](Json& j) { j["added_tokens"][3]["id"] = 3; }},
      {"beginning-of-sequence",
       [](Json& j) {
         j["model"]["vocab"] = {{"<unk>", 0}};
         j["model"]["merges"] = Json::array();
         j["added_tokens"] = Json::array();
       }},
      {"splits at spaces",
       [](Json& j) {
         j["normalizer"] = nullptr;
         j["pre_tokenizer"] = Json::parse(read_test_file("small.json")).at("pre_tokenizer");
       }},
  };
  EXPECT_EQ(error_of([](Json&) {}), "");
  for (const Refusal& refusal : refusals) {
    const std::string error = error_of(refusal.change);
    EXPECT_NE(error.find(refusal.words), std::string::npos) << refusal.words << " / " << error;
    EXPECT_TRUE(error.starts_with("test.json: ")) << error;
  }
}

TEST(TokenizerJson, TheSameWhereverTheSectionsStand) {
  // nlohmann sorts keys: model before normalizer, merges before vocab, added_tokens first. The file has another order.
  const auto sorted = load(Json::parse(read_test_file("small.json")));
  const auto as_written = Tokenizer::from_json(test_path("small.json"));
  for (const GoldenCase& golden : golden_cases("small.goldens.json")) {
    EXPECT_EQ(sorted->encode(golden.text), as_written->encode(golden.text));
  }
}

TEST(TokenizerJson, MergesAsPairsEqualMergesAsLines) {
  Json pairs = variant();
  for (Json& merge : pairs["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    merge = {line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)};
  }
  const auto a = load(variant()), b = load(pairs);
  for (const GoldenCase& golden : golden_cases("variant.goldens.json")) {
    EXPECT_EQ(a->encode(golden.text), b->encode(golden.text));
  }
}

TEST(TokenizerJson, CutAnywhereItFailsCleanly) {
  const std::string text = read_test_file("variant.json");
  int refused = 0;
  for (size_t length = 0; length < text.size(); length += 7) {
    try {
      Tokenizer::from_json_text(std::string_view(text).substr(0, length), "cut.json");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(TokenizerJson, ConfigurationNamesBosAndEos) {
  const auto directory = std::filesystem::temp_directory_path() / fmt::format("carat-tokenizer-{}", ::getpid());
  std::filesystem::create_directories(directory);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(directory / name) << text; };
  write("tokenizer.json", read_test_file("small.json"));
  write(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"0": {"content": "x"}}, "bos_token": {"content": "<pad>"}, "eos_token": "<mask>"})");
  const auto tokenizer = Tokenizer::from_json(directory / "tokenizer.json");
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->id("<pad>"));
  const auto& eos = tokenizer->eos_ids();
  for (const char* name : {"<mask>", "<eos>", "<end_of_turn>"}) {
    EXPECT_EQ(std::ranges::count(eos, tokenizer->id(name).value()), 1) << name;
  }
  EXPECT_TRUE(std::ranges::is_sorted(eos));
  write("tokenizer_config.json", R"({"bos_token": "<nowhere>"})");
  EXPECT_THROW(Tokenizer::from_json(directory / "tokenizer.json"), Error);
  std::filesystem::remove_all(directory);
  EXPECT_THROW(Tokenizer::from_json(directory / "tokenizer.json"), Error);
}

// The text may end anywhere in a page; a mapping is readable to the page's end only.
TEST(TokenizerJson, FilesOfEveryLengthAroundAPage) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("carat-page-{}.json", ::getpid());
  const std::string text = read_test_file("variant.json");
  const size_t pages = (text.size() / 4096 + 2) * 4096;
  for (size_t size = pages - 130; size <= pages + 2; size += 3) {
    std::ofstream(path) << text << std::string(size - text.size(), ' ');
    EXPECT_EQ(Tokenizer::from_json(path)->encode("abc"), Tokenizer::from_json_text(text, "text")->encode("abc"));
  }
  std::filesystem::remove(path);
}

TEST(Tokenizer, MarkedControlTokensAreTextAndOthersAreNot) {
  const auto tokenizer = Tokenizer::from_json(test_path("small.json"));
  const std::vector<std::string> texts = {
      "", "plain", "<bos>", "a<bos>b", "<bos><eos><bos>", "\uFDD0<bos>", "<bo<bos>s>", "  <eos>  \n\n", "<bos\n>"};
  for (const std::string& text : texts) {
    std::string expected = text;  // the mark itself cannot be said
    if (const size_t mark = expected.find("\uFDD0"); mark != std::string::npos) expected.replace(mark, 3, "\uFFFD");
    EXPECT_EQ(tokenizer->encode_marked(tokenizer->mark_specials(text)),
              tokenizer->encode(expected, Tokenizer::Specials::kText))
        << text;
  }
  const std::vector<int> ids = tokenizer->encode_marked("<bos>" + tokenizer->mark_specials("say <eos>") + "<eos>");
  EXPECT_EQ(ids.front(), tokenizer->bos_id());
  EXPECT_EQ(ids.back(), tokenizer->id("<eos>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ids.back()), 1);
  EXPECT_EQ(tokenizer->decode(ids), "say <eos>");
}

}  // namespace
}  // namespace carat

// Bytes to JSON to a schema to a language: compiling ends in a grammar or an Error, and no walk leads nowhere.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/constraint.h"
#include "tokenizer/tokenizer.h"

namespace {

using carat::Json;

/// A vocabulary of all bytes, some words, and Gemma 4's control tokens.
std::string tokenizer_json() {
  Json vocab = Json::object();
  int id = 0;
  for (const char* piece : {"<pad>", "<eos>", "<bos>", "<unk>", "\"", "\",", "\":", "{\"", "}", "]", "[", "true",
                            "null", "12", "a", "ab", "\xe2\x96\x81", "\xc3\xa9", "\\n"}) {
    vocab[piece] = id++;
  }
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = id++;
  Json added = Json::array();
  const auto add = [&](const char* piece, int at) {
    added.push_back({{"id", at},
                     {"content", piece},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  for (const char* piece : {"<pad>", "<eos>", "<bos>", "<unk>"}) add(piece, vocab[piece].get<int>());
  for (const char* piece : {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"}) add(piece, id++);
  const Json normalizer = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xe2\x96\x81"}};
  const Json model = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                      {"byte_fallback", true}, {"vocab", vocab},       {"merges", Json::array()}};
  return Json{{"added_tokens", added}, {"normalizer", normalizer}, {"model", model}}.dump();
}

std::shared_ptr<const carat::GrammarVocabulary> vocabulary() {
  static const auto kVocabulary = [] {
    const auto tokenizer = carat::Tokenizer::from_json_text(tokenizer_json(), "fuzz");
    return carat::make_grammar_vocabulary(*tokenizer, tokenizer->vocab_size() + 5, {1});
  }();
  return kVocabulary;
}

int id_of(const std::string& piece) {
  static const auto kTokenizer = carat::Tokenizer::from_json_text(tokenizer_json(), "fuzz");
  return kTokenizer->id(piece).value();
}

/// `opening`: tokens to begin with.
void walk(const std::shared_ptr<const carat::Grammar>& grammar, std::string_view choices,
          const std::vector<int>& opening = {}) {
  carat::Constraint constraint(grammar);
  for (const int token : opening) {
    const auto mask = constraint.allowed();
    const auto at = static_cast<size_t>(token);
    if (!mask.empty() && (mask[at / 64] >> (at % 64) & 1) == 0) __builtin_trap();
    constraint.accept(token);
  }
  for (size_t step = 0; step < 200; ++step) {
    const auto mask = constraint.allowed();
    if (mask.empty()) return;  // in text again
    std::vector<int> allowed;
    for (size_t token = 0; token < mask.size() * 64; ++token) {
      if (mask[token / 64] >> (token % 64) & 1) allowed.push_back(static_cast<int>(token));
    }
    if (allowed.empty()) __builtin_trap();
    const bool may_stop = (mask[0] >> 1 & 1) != 0;
    if (may_stop != constraint.complete()) __builtin_trap();
    if (allowed == std::vector<int>{1}) return;
    const auto choice = static_cast<unsigned char>(choices[step % choices.size()]) + step;
    const int token = allowed[choice % allowed.size()];
    constraint.accept(token);
    if (token == 1) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 20'000) return 0;
  const Json schema = Json::parse(data, data + size, nullptr, false);
  if (schema.is_discarded()) return 0;
  const std::string_view choices(reinterpret_cast<const char*>(data), size);
  try {
    walk(carat::json_grammar(vocabulary(), schema), choices);
  } catch (const carat::Error&) {
  }
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "tool"}, {"parameters", schema}}}}});
  for (const carat::ChatFormat format : {carat::ChatFormat::kGemma3, carat::ChatFormat::kGemma4}) {
    try {
      carat::CallGrammarOptions options;
      options.format = format;
      walk(carat::call_grammar(vocabulary(), tools, options), choices);
    } catch (const carat::Error&) {
    }
    try {
      const auto free = carat::free_call_grammar(vocabulary(), tools, format);
      if (free == nullptr) continue;
      std::vector<int> opening = {id_of("<|tool_call>")};
      if (format == carat::ChatFormat::kGemma3) {
        opening.clear();
        for (const char c : std::string_view("```json\n{\"name\": \"tool\", \"arguments\":")) {
          opening.push_back(id_of(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c))));
        }
      }
      walk(free, choices, opening);
    } catch (const carat::Error&) {
    }
  }
  return 0;
}

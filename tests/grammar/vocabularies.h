// Vocabularies for the tests of grammars, and walks through languages.
#pragma once

#include <bit>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/constraint.h"
#include "tokenizer/tokenizer.h"

namespace carat {

struct TestVocabulary {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> grammar;
  int stop = 0;
};

/// The small Gemma vocabulary of the tokenizer's tests with Gemma 4's control tokens added to it, and `pieces` of text.
inline TestVocabulary small_vocabulary(const std::string& small_json, const std::vector<std::string>& pieces = {}) {
  std::ifstream file(small_json);
  if (!file) throw std::runtime_error("cannot read " + small_json);
  Json json = Json::parse(file);
  int id = static_cast<int>(json["model"]["vocab"].size());
  for (const auto& token : json["added_tokens"]) id = std::max(id, token["id"].get<int>() + 1);
  const auto add = [&](const std::string& piece, bool special) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", piece},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", special}});
  };
  for (const char* piece :
       {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|tool_response>", "<turn|>"}) {
    add(piece, true);
  }
  for (const std::string& piece : pieces) add(piece, false);
  TestVocabulary out;
  out.tokenizer = Tokenizer::from_json_text(json.dump(), "small.json");
  out.stop = out.tokenizer->id("<turn|>").value();
  out.grammar = make_grammar_vocabulary(*out.tokenizer, id, {out.stop});
  return out;
}

inline bool has(std::span<const uint64_t> mask, int token) {
  return (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

inline std::vector<int> tokens_of(std::span<const uint64_t> mask) {
  std::vector<int> tokens;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      tokens.push_back(static_cast<int>(word * 64) + std::countr_zero(bits));
    }
  }
  return tokens;
}

/// Tokens drawn from what is allowed until a stop token comes, which is not among the result, or until anything may
/// come. Ends when it can after about `length` tokens: then tokens that lead towards an end are preferred.
inline std::vector<int> random_walk(Constraint& constraint, const TestVocabulary& vocabulary, std::mt19937& random,
                                    size_t length, size_t limit = 20'000) {
  std::vector<int> walked;
  while (walked.size() < limit) {
    if (constraint.allowed().empty()) return walked;
    const std::vector<int> allowed = tokens_of(constraint.allowed());
    if (allowed.empty()) throw std::runtime_error("nothing is allowed");
    const bool may_stop = has(constraint.allowed(), vocabulary.stop);
    if (may_stop && (walked.size() >= length || random() % 4 == 0)) return walked;
    int token = vocabulary.stop;
    while (token == vocabulary.stop) {
      if (allowed.size() == 1 && allowed[0] == vocabulary.stop) return walked;
      token = allowed[random() % allowed.size()];
    }
    const bool late = walked.size() >= length;
    // Not always: a text that must still match a pattern ends only when something else has been said.
    if (random() % 4 == 0 || (late && random() % 4 != 0)) {
      // What closes comes first, then what is short: so walks end. Inside a text a bracket closes nothing.
      const auto may = [&](std::string_view piece) {
        const auto id = vocabulary.tokenizer->id(piece);
        return id && has(constraint.allowed(), *id);
      };
      std::vector<std::string_view> closers = {
          "]", "}", "<tool_call|>", "<|\"|>", "\"", "null", "n", "ull", "ll", "l", "0", "1", "t", "f"};
      if (may("}") && may("x")) closers = {"<|\"|>", "\""};
      for (const std::string_view closing : closers) {
        if (!may(closing)) continue;
        token = vocabulary.tokenizer->id(closing).value();
        if (late || random() % 2 == 0) break;
      }
    }
    constraint.accept(token);
    walked.push_back(token);
  }
  throw std::runtime_error("a walk did not end: " + vocabulary.tokenizer->decode(walked, true).substr(0, 2000));
}

}  // namespace carat

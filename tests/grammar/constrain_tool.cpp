// Reads lines of {"schema": …, "seed": …} (or {"tools": …, "format": "gemma4" | "gemma3", "seed": …}) and prints for
// each a line {"text": …} that a random walk under the constraint said, or {"error": …}. For
// tests/python/test_grammar.py.
#include <fmt/format.h>

#include <exception>
#include <iostream>
#include <string>

#include "base/error.h"
#include "grammar/vocabularies.h"

namespace {

using carat::Json;

Json answer(const carat::TestVocabulary& vocabulary, const Json& request) {
  std::mt19937 random(request.value("seed", 0u));
  std::shared_ptr<const carat::Grammar> grammar;
  try {
    if (request.contains("tools")) {
      carat::CallGrammarOptions options;
      options.format =
          request.value("format", "") == "gemma3" ? carat::ChatFormat::kGemma3 : carat::ChatFormat::kGemma4;
      grammar = carat::call_grammar(vocabulary.grammar, request["tools"], options);
    } else {
      grammar = carat::json_grammar(vocabulary.grammar, request.contains("schema") ? request["schema"] : Json());
    }
  } catch (const carat::Error& error) {
    return {{"error", error.what()}};
  }
  Json texts = Json::array();
  for (int i = request.value("walks", 1); i > 0; --i) {
    carat::Constraint constraint(grammar);
    texts.push_back(
        vocabulary.tokenizer->decode(carat::random_walk(constraint, vocabulary, random, random() % 200), true));
  }
  return {{"texts", texts}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: carat_constrain SMALL_TOKENIZER_JSON");
    const carat::TestVocabulary vocabulary = carat::small_vocabulary(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(vocabulary, Json::parse(line)).dump(-1, ' ', false, Json::error_handler_t::replace)
                << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "carat_constrain: " << error.what() << '\n';
    return 1;
  }
  return 0;
}

// Reads lines of {"schema": …, "seed": …} (or {"tools": …, "format": "gemma4" | "gemma3", "seed": …}) and prints for
// each a line {"texts": …} that random walks under the constraint said, or {"error": …}. With "free": true the walks
// begin with text and the beginning of a call of the first tool, and what is read of them stands in {"calls": …}. For
// tests/python/test_grammar.py.
#include <fmt/format.h>

#include <exception>
#include <iostream>
#include <string>

#include "base/error.h"
#include "chat/json_calls.h"
#include "chat/speech.h"
#include "grammar/vocabularies.h"

namespace {

using carat::Json;

/// Calls in text as the parsers of replies read them.
Json read_calls(const carat::TestVocabulary& vocabulary, const Json& tools, bool fenced,
                const std::vector<int>& tokens) {
  std::vector<carat::SpeechEvent> events;
  if (fenced) {
    carat::JsonCallParser parser(tools);
    parser.push(vocabulary.tokenizer->decode(tokens), events);
    parser.finish(events);
  } else {
    carat::SpeechParser parser(
        carat::find_markers([&](std::string_view piece) { return vocabulary.tokenizer->id(piece); }));
    carat::StreamDecoder decoder(vocabulary.tokenizer);
    for (const int token : tokens) parser.push(token, decoder.push(token), events);
    parser.finish(events);
  }
  Json calls = Json::array();
  for (const carat::SpeechEvent& event : events) {
    if (event.kind == carat::SpeechEvent::Kind::kToolCall) calls.push_back({event.text, Json::parse(event.arguments)});
  }
  return calls;
}

Json free_walks(const carat::TestVocabulary& vocabulary, const Json& request, carat::ChatFormat format) {
  const auto grammar = carat::free_call_grammar(vocabulary.grammar, request["tools"], format);
  if (!grammar) return {{"error", "nothing is bound"}};
  std::mt19937 random(request.value("seed", 0u));
  const bool fenced = format == carat::ChatFormat::kGemma3;
  const std::string name = request["tools"][0]["function"]["name"];
  const std::string opening =
      fenced ? "So:\n```json\n{\"name\": \"" + name + "\", \"arguments\":" : "So: <|tool_call>call:" + name;
  Json walks = Json::array();
  for (int i = request.value("walks", 1); i > 0; --i) {
    carat::Constraint constraint(grammar);
    std::vector<int> tokens = vocabulary.tokenizer->encode(opening);
    for (const int token : tokens) constraint.accept(token);
    const std::vector<int> rest = carat::random_walk(constraint, vocabulary, random, random() % 200);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    walks.push_back(read_calls(vocabulary, request["tools"], fenced, tokens));
  }
  return {{"calls", walks}};
}

Json answer(const carat::TestVocabulary& vocabulary, const Json& request) {
  std::mt19937 random(request.value("seed", 0u));
  std::shared_ptr<const carat::Grammar> grammar;
  try {
    if (request.contains("tools")) {
      carat::CallGrammarOptions options;
      options.format =
          request.value("format", "") == "gemma3" ? carat::ChatFormat::kGemma3 : carat::ChatFormat::kGemma4;
      if (request.value("free", false)) return free_walks(vocabulary, request, options.format);
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

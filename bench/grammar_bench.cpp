// What constrained decoding costs: `grammar_bench MODEL.gguf` prints, for texts that a model might say, the time to
// compile their schema and the time a token that allowed() and accept() take together, in the first generation and in
// later ones.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/gguf.h"
#include "grammar/constraint.h"
#include "grammar/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace {

using carat::Json;
/// Processor time of this thread: other programs on the machine do not count.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Sample {
  const char* name;
  const char* schema;
  const char* text;
};

constexpr Sample kSamples[] = {
    {"flat record",
     R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
         "city": {"type": "string"}, "summary": {"type": "string"}, "employed": {"type": "boolean"}},
         "required": ["name", "age", "city", "summary", "employed"], "additionalProperties": false})",
     R"({"name": "Ada Lovelace", "age": 36, "city": "London", "summary": "She was an English mathematician and writer, chiefly known for her work on Charles Babbage's proposed mechanical general-purpose computer, the Analytical Engine. She was the first to recognise that the machine had applications beyond pure calculation, and to have published the first algorithm intended to be carried out by such a machine.", "employed": true})"},
    {"limited strings",
     R"({"type": "object", "properties": {"title": {"type": "string", "maxLength": 80}, "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
         "tags": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 20}, "maxItems": 8},
         "date": {"type": "string", "format": "date-time"}, "price": {"type": "number", "minimum": 0, "maximum": 10000}},
         "required": ["title", "id", "tags", "date", "price"]})",
     R"({"title": "A practical guide to constrained decoding for busy engineers", "id": "ABC-1234", "tags": ["decoding", "grammars", "automata", "json", "language models", "tokens"], "date": "2024-05-17T12:30:00Z", "price": 129.95})"},
    {"recursive lists",
     R"({"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 20, "$defs": {"n": {"type": "object", "properties": {
         "kind": {"enum": ["folder", "file", "link"]}, "label": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
         "required": ["kind", "label"]}}})",
     R"([{"kind": "folder", "label": "home", "children": [{"kind": "file", "label": "notes.txt"}, {"kind": "folder", "label": "work", "children": [{"kind": "link", "label": "the project"}, {"kind": "file", "label": "plan.md"}]}]}, {"kind": "file", "label": "letter to my friend"}, {"kind": "link", "label": "somewhere else", "children": []}])"},
    {"any object", "null",
     R"({
  "answer": "The capital of Norway is Oslo.",
  "sources": [{"title": "Atlas", "page": 12, "url": "https://example.org/atlas"}, {"title": "Almanac", "page": null}],
  "confidence": 0.97,
  "nested": {"a": {"b": {"c": ["x", "y", true, false, 1.5e3]}}}
})"},
};

void measure(const carat::Tokenizer& tokenizer, const std::shared_ptr<const carat::GrammarVocabulary>& vocabulary,
             const Sample& sample) {
  const double begin = microseconds();
  const auto grammar = carat::json_grammar(vocabulary, Json::parse(sample.schema));
  const double compile = microseconds() - begin;
  const std::vector<int> tokens = tokenizer.encode(sample.text, carat::Tokenizer::Specials::kText);
  std::vector<double> means;
  double slowest = 0.0;
  for (int round = 0; round < 5; ++round) {
    carat::Constraint constraint(grammar);
    double total = 0.0;
    for (const int token : tokens) {
      const double step = microseconds();
      const auto mask = constraint.allowed();
      if ((mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) == 0) {
        throw std::runtime_error(fmt::format("{}: token {} is not allowed", sample.name, tokenizer.piece(token)));
      }
      constraint.accept(token);
      const double time = microseconds() - step;
      total += time;
      if (round > 0) slowest = std::max(slowest, time);
    }
    if (!constraint.complete()) throw std::runtime_error(fmt::format("{}: the text is not complete", sample.name));
    means.push_back(total / static_cast<double>(tokens.size()));
  }
  fmt::print("{:16} {:4} tokens  compile {:8.0f} us  first {:7.1f} us/token  later {:6.1f} us/token (slowest {:.0f})\n",
             sample.name, tokens.size(), compile, means.front(), means.back(), slowest);
}

Json many_tools(int count) {
  Json tools = Json::array();
  for (int i = 0; i < count; ++i) {
    const Json parameters = Json::parse(kSamples[static_cast<size_t>(i) % 2].schema);
    tools.push_back({{"function", {{"name", fmt::format("tool_{}", i)}, {"parameters", parameters}}}});
  }
  return tools;
}

/// Text in which calls are free, without and with a call in it.
void measure_free(const carat::Tokenizer& tokenizer, const std::shared_ptr<const carat::GrammarVocabulary>& vocabulary,
                  int tools, carat::ChatFormat format) {
  const double begin = microseconds();
  const auto grammar = carat::free_call_grammar(vocabulary, many_tools(tools), format);
  const double compile = microseconds() - begin;
  const std::string name =
      fmt::format("{} tools, {}", tools, format == carat::ChatFormat::kGemma3 ? "fenced" : "tokens");
  if (grammar == nullptr) {
    fmt::print("{:16} cannot be bound\n", name);
    return;
  }
  std::string prose;
  for (int i = 0; i < 50; ++i)
    prose += "The capital of Norway is Oslo: \"a city\" by the sea.\n\n```python\nprint(1)\n```\n";
  for (const bool calls : {false, true}) {
    if (calls && format != carat::ChatFormat::kGemma3) continue;  // Gemma 3's vocabulary has no token that begins one
    const std::string text =
        calls ? fmt::format("So:\n```json\n{{\"name\": \"tool_0\", \"arguments\": {}}}\n```", kSamples[0].text) : prose;
    const std::vector<int> tokens = tokenizer.encode(text, carat::Tokenizer::Specials::kText);
    double first = 0.0, later = 0.0, slowest = 0.0;
    for (int round = 0; round < 5; ++round) {
      carat::Constraint constraint(grammar);
      later = 0.0;
      for (const int token : tokens) {
        const double step = microseconds();
        const auto mask = constraint.allowed();
        if (!mask.empty() && (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) == 0) {
          throw std::runtime_error(fmt::format("{}: token {} is not allowed", name, tokenizer.piece(token)));
        }
        constraint.accept(token);
        const double time = microseconds() - step;
        later += time;
        if (round > 0) slowest = std::max(slowest, time);
      }
      if (round == 0) first = later;
    }
    const auto count = static_cast<double>(tokens.size());
    fmt::print(
        "{:16} {:4} tokens  compile {:8.0f} us  first {:7.2f} us/token  later {:6.2f} us/token (slowest {:.0f})\n",
        name + (calls ? " *" : ""), tokens.size(), compile, first / count, later / count, slowest);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: grammar_bench MODEL.gguf");
    const auto tokenizer = carat::Tokenizer::from_gguf(*carat::GgufFile::open(argv[1]));
    const double begin = microseconds();
    const auto vocabulary = carat::make_grammar_vocabulary(*tokenizer, tokenizer->vocab_size(), tokenizer->eos_ids());
    fmt::print("vocabulary of {} tokens: {:.0f} ms\n", tokenizer->vocab_size(), (microseconds() - begin) / 1000.0);
    for (const Sample& sample : kSamples) measure(*tokenizer, vocabulary, sample);
    fmt::print("text around calls (with a call: *)\n");
    for (const int tools : {1, 10, 50}) measure_free(*tokenizer, vocabulary, tools, carat::ChatFormat::kGemma3);
    if (vocabulary->control("<|tool_call>")) measure_free(*tokenizer, vocabulary, 50, carat::ChatFormat::kGemma4);
  } catch (const std::exception& error) {
    fmt::print(stderr, "grammar_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}

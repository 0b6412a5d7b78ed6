// Languages of JSON schemas: what they take, what they refuse, and that they never lead nowhere.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "grammar/vocabularies.h"

namespace carat {
namespace {

const TestVocabulary& small() {
  static const TestVocabulary kSmall = small_vocabulary(CARAT_TEST_DATA "/tokenizer/small.json");
  return kSmall;
}

std::shared_ptr<const Grammar> compiled(const std::string& schema) {
  return json_grammar(small().grammar, Json::parse(schema));
}

/// The token of one byte.
int byte_token(char byte) {
  return small().tokenizer->id(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte))).value();
}

/// Whether the language has the text, taken byte by byte.
bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Constraint constraint(grammar);
  for (const char byte : text) {
    if (!has(constraint.allowed(), byte_token(byte))) return false;
    constraint.accept(byte_token(byte));
  }
  EXPECT_EQ(constraint.complete(), has(constraint.allowed(), small().stop));
  return constraint.complete();
}

struct Case {
  const char* schema;
  std::vector<const char*> taken, refused;
};

TEST(JsonGrammar, TakesWhatTheSchemaSays) {
  const std::vector<Case> cases = {
      {R"({"type": "integer"})",
       {"0", "-7", "123456789012345678"},
       {"", "-", "01", "1.0", "-0", "\"1\"", "1234567890123456789"}},
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 12})",
       {"-3", "0", "9", "11"},
       {"-4", "12", "20", "-0", "110"}},
      {R"({"type": "integer", "minimum": 1.5})", {"2", "10"}, {"1", "0", "-2"}},
      {R"({"type": "integer", "minimum": 9223372036854775807})", {"9223372036854775807"}, {"9223372036854775806"}},
      {R"({"type": "number"})", {"0", "-0.5", "1e5", "12.25E-3"}, {".5", "1.", "+1", "1e"}},
      {R"({"type": "number", "minimum": 0.25, "maximum": 1})",
       {"0.25", "0.250", "0.3", "1", "1.0"},
       {"0.2", "0.2499", "1.01", "-1", "10"}},
      {R"({"type": "number", "exclusiveMinimum": 0})", {"0.1", "3"}, {"0", "0.0", "-1"}},
      {R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"nul", "1"}},
      {R"({"type": "string"})",
       {"\"\"", "\"aé\\n\\u00e9\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""},
       {"\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\udc00\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xff\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {"\"ab\"", "\"éé\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00a\""},
       {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"abc\\n\""}},
      {R"({"type": "string", "pattern": "b+$"})", {"\"b\"", "\"xé\\nbb\""}, {"\"bx\"", "\"\""}},
      {R"({"type": "string", "pattern": "^(a|bc){2}.?$", "maxLength": 3})",
       {"\"aa\"", "\"abc\"", "\"aa\xf0\x9f\x98\x80\""},
       {"\"bcbc\"", "\"a\""}},
      {R"({"type": "string", "pattern": "^[^\"a-y\\s]\\\\\\/$"})", {"\"z\\\\/\""}, {"\"b\\\\/\"", "\" \\\\/\""}},
      {R"({"enum": ["a", "ab", 1, null, [1, {"x": 2}]]})",
       {"\"a\"", "\"ab\"", "1", "null", "[1,{\"x\":2}]"},
       {"\"b\"", "2", "\"abc\""}},
      {R"({"type": "string", "enum": ["a", 1, "bb"], "maxLength": 1})", {"\"a\""}, {"1", "\"bb\""}},
      {R"({"const": {"a": "é\n"}})", {"{\"a\":\"é\\n\"}"}, {"{}"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1,2]", "[1, 2]", "[\n  1,\n  2\n]"},
       {"[]", "[1,2,3]", "[1,,2]", "[1 ,2]", "[ 1]", "[\n\n1]"}},
      {R"({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": false, "type": "array"})",
       {"[]", "[null]", "[null,true]"},
       {"[true]", "[null,true,1]"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "ab": {"type": "null"}}, "required": ["b"]})",
       {"{\"b\":null}", "{\"a\": null, \"b\":null}", "{\"a\":null,\"b\":null,\"ab\":null}", "{\n \"b\":null\n}"},
       {"{}", "{\"a\":null}", "{\"b\":null,\"a\":null}", "{\"b\":null,\"b\":null}", "{\"b\":null,}", "{,\"b\":null}",
        "{\"b\":null,\"c\":null}"}},
      {R"({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}, "type": "object"})",
       {"{}", "{\"a\":null}", "{\"b\":true}", "{\"a\":null,\"aa\":true,\"\":false}"},
       {"{\"a\":true}", "{\"b\":null}", "{\"b\":true,\"a\":null}"}},
      {R"({"type": "object", "required": ["x"]})", {"{\"x\":[1]}", "{\"x\":1,\"y\":2}"}, {"{}", "{\"y\":2}"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {"{\"a\":1}"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"1", "\"a\""}, {"\"ab\"", "null"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"properties": {"a": false, "b": {"const": 1}}}]})",
       {"{\"a\":1}", "{\"b\":1}", "{}"},
       {"{\"a\":null}"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"a": {"minimum": 5}, "b": {"type": "null"}}}]})",
       {"{\"a\":5,\"b\":null}", "{\"a\":70}"},
       {"{\"a\":4}", "{}"}},
      {R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}})",
       {"[]", "[[],[[]]]"},
       {"[1]", "[[]"}},
      {R"({"type": "string", "nullable": true, "maxLength": 0})", {"null", "\"\""}, {"\"a\""}},
      {R"({"type": "string", "format": "date"})",
       {"\"2024-02-28\""},
       {"\"2024-02-30\"", "\"2024-2-3\"", "\"0000-01-01\""}},
      {R"({"type": "string", "format": "uuid"})", {"\"01234567-89ab-cdef-0123-456789abcdef\""}, {"\"01234567\""}},
      {R"({"type": "string", "format": "ipv4"})", {"\"0.255.10.1\""}, {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
      {"true", {"{\"a\":[1,\"b\",{}]}", "1", "null"}, {"", "nul"}},
  };
  for (const Case& each : cases) {
    const auto grammar = compiled(each.schema);
    for (const char* text : each.taken) EXPECT_TRUE(takes(grammar, text)) << each.schema << " should take " << text;
    for (const char* text : each.refused)
      EXPECT_FALSE(takes(grammar, text)) << each.schema << " should refuse " << text;
  }
  EXPECT_TRUE(takes(json_grammar(small().grammar, nullptr), "{\"a\": {\"b\": [1, 2.5e3]}}"));
  EXPECT_FALSE(takes(json_grammar(small().grammar, nullptr), "[]"));
}

TEST(JsonGrammar, RefusesInSentences) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"not": {}})", "'not'"},
      {R"({"type": "object", "properties": {"a": {"if": {}}}})", "properties/a"},
      {R"({"type": "object", "patternProperties": {}})", "'patternProperties'"},
      {R"({"type": "float"})", "type is"},
      {R"({"type": "integer", "multipleOf": 2})", "'multipleOf'"},
      {R"({"type": "array", "uniqueItems": true})", "'uniqueItems'"},
      {R"({"type": "array", "minItems": 100000})", "minItems"},
      {R"({"type": "array", "minItems": -1})", "minItems"},
      {R"({"$ref": "#/nowhere"})", "points at nothing"},
      {R"({"$ref": "http://x/y"})", "outside the schema"},
      {R"({"$ref": "#"})", "leads back to itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "leads back to itself"},
      {R"({"type": "string", "enum": [1]})", "none of the values"},
      {"false", "no value"},
      {R"({"type": "integer", "minimum": 2, "maximum": 1})", "no value"},
      {R"({"type": "string", "minLength": 2, "maxLength": 1})", "no value"},
      {R"({"type": "string", "pattern": "^a$", "minLength": 2})", "no value"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "no value of finite size"},
      {R"x({"type": "string", "pattern": "(?=a)"})x", "lookahead"},
      {R"({"type": "string", "pattern": "a**"})", "repetition"},
      {R"x({"type": "string", "pattern": "(a{1000}){1000}"})x", "too large"},
      {R"x({"type": "string", "pattern": "(a|b)*a(a|b){20}"})x", "pattern"},
      {R"({"properties": []})", "properties is a JSON array"},
      {R"({"required": [1]})", "required"},
      {"[]", "expected an object"},
  };
  for (const auto& [schema, part] : cases) {
    try {
      compiled(schema);
      ADD_FAILURE() << schema << " was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << schema << ": " << error.what();
    }
  }
}

TEST(JsonGrammar, DiamondsOfReferencesAreBounded) {
  Json schema = {{"$ref", "#/$defs/0"}, {"$defs", Json::object()}};
  for (int i = 0; i < 40; ++i) {
    const Json next = {{"$ref", fmt::format("#/$defs/{}", i + 1)}};
    schema["$defs"][std::to_string(i)] = {{"allOf", {next, next}}};
  }
  schema["$defs"]["40"] = {{"type", "null"}};
  EXPECT_THROW(json_grammar(small().grammar, schema), Error);
}

TEST(JsonGrammar, DeepNestingEndsInTime) {
  // Every level must be closed again: the deepest array that can be opened is one that can be.
  const auto grammar = compiled(R"({"type": "array", "items": {"$ref": "#"}})");
  Constraint constraint(grammar);
  int depth = 0;
  while (has(constraint.allowed(), byte_token('['))) {
    constraint.accept(byte_token('['));
    ASSERT_LT(++depth, 200);
  }
  EXPECT_GT(depth, 50);
  while (!constraint.complete()) {
    ASSERT_TRUE(has(constraint.allowed(), byte_token(']')));
    constraint.accept(byte_token(']'));
    --depth;
  }
  EXPECT_EQ(depth, 0);
}

/// All texts over the alphabet up to a length.
std::vector<std::string> all_texts(const std::string& alphabet, size_t length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    const std::string text = texts[i];
    for (const char c : alphabet) texts.push_back(text + c);
  }
  return texts;
}

TEST(JsonGrammar, AgreesWithAValidatorOnAllShortTexts) {
  // What is JSON as this grammar writes it (no white space here) and valid is taken, and nothing else.
  for (const char* schema : {
           R"({"type": "array", "items": {"enum": [1, 11, [1]]}, "maxItems": 2})",
           R"({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"const": 1}]}})",
           R"({"anyOf": [{"type": "array", "items": {"type": "array", "items": {"const": 1}}},
                         {"type": "array", "items": {"type": "array", "minItems": 2, "items": {"const": 11}}}]})",
           R"({"type": ["array", "integer"], "minimum": 11, "items": {"$ref": "#"}})",
       }) {
    const auto grammar = compiled(schema);
    const SchemaDocument document(Json::parse(schema));
    int taken = 0;
    for (const std::string& text : all_texts("[]1,", 8)) {
      const Json value = Json::parse(text, nullptr, false);
      const bool valid = !value.is_discarded() && document.accepts(document.root(), value, "here");
      ASSERT_EQ(takes(grammar, text), valid) << schema << ": " << text;
      taken += valid ? 1 : 0;
    }
    EXPECT_GT(taken, 3) << schema;
  }
  for (const char* schema : {
           R"({"type": "number", "minimum": -1.01, "exclusiveMaximum": 10.1})",
           R"({"type": "number", "exclusiveMinimum": 0.1})",
           R"({"type": "number", "maximum": -0.01})",
           R"({"type": "integer", "minimum": -11, "maximum": 100})",
       }) {
    const auto grammar = compiled(schema);
    const SchemaDocument document(Json::parse(schema));
    const bool integer = document.root()["type"] == "integer";
    for (const std::string& text : all_texts("01.-", 6)) {
      const Json value = Json::parse(text, nullptr, false);
      bool valid = value.is_number() && document.accepts(document.root(), value, "here");
      // Integers are written without a point and a sign before zero.
      if (integer && (text.find('.') != text.npos || text == "-0")) valid = false;
      ASSERT_EQ(takes(grammar, text), valid) << schema << ": " << text;
    }
  }
}

const std::vector<const char*>& walked_schemas() {
  static const std::vector<const char*> kSchemas = {
      "true",
      R"({"type": "object"})",
      R"({"type": "string", "minLength": 3, "maxLength": 40})",
      R"({"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+)*$", "maxLength": 30})",
      R"({"type": "array", "items": {"type": "number", "minimum": -2, "maximum": 200.5}, "minItems": 2, "maxItems": 5})",
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
          "tags": {"type": "array", "items": {"enum": ["red", "green", "blue", "reddish"]}, "maxItems": 4},
          "when": {"type": "string", "format": "date-time"}, "who": {"$ref": "#/$defs/person"}},
          "required": ["name", "tags"], "$defs": {"person": {"anyOf": [{"type": "null"}, {"type": "object",
          "properties": {"friend": {"$ref": "#/$defs/person"}, "mail": {"type": "string", "format": "email"}}, "required": ["friend"]}]}}})",
      R"({"type": "object", "properties": {"a": true}, "additionalProperties": {"type": ["integer", "string"]}})",
  };
  return kSchemas;
}

/// Walks end, are valid, and behave alike when they are taken back and gone again, or split otherwise.
void walk(const TestVocabulary& vocabulary, int rounds) {
  std::mt19937 random(5);
  size_t steps = 0;
  for (const char* text : walked_schemas()) {
    const Json schema = Json::parse(text);
    const auto grammar = json_grammar(vocabulary.grammar, schema);
    const SchemaDocument document(schema);
    for (int round = 0; round < rounds; ++round) {
      Constraint constraint(grammar);
      const std::vector<int> tokens = random_walk(constraint, vocabulary, random, random() % 100);
      steps += tokens.size();
      const std::string said = vocabulary.tokenizer->decode(tokens);
      const Json value = Json::parse(said, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << said;
      ASSERT_TRUE(document.accepts(document.root(), value, "here")) << text << "\n" << said;

      // Masks after a rollback are those of a constraint that never went further.
      const int back = static_cast<int>(random() % (tokens.size() + 1));
      constraint.rollback(back);
      Constraint fresh(grammar);
      for (size_t i = 0; i + static_cast<size_t>(back) < tokens.size(); ++i) fresh.accept(tokens[i]);
      const auto mask = constraint.allowed();
      ASSERT_TRUE(std::ranges::equal(mask, fresh.allowed()));
      ASSERT_EQ(constraint.complete(), fresh.complete());

      // Another split of the same text.
      Constraint split(grammar);
      for (size_t at = 0; at < said.size();) {
        std::vector<int> fits;
        for (size_t length = 1; length <= 12 && at + length <= said.size(); ++length) {
          const std::vector<int> ids =
              vocabulary.tokenizer->encode(said.substr(at, length), Tokenizer::Specials::kText);
          if (ids.size() == 1 && vocabulary.tokenizer->token_bytes(ids[0]).size() == length) fits.push_back(ids[0]);
        }
        const int token =
            fits.empty() || random() % 4 == 0
                ? vocabulary.tokenizer->id(fmt::format("<0x{:02X}>", static_cast<unsigned char>(said[at]))).value()
                : fits[random() % fits.size()];
        ASSERT_TRUE(has(split.allowed(), token)) << said << " at " << at;
        split.accept(token);
        at += vocabulary.tokenizer->token_bytes(token).size();
      }
      ASSERT_TRUE(split.complete());
    }
  }
  EXPECT_GT(steps, static_cast<size_t>(rounds) * 50);
}

TEST(JsonGrammar, RandomWalksEndInValidJson) {
  walk(small(), 300);
}

TEST(JsonGrammar, RandomWalksOnTheRealVocabulary) {
  const char* path = std::getenv("CARAT_MODEL_270M");
  if (path == nullptr) GTEST_SKIP() << "CARAT_MODEL_270M does not name Gemma 3 270M's GGUF file";
  TestVocabulary real;
  real.tokenizer = Tokenizer::from_gguf(*GgufFile::open(path));
  real.stop = real.tokenizer->id("<end_of_turn>").value();
  real.grammar = make_grammar_vocabulary(*real.tokenizer, 262144, real.tokenizer->eos_ids());
  walk(real, 6);
}

/// Every bit of a mask against the definition: a token is allowed when its bytes lead somewhere, one after the other.
TEST(JsonGrammar, MasksAreWhatBytesSay) {
  std::mt19937 random(6);
  for (const char* text : walked_schemas()) {
    const auto grammar = json_grammar(small().grammar, Json::parse(text));
    for (int round = 0; round < 3; ++round) {
      Constraint ahead(grammar);
      const std::vector<int> tokens = random_walk(ahead, small(), random, 40);
      Constraint constraint(grammar);
      for (size_t i = 0; i < tokens.size() && i < 60; ++i) {
        constraint.accept(tokens[i]);
        if (random() % 6 != 0) continue;
        const auto mask = constraint.allowed();
        const std::vector<uint64_t> allowed(mask.begin(), mask.end());
        for (int token = 0; token < small().tokenizer->vocab_size(); ++token) {
          const std::string bytes = small().tokenizer->token_bytes(token);
          if (bytes.empty()) continue;
          int taken = 0;
          bool good = true;
          for (const char byte : bytes) {
            good = has(constraint.allowed(), byte_token(byte));
            if (!good) break;
            constraint.accept(byte_token(byte));
            ++taken;
          }
          constraint.rollback(taken);
          ASSERT_EQ(has(allowed, token), good) << text << " token " << bytes;
        }
      }
    }
  }
}

TEST(JsonGrammar, ForbiddenTokensAreRefusedAndNothingBreaks) {
  Constraint constraint(compiled(R"({"type": "integer"})"));
  EXPECT_THROW(constraint.accept(byte_token('x')), Error);
  EXPECT_THROW(constraint.accept(-1), Error);
  EXPECT_THROW(constraint.rollback(1), Error);
  constraint.accept(byte_token('1'));
  EXPECT_TRUE(constraint.complete());
  constraint.accept(small().stop);
  EXPECT_EQ(tokens_of(constraint.allowed()), std::vector<int>{small().stop});
}

}  // namespace
}  // namespace carat

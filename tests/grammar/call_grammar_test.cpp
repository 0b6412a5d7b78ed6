// Tool calls under constraint: whatever may be said, the parsers of replies read, and the arguments fit the schema.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "chat/json_calls.h"
#include "chat/speech.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "grammar/vocabularies.h"

namespace carat {
namespace {

const TestVocabulary& small() {
  static const TestVocabulary kSmall = small_vocabulary(CARAT_TEST_DATA "/tokenizer/small.json");
  return kSmall;
}

int id(std::string_view piece) {
  return small().tokenizer->id(piece).value();
}

const Json& tools() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "send", "parameters": {"type": "object", "properties": {
        "to": {"type": "string", "minLength": 1, "maxLength": 12}, "Body": {"type": "string"},
        "urgent": {"type": "boolean"}, "kind": {"enum": ["note", "not", "<|\"|>x", 3, null]},
        "sizes": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 9.5}, "maxItems": 3},
        "odd key: {": {"type": "integer"}}, "required": ["to", "odd key: {"]}}},
    {"type": "function", "function": {"name": "send_message"}},
    {"type": "function", "function": {"name": "tree", "parameters": {"type": "object", "properties": {
        "node": {"$ref": "#/$defs/node"}}, "required": ["node"], "$defs": {"node": {"anyOf": [{"type": "null"},
        {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "value": {"type": "string", "pattern": "^[a-c]+$"}},
        "required": ["left"]}]}}}}}])");
  return kTools;
}

Json parameters_of(const std::string& name) {
  for (const Json& tool : tools()) {
    if (tool["function"]["name"] == name) return tool["function"].value("parameters", Json{{"type", "object"}});
  }
  ADD_FAILURE() << name << " is no tool";
  return false;
}

void expect_valid(const SpeechEvent& call) {
  const SchemaDocument document(parameters_of(call.text));
  const Json arguments = Json::parse(call.arguments);
  ASSERT_TRUE(document.accepts(document.root(), arguments, "here")) << call.text << call.arguments;
}

std::vector<SpeechEvent> hear_gemma4(const std::vector<int>& tokens) {
  SpeechParser parser({id("<|channel>"), id("<channel|>"), id("<|tool_call>"), id("<tool_call|>"), id("<|\"|>")});
  StreamDecoder decoder(small().tokenizer);
  std::vector<SpeechEvent> events;
  for (const int token : tokens) parser.push(token, decoder.push(token), events);
  parser.finish(events);
  return events;
}

TEST(CallGrammar, TenThousandCallsAreReadBackValid) {
  std::mt19937 random(3);
  const auto grammar = call_grammar(small().grammar, tools(), {});
  int calls = 0;
  while (calls < 10'000) {
    Constraint constraint(grammar);
    const std::vector<int> tokens = random_walk(constraint, small(), random, random() % 60);
    const std::vector<SpeechEvent> events = hear_gemma4(tokens);
    ASSERT_FALSE(events.empty());
    for (const SpeechEvent& event : events) {
      ASSERT_EQ(event.kind, SpeechEvent::Kind::kToolCall) << small().tokenizer->decode(tokens, true);
      expect_valid(event);
      ++calls;
    }
  }
}

TEST(CallGrammar, FencedCallsAreReadBackValid) {
  std::mt19937 random(4);
  const auto grammar = call_grammar(small().grammar, tools(), {.format = ChatFormat::kGemma3, .name = {}});
  for (int round = 0; round < 500; ++round) {
    Constraint constraint(grammar);
    JsonCallParser parser(tools());
    std::vector<SpeechEvent> events;
    parser.push(small().tokenizer->decode(random_walk(constraint, small(), random, random() % 60)), events);
    parser.finish(events);
    ASSERT_FALSE(events.empty());
    for (const SpeechEvent& event : events) {
      ASSERT_EQ(event.kind, SpeechEvent::Kind::kToolCall) << event.text;
      expect_valid(event);
    }
  }
}

/// Follows a text with control tokens in it; false where a token is not allowed.
bool goes(Constraint& constraint, const std::string& text) {
  for (const int token : small().tokenizer->encode(text)) {
    if (!has(constraint.allowed(), token)) return false;
    constraint.accept(token);
  }
  return true;
}

bool takes(const CallGrammarOptions& options, const std::string& text) {
  Constraint constraint(call_grammar(small().grammar, tools(), options));
  return goes(constraint, text) && constraint.complete();
}

TEST(CallGrammar, SyntaxAndRequiredKeys) {
  const CallGrammarOptions any;
  const std::string call =
      R"(<|tool_call>call:send{Body:<|"|>a"}{<|"|>,kind:<|"|>not<|"|>,<|"|>odd key: {<|"|>:-1,to:<|"|>x<|"|>}<tool_call|>)";
  EXPECT_TRUE(takes(any, call));
  EXPECT_TRUE(takes(any, call + call));
  EXPECT_FALSE(takes({.name = {}, .parallel = false}, call + call));
  EXPECT_FALSE(takes(any, R"(<|tool_call>call:send{to:<|"|>x<|"|>}<tool_call|>)"));          // a key is missing
  EXPECT_FALSE(takes(any, R"(<|tool_call>call:send{<|"|>odd key: {<|"|>:1}<tool_call|>)"));  // another
  EXPECT_FALSE(takes(any, R"(<|tool_call>call:send{<|"|>odd key: {<|"|>:1,to:<|"|><|"|>}<tool_call|>)"));  // too short
  EXPECT_TRUE(takes(any, R"(<|tool_call>call:send{kind:None,<|"|>odd key: {<|"|>:1,to:<|"|>x<|"|>}<tool_call|>)"));
  EXPECT_TRUE(takes(any, R"(<|tool_call>call:send_message{}<tool_call|>)"));
  EXPECT_TRUE(takes(any, R"(<|tool_call>call:send_message{any:{a:[1,<|"|>b<|"|>]},b:null}<tool_call|>)"));
  EXPECT_FALSE(takes(any, R"(<|tool_call>call:sen{}<tool_call|>)"));
  EXPECT_FALSE(takes(any, "plain text"));
}

TEST(CallGrammar, ANameIsNotCutToAnotherTools) {
  for (const char* name : {"send", "send_message"}) {
    Constraint constraint(call_grammar(small().grammar, tools(), {.name = name}));
    ASSERT_TRUE(goes(constraint, "<|tool_call>call:send"));
    const auto mask = constraint.allowed();
    EXPECT_EQ(has(mask, id("_")), name == std::string("send_message"));
    EXPECT_EQ(has(mask, id("{")), name == std::string("send"));
  }
  Constraint both(call_grammar(small().grammar, tools(), {}));
  ASSERT_TRUE(goes(both, "<|tool_call>call:send"));
  EXPECT_TRUE(has(both.allowed(), id("_")) && has(both.allowed(), id("{")));
}

TEST(CallGrammar, ThoughtsComeFirstAndMustEnd) {
  const std::string call = "<|tool_call>call:send_message{}<tool_call|>";
  CallGrammarOptions options;
  options.prelude = Prelude::kMayThink;
  EXPECT_TRUE(takes(options, call));
  EXPECT_TRUE(takes(options, "<|channel>thought\nHm {\n<channel|>" + call));
  EXPECT_FALSE(takes(options, "<|channel>a<channel|><|channel>b<channel|>" + call));
  options.prelude = Prelude::kThoughtIsOpen;
  EXPECT_TRUE(takes(options, "so\n<channel|>" + call));

  Constraint constraint(call_grammar(small().grammar, tools(), options));
  for (int i = 0; i < 3; ++i) {
    const auto mask = constraint.allowed();
    EXPECT_FALSE(constraint.complete());
    EXPECT_FALSE(has(mask, small().stop));
    EXPECT_FALSE(has(mask, id("<|tool_call>")));
    EXPECT_TRUE(has(mask, id("<channel|>")) && has(mask, id("{")));
    constraint.accept(id("{"));
  }
  constraint.accept(id("<channel|>"));
  EXPECT_EQ(tokens_of(constraint.allowed()), std::vector<int>{id("<|tool_call>")});
  constraint.rollback(1);
  EXPECT_TRUE(has(constraint.allowed(), id("{")));

  Constraint json(json_grammar(small().grammar, Json::parse(R"({"const": 1})"), Prelude::kMayThink));
  EXPECT_EQ(tokens_of(json.allowed()).size(),
            1u + tokens_of(Constraint(json_grammar(small().grammar, Json::parse(R"({"const": 1})"))).allowed()).size());
  EXPECT_TRUE(goes(json, "<|channel>1<channel|>1") && json.complete());
}

TEST(CallGrammar, RefusesInSentences) {
  const auto refused = [&](const Json& given, const CallGrammarOptions& options) {
    try {
      call_grammar(small().grammar, given, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(tools(), {.name = "nobody"}).find("'nobody'"), std::string::npos);
  EXPECT_NE(refused(nullptr, {}).find("no tools"), std::string::npos);
  EXPECT_NE(refused(Json::parse(R"([{"type": "function"}])"), {}).find("name"), std::string::npos);
  EXPECT_NE(refused(Json::parse(R"([{"function": {"name": "a b"}}])"), {}).find("'a b'"), std::string::npos);
  EXPECT_NE(refused(Json::parse(R"([{"function": {"name": "a", "parameters": {"type": "string"}}}])"), {})
                .find("allow an object"),
            std::string::npos);
  EXPECT_NE(refused(Json::parse(R"([{"function": {"name": "a", "parameters": {"not": {}}}}])"), {})
                .find("parameters of tool 'a'"),
            std::string::npos);

  const auto plain = Tokenizer::from_json(CARAT_TEST_DATA "/tokenizer/small.json");
  const auto vocabulary = make_grammar_vocabulary(*plain, plain->vocab_size(), plain->eos_ids());
  EXPECT_THROW(call_grammar(vocabulary, tools(), {}), Error);
  EXPECT_THROW(json_grammar(vocabulary, nullptr, Prelude::kMayThink), Error);
  EXPECT_NO_THROW(call_grammar(vocabulary, tools(), {.format = ChatFormat::kGemma3, .name = {}}));
}

}  // namespace
}  // namespace carat

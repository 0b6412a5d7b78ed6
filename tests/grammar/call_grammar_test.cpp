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
#include "grammar/vocabulary.h"

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
  for (const int token : tokens) {
    // No character reaches across a token without bytes.
    if (small().grammar->bytes(token).empty()) parser.push(-1, decoder.finish(), events);
    parser.push(token, decoder.push(token), events);
  }
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
    const auto mask = constraint.allowed();
    if (!mask.empty() && !has(mask, token)) return false;
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

// --- calls in free text ----------------------------------------------------------------------------------------------

std::shared_ptr<const Grammar> free_grammar(ChatFormat format, const Json& some = tools()) {
  return free_call_grammar(small().grammar, some, format);
}

bool is_free(Constraint& constraint) {
  return constraint.allowed().empty() && constraint.complete();
}

/// Any token but the one that begins a call; now and then one without bytes.
int any_token(std::mt19937& random) {
  const std::vector<int> silent = tokens_of(small().grammar->silent_mask());
  for (;;) {
    const int token = random() % 8 == 0 ? silent[random() % silent.size()]
                                        : static_cast<int>(random() % static_cast<unsigned>(small().grammar->vocab()));
    if (token != id("<|tool_call>")) return token;
  }
}

TEST(FreeCalls, TextIsAsFreeAsWithoutAConstraint) {
  std::mt19937 random(11);
  Constraint constraint(free_grammar(ChatFormat::kGemma4));
  for (int i = 0; i < 5'000; ++i) {
    ASSERT_TRUE(is_free(constraint));
    constraint.accept(any_token(random));
  }
  constraint.rollback(4'999);
  ASSERT_TRUE(is_free(constraint));
}

TEST(FreeCalls, WhatBeginsAsACallIsOneAndTextGoesOnBehindIt) {
  std::mt19937 random(12);
  const auto grammar = free_grammar(ChatFormat::kGemma4);
  int calls = 0;
  while (calls < 3'000) {
    Constraint constraint(grammar);
    std::vector<int> tokens;
    int begun = 0;
    for (int part = static_cast<int>(random() % 4); part >= 0; --part) {
      for (unsigned i = random() % 12; i > 0; --i) {
        ASSERT_TRUE(is_free(constraint));
        tokens.push_back(random() % 3 == 0 ? id("<|channel>") : any_token(random));
        if (small().grammar->is_stop(tokens.back())) tokens.back() = id("x");
        constraint.accept(tokens.back());
      }
      if (random() % 3 == 0) continue;
      ++begun;
      tokens.push_back(id("<|tool_call>"));
      constraint.accept(tokens.back());
      EXPECT_FALSE(constraint.complete());
      EXPECT_FALSE(has(constraint.allowed(), small().stop));
      // Taken back and made again: as if nothing had been.
      const std::vector<int> first = random_walk(constraint, small(), random, random() % 40);
      constraint.rollback(static_cast<int>(first.size()) + (random() % 2 == 0 ? 1 : 0));
      if (is_free(constraint)) constraint.accept(tokens.back());
      const std::vector<int> call = random_walk(constraint, small(), random, random() % 40);
      ASSERT_TRUE(is_free(constraint));
      ASSERT_EQ(call.back(), id("<tool_call|>"));
      tokens.insert(tokens.end(), call.begin(), call.end());
    }
    for (const SpeechEvent& event : hear_gemma4(tokens)) {
      if (event.kind != SpeechEvent::Kind::kToolCall) continue;
      expect_valid(event);
      --begun;
      ++calls;
    }
    EXPECT_EQ(begun, 0) << small().tokenizer->decode(tokens, true);
  }
}

/// White space as a model may put it into JSON.
std::string gap(std::mt19937& random) {
  constexpr std::string_view kGaps[] = {"", " ", "\n", "\n  ", "\t"};
  return std::string(kGaps[random() % std::size(kGaps)]);
}

/// Text that ends where a call of a tool has begun: behind the key of its arguments.
std::string opening(std::mt19937& random, const std::string& name) {
  const auto g = [&] { return gap(random); };
  std::string text = random() % 2 == 0 ? "" : "So:\n";
  text += random() % 5 == 0 ? "```tool_code" : "```json";
  text += g() + (random() % 3 == 0 ? "[" + g() : "") + "{" + g() + "\"name\"" + g() + ":" + g() + "\"" + name + "\"" +
          g() + "," + g();
  return text + (random() % 4 == 0 ? "\"parameters\"" : "\"arguments\"") + g() + ":";
}

TEST(FreeCalls, FencedCallsAreBoundFromTheirArgumentsOn) {
  std::mt19937 random(13);
  const auto grammar = free_grammar(ChatFormat::kGemma3);
  for (int round = 0; round < 400; ++round) {
    Constraint constraint(grammar);
    const std::string name = tools()[random() % tools().size()]["function"]["name"];
    std::vector<int> tokens = small().tokenizer->encode(opening(random, name), Tokenizer::Specials::kText);
    for (const int token : tokens) {
      ASSERT_TRUE(constraint.complete()) << small().tokenizer->decode(tokens);
      const auto mask = constraint.allowed();
      ASSERT_TRUE(mask.empty() || has(mask, token));
      constraint.accept(token);
    }
    ASSERT_FALSE(constraint.complete()) << small().tokenizer->decode(tokens);
    ASSERT_FALSE(has(constraint.allowed(), small().stop));
    const std::vector<int> rest = random_walk(constraint, small(), random, random() % 60);
    ASSERT_TRUE(is_free(constraint));
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    JsonCallParser parser(tools());
    std::vector<SpeechEvent> events;
    parser.push(small().tokenizer->decode(tokens), events);
    parser.finish(events);
    int calls = 0;
    for (const SpeechEvent& event : events) {
      if (event.kind != SpeechEvent::Kind::kToolCall) continue;
      expect_valid(event);
      if (calls++ == 0) {
        EXPECT_EQ(event.text, name);
      }
    }
    EXPECT_GT(calls, 0) << small().tokenizer->decode(tokens);
  }
}

/// Whether the language takes `bytes`, one after the other. `byte_tokens`: of each byte.
bool follows(Constraint& constraint, const std::vector<int>& byte_tokens, std::string_view bytes) {
  int accepted = 0;
  bool taken = true;
  for (const char byte : bytes) {
    try {
      constraint.accept(byte_tokens.at(static_cast<unsigned char>(byte)));
      ++accepted;
    } catch (const Error&) {
      taken = false;
      break;
    }
  }
  constraint.rollback(accepted);
  return taken;
}

// Tokens do not end where a call begins. What is allowed is what could also be said byte by byte; what has no bytes is
// allowed in text.
TEST(FreeCalls, TokensThatReachIntoACallAreBoundToo) {
  const TestVocabulary vocabulary =
      small_vocabulary(CARAT_TEST_DATA "/tokenizer/small.json",
                       {"\": {", "\":{\"", "\":[", "\": {\"b", "\": {}}", "\": {\"a\": 1}}\n```\n"});
  std::vector<int> byte_tokens(256, -1);
  for (int token = 0; token < vocabulary.grammar->vocab(); ++token) {
    const std::string_view text = vocabulary.grammar->bytes(token);
    if (text.size() == 1) byte_tokens[static_cast<unsigned char>(text[0])] = token;
  }
  // Arguments that tell much about their first bytes.
  const Json narrow = Json::parse(R"([{"function": {"name": "f", "parameters": {"type": "object", "properties": {
      "a": {"const": 1}}, "required": ["a"]}}}])");
  Constraint constraint(free_call_grammar(vocabulary.grammar, narrow, ChatFormat::kGemma3));
  int refused = 0, reaching = 0;
  std::string said;
  for (const char byte : std::string("So:\n```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```\n")) {
    const auto mask = constraint.allowed();
    const bool in_text = constraint.complete();
    for (int other = 0; other < vocabulary.grammar->vocab(); ++other) {
      const std::string_view bytes = vocabulary.grammar->bytes(other);
      const bool allowed = mask.empty() || has(mask, other);
      if (bytes.empty()) {
        ASSERT_EQ(allowed, in_text) << said << " then " << other;
        continue;
      }
      ASSERT_EQ(allowed, follows(constraint, byte_tokens, bytes)) << said << " then " << bytes;
      if (in_text && !allowed) ++refused;
      if (in_text && allowed && said.ends_with("\"arguments") && bytes.starts_with("\":") && bytes.size() > 2)
        ++reaching;
    }
    constraint.accept(byte_tokens[static_cast<unsigned char>(byte)]);
    said += byte;
  }
  ASSERT_TRUE(is_free(constraint));
  EXPECT_EQ(reaching, 3);
  EXPECT_GE(refused, 3);
}

TEST(FreeCalls, WhatIsNoCallStaysText) {
  for (const char* text : {
           "{\"name\": \"send\", \"arguments\": {}}",                    // no block
           "see ```json\n{\"name\": \"send\", \"arguments\": {}}\n```",  // not at the beginning of a line
           "```json\n{\"name\": \"nobody\", \"arguments\": {}}\n```",
           "```json\n{\"name\": \"send\", \"age\": 3, \"arguments\": {}}\n```",
           "```json\n{\"name\": \"sen\", \"arguments\": {}}\n```",
           "```python\n{\"name\": \"send\", \"arguments\": {}}\n```",
       }) {
    Constraint constraint(free_grammar(ChatFormat::kGemma3));
    EXPECT_TRUE(goes(constraint, text)) << text;
    EXPECT_TRUE(constraint.complete()) << text;
  }
}

TEST(FreeCalls, StrictDecidesAndWhatCannotBeBoundIsNot) {
  const auto with = [](const char* strict, const char* parameters) {
    return Json::parse(std::string(R"([{"function": {"name": "f", "parameters": )") + parameters + strict +
                       R"(}}, {"function": {"name": "g", "parameters": {"type": "object", "properties": {
                          "n": {"type": "integer"}}, "required": ["n"]}}}])");
  };
  constexpr const char* kPlain = R"({"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"]})";
  constexpr const char* kUnsupported = R"({"not": {"required": ["n"]}})";
  constexpr const char* kEndless = R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object",
      "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}})";
  constexpr const char* kImpossible = R"({"properties": {"n": {"type": "string", "const": 5}}, "required": ["n"]})";
  const std::string one = "<|tool_call>call:f{n:5}<tool_call|> and ",
                    other = "<|tool_call>call:f{m:<|\"|>}<|\"|>}<tool_call|>";
  const std::string bound = "<|tool_call>call:g{n:5}<tool_call|>";
  const auto taken = [&](const Json& some, const std::string& text) {
    Constraint constraint(free_grammar(ChatFormat::kGemma4, some));
    return goes(constraint, text) && is_free(constraint);
  };
  for (const char* strict : {"", R"(, "strict": true)", R"(, "strict": null)"}) {
    EXPECT_TRUE(taken(with(strict, kPlain), one + bound));
    EXPECT_FALSE(taken(with(strict, kPlain), other));
  }
  for (const Json& unbound :
       {with(R"(, "strict": false)", kPlain), with("", kUnsupported), with("", kImpossible), with("", kEndless)}) {
    EXPECT_TRUE(taken(unbound, one + bound));
    EXPECT_TRUE(taken(unbound, other + one));
    EXPECT_FALSE(taken(unbound, "<|tool_call>call:g{n:x}<tool_call|>"));  // the other tool is bound still
    EXPECT_FALSE(taken(unbound, "<|tool_call>call:h{}<tool_call|>"));
  }
  for (const ChatFormat format : {ChatFormat::kGemma4, ChatFormat::kGemma3}) {
    EXPECT_THROW(free_grammar(format, with(R"(, "strict": true)", kUnsupported)), Error);
    EXPECT_THROW(free_grammar(format, with(R"(, "strict": true)", kImpossible)), Error);
    EXPECT_THROW(free_grammar(format, with(R"(, "strict": true)", kEndless)), Error);
    EXPECT_THROW(call_grammar(small().grammar, with("", kEndless), {.format = format, .name = {}}), Error);
    Json none = with(R"(, "strict": false)", kPlain);
    none.erase(1);
    EXPECT_EQ(free_grammar(format, none), nullptr);
    EXPECT_EQ(free_grammar(format, nullptr), nullptr);
    EXPECT_EQ(free_grammar(format, Json::parse(R"([{"function": {"name": "a b"}}])")), nullptr);
    EXPECT_THROW(free_grammar(format, Json::parse(R"([{"function": {"name": "a b", "strict": true}}])")), Error);
  }
  // No tokens for calls, no calls.
  const auto plain = Tokenizer::from_json(CARAT_TEST_DATA "/tokenizer/small.json");
  const auto vocabulary = make_grammar_vocabulary(*plain, plain->vocab_size(), plain->eos_ids());
  EXPECT_EQ(free_call_grammar(vocabulary, tools(), ChatFormat::kGemma4), nullptr);
  EXPECT_NE(free_call_grammar(vocabulary, tools(), ChatFormat::kGemma3), nullptr);
}

// Schemas that are too large together lose those that need not be bound.
TEST(FreeCalls, ToolsThatAreTooManyAreNotBound) {
  Json many = Json::array();
  for (int i = 0; i < 60; ++i) {
    many.push_back(
        {{"function",
          {{"name", "tool_" + std::to_string(i)},
           {"parameters",
            {{"type", "object"},
             {"properties", {{"a", {{"type", "string"}, {"pattern", "^x{1000}" + std::to_string(i) + "$"}}}}}}}}}});
  }
  EXPECT_EQ(free_grammar(ChatFormat::kGemma4, many), nullptr);
  many[7]["function"]["strict"] = true;
  Constraint constraint(free_grammar(ChatFormat::kGemma4, many));
  EXPECT_TRUE(goes(constraint, "<|tool_call>call:tool_8{a:1}<tool_call|>"));
  EXPECT_FALSE(goes(constraint, "<|tool_call>call:tool_7{a:1}<tool_call|>"));
  for (Json& tool : many) tool["function"]["strict"] = true;
  EXPECT_THROW(free_grammar(ChatFormat::kGemma4, many), Error);
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

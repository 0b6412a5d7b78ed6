#include "chat/speech.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat/random_json.h"

namespace carat {
namespace {

using Kind = SpeechEvent::Kind;
using Events = std::vector<SpeechEvent>;
using Token = std::pair<int, std::string>;

constexpr SpeechMarkers kMarkers = {
    .channel_open = 100, .channel_close = 101, .tool_call_open = 48, .tool_call_close = 49, .quote = 52};

const std::vector<Token> kSpelled = {
    {100, "<|channel>"}, {101, "<channel|>"}, {48, "<|tool_call>"}, {49, "<tool_call|>"}, {52, "<|\"|>"}};

/// The tokens of a reply: its markers, and each stretch of text between them as one.
std::vector<Token> tokens_of(const std::string& reply) {
  std::vector<Token> tokens;
  std::string text;
  const auto flush = [&] {
    if (!text.empty()) tokens.emplace_back(1000, std::exchange(text, ""));
  };
  for (size_t i = 0; i < reply.size();) {
    const auto marker = std::ranges::find_if(
        kSpelled, [&](const Token& each) { return reply.compare(i, each.second.size(), each.second) == 0; });
    if (marker == kSpelled.end()) {
      text += reply[i++];
      continue;
    }
    flush();
    tokens.push_back({marker->first, ""});
    i += marker->second.size();
  }
  flush();
  return tokens;
}

/// The same tokens with every text cut at random bytes; markers sometimes come with their spelling.
std::vector<Token> split(const std::vector<Token>& tokens, size_t longest, std::mt19937& random) {
  std::vector<Token> pieces;
  for (const auto& [id, text] : tokens) {
    if (text.empty()) {
      const auto marker = std::ranges::find(kSpelled, id, &Token::first);
      pieces.emplace_back(id, marker != kSpelled.end() && random() % 3 == 0 ? marker->second : "");
      continue;
    }
    for (size_t i = 0; i < text.size();) {
      const size_t size = 1 + random() % longest;
      pieces.emplace_back(id, text.substr(i, size));
      i += size;
      if (random() % 8 == 0) pieces.emplace_back(1001, "");
    }
  }
  return pieces;
}

Events joined(const Events& events) {
  Events out;
  for (const SpeechEvent& event : events) {
    if (event.kind != Kind::kToolCall && !out.empty() && out.back().kind == event.kind) {
      out.back().text += event.text;
    } else {
      out.push_back(event);
    }
  }
  return out;
}

struct Heard {
  Events events;
  bool thought_open = false;
};

Heard hear(const std::vector<Token>& tokens, std::string_view prompt = {}, ChatFormat format = ChatFormat::kGemma4) {
  SpeechParser parser(kMarkers, prompt, format);
  Events events;
  for (const auto& [id, text] : tokens) parser.push(id, text, events);
  parser.finish(events);
  for (const SpeechEvent& event : events) EXPECT_FALSE(event.kind != Kind::kToolCall && event.text.empty());
  return {joined(events), parser.thought_open()};
}

Heard hear(const std::string& reply, std::string_view prompt = {}, ChatFormat format = ChatFormat::kGemma4) {
  return hear(tokens_of(reply), prompt, format);
}

SpeechEvent reasoning(std::string text) {
  return {Kind::kReasoning, std::move(text), {}};
}
SpeechEvent text(std::string text) {
  return {Kind::kText, std::move(text), {}};
}
SpeechEvent call(std::string name, std::string arguments) {
  return {Kind::kToolCall, std::move(name), std::move(arguments)};
}

TEST(Speech, ReadsTheArgumentGrammar) {
  const std::string arguments =
      "a:[{b:<|\"|>x}y,z<|\"|>}],n:-1.5e3,t:true,z:null,s:<|\"|>he said \"hi\"\n<|\"|>,e:{},l:[]";
  const Events expected = {
      call("f", R"({"a":[{"b":"x}y,z"}],"n":-1500.0,"t":true,"z":null,"s":"he said \"hi\"\n","e":{},"l":[]})")};
  EXPECT_EQ(hear("<|tool_call>call:f{" + arguments + "}<tool_call|>").events, expected);
  EXPECT_EQ(hear("<|tool_call>call:f{l:[\"p\",'q']}<tool_call|>").events, Events{call("f", R"({"l":["p","q"]})")});
}

TEST(Speech, KeepsTypesAndOrder) {
  const auto parsed = [](const std::string& arguments) {
    const Events events = hear("<|tool_call>call:f{" + arguments + "}<tool_call|>").events;
    return events.size() == 1 && events[0].kind == Kind::kToolCall ? events[0].arguments : "malformed";
  };
  EXPECT_EQ(parsed("z:1,a:1.0,m:<|\"|>1<|\"|>"), R"({"z":1,"a":1.0,"m":"1"})");
  EXPECT_EQ(parsed("a:None,b:True,c:False"), R"({"a":null,"b":true,"c":false})");
  EXPECT_EQ(parsed(" a : 1 ,\n b : [ 1 , 2 , ] , "), R"({"a":1,"b":[1,2]})");
  EXPECT_EQ(parsed("<|\"|>a b<|\"|>:1,\"c\":2,'d':3"), R"({"a b":1,"c":2,"d":3})");
  EXPECT_EQ(parsed(R"(a:"x\"y\n\u00e9\ud83c\udf89\q",b:'it\'s')"), R"({"a":"x\"y\n)"
                                                                   "\u00e9\U0001f389"
                                                                   R"(\\q","b":"it's"})");
  EXPECT_EQ(parsed("a:18446744073709551615,b:-9223372036854775808"),
            R"({"a":18446744073709551615,"b":-9223372036854775808})");
  EXPECT_EQ(parsed("a:<|\"|><|\"|>,b:''"), R"({"a":"","b":""})");
  EXPECT_EQ(parsed("a:1,a:2"), R"({"a":2})");
  for (const char* bad : {"a", "a:", "a:1 2", "a:x", "a:1b", "a:01", "a:.5", ":1", "a:1,,b:2", "a:[1,2", "a:{b:1",
                          "a:<|\"|>x", "a:\"x", "a:1e999", "a:--1", "a:nulls", "a:1}x", "a:1}{", "<|\"|>a<|\"|>1"}) {
    EXPECT_EQ(parsed(bad), "malformed") << bad;
  }
}

TEST(Speech, MalformedCallsSurfaceAsText) {
  for (const std::string& segment :
       {std::string("call:f{a:<|\"|>x"), std::string(":name{a:1}"), std::string("call:f{a:1"), std::string(""),
        std::string("call:{}"), std::string("hello"), std::string("call:f{}trailing"), std::string("call:f g{}"),
        "call:f{a:" + std::string(100000, '[') + "}", std::string("call:f{a:\xff}")}) {
    EXPECT_EQ(hear("<|tool_call>" + segment + "<tool_call|>").events,
              Events{text("<|tool_call>" + segment + "<tool_call|>")});
    EXPECT_EQ(hear("<|tool_call>" + segment).events, Events{text("<|tool_call>" + segment)});
  }
}

TEST(Speech, CallsNeedTheMarkerToken) {
  EXPECT_EQ(hear("say call:f{a:1} so").events, Events{text("say call:f{a:1} so")});
  const std::vector<Token> spelled = {{1, "<|tool_call>"}, {2, "call:f{}"}, {3, "<tool_call|><|channel>"}};
  EXPECT_EQ(hear(spelled).events, Events{text("<|tool_call>call:f{}<tool_call|><|channel>")});
  // A delimiter spelled by ordinary tokens inside a string is content.
  const std::vector<Token> quoted = {{48, ""}, {1, "call:f{a:"}, {52, ""}, {1, "x<|\"|>y"},
                                     {52, ""}, {1, "}"},         {49, ""}};
  EXPECT_EQ(hear(quoted).events, Events{call("f", R"({"a":"x<|\"|>y"})")});
  // A vocabulary without markers, and pieces without an id.
  SpeechParser parser(SpeechMarkers{}, "<start_of_turn>model\n<|channel>");
  Events events;
  parser.push(100, "<|channel>a", events);
  parser.push(-1, "b", events);
  parser.finish(events);
  EXPECT_EQ(joined(events), Events{text("<|channel>ab")});
}

TEST(Speech, SeveralCallsInOrder) {
  const Events expected = {call("f", R"({"a":1})"), call("f", R"({"a":2})"), call("g", "{}")};
  EXPECT_EQ(hear("<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:f{a:2} call:g{}<tool_call|>").events, expected);
  EXPECT_EQ(hear("<|tool_call>call:f{a:1}<|tool_call>call:f{a:2}<tool_call|><|tool_call>call:g{}").events, expected);
}

TEST(Speech, ThoughtsByState) {
  EXPECT_EQ(hear("A<channel|>B", "<bos><|turn>model\n<|channel>thought\n").events, (Events{reasoning("A"), text("B")}));
  EXPECT_EQ(hear("<|channel>thought\n<channel|>B", "<|turn>model\n<|channel>thought\n<channel|>").events,
            Events{text("B")});
  EXPECT_EQ(hear("<|channel>thought\n \n\n<channel|>B").events, Events{text("B")});
  EXPECT_EQ(hear("<|channel><channel|><|channel>thought<channel|>B").events, Events{text("B")});
  const Heard cut = hear("<|channel>thought\nlong thou");
  EXPECT_EQ(cut.events, Events{reasoning("long thou")});
  EXPECT_TRUE(cut.thought_open);
  EXPECT_TRUE(hear("<|channel>thou").thought_open);
  EXPECT_TRUE(hear("", "<|turn>model\n<|channel>thought\n").thought_open);
  const Heard into_call = hear("<|channel>thought\nhm\n<|tool_call>call:f{}<tool_call|>");
  EXPECT_EQ(into_call.events, (Events{reasoning("hm"), call("f", "{}")}));
  EXPECT_FALSE(into_call.thought_open);
}

TEST(Speech, ThoughtsLoseTheirLabelAndLastNewlineOnly) {
  EXPECT_EQ(hear("<|channel>thought\n a\n\n<channel|>\nb").events, (Events{reasoning(" a\n"), text("\nb")}));
  EXPECT_EQ(hear("<|channel>thought\na\n<channel|>", "", ChatFormat::kGemma4Interleaved).events,
            Events{reasoning("a\n")});
  EXPECT_EQ(hear("<|channel>thoughtful\nx<channel|>").events, Events{reasoning("thoughtful\nx")});
  EXPECT_EQ(hear("<|channel>no label<channel|>x").events, (Events{reasoning("no label"), text("x")}));
  EXPECT_EQ(hear("<|channel>tho<channel|>").events, Events{reasoning("tho")});
  EXPECT_EQ(hear("<|channel>\nx<channel|>").events, Events{reasoning("x")});
}

TEST(Speech, GoesOnWhereThePromptStopped) {
  const std::string user = "<bos><|turn>user\n<|channel>not me<turn|>\n<|turn>model\n";
  EXPECT_EQ(hear("x", user).events, Events{text("x")});
  EXPECT_EQ(hear("tone:<|\"|>dry<|\"|>}<tool_call|>", user + "<|tool_call>call:set{a:<|\"|>p<|\"|>,").events,
            Events{call("set", R"({"a":"p","tone":"dry"})")});
  EXPECT_EQ(hear("x", user + "<|tool_call>call:f{}<tool_call|><|tool_response>response:f{value:<|\"|><|channel>"
                             "<|\"|>}<tool_response|>")
                .events,
            Events{text("x")});
  EXPECT_EQ(hear("ght\nx<channel|>y", user + "<|channel>thou").events, (Events{reasoning("x"), text("y")}));
  EXPECT_EQ(hear("b<channel|>", user + "<|channel>thought\na ").events, Events{reasoning("b")});
}

TEST(Speech, TextHeldBackByTheDecoderComesBeforeTheMarker) {
  const std::vector<Token> tokens = {
      {100, ""},      {1, "thought\na"},    {101, "\ufffd"}, {1, "b"}, {48, "c<|tool_call>"},
      {1, "call:f{"}, {49, "}<tool_call|>"}};
  EXPECT_EQ(hear(tokens).events, (Events{reasoning("a\ufffd"), text("bc"), call("f", "{}")}));
}

TEST(Speech, StrayMarkersLeaveNoTrace) {
  EXPECT_EQ(hear("a<channel|>b<tool_call|>c<|\"|>d").events, Events{text("abcd")});
  EXPECT_EQ(hear("<|channel>thought\na<|\"|>b<tool_call|>c<channel|>").events, Events{reasoning("abc")});
}

TEST(Speech, AnySplitSaysTheSame) {
  std::mt19937 random(20);
  const std::vector<std::string> fragments = {
      "<|channel>thought\n",
      "<|channel>",
      "<channel|>",
      "\n<channel|>",
      "<|tool_call>",
      "<tool_call|>",
      "call:f{",
      "}",
      "<|tool_call>call:f{a:<|\"|>x}y \xe6\x97\xa5<|\"|>,b:[1,2.5,{c:null}]}<tool_call|>",
      "<|tool_call>call:get-it{q:'a\\'b',r:\"\\u00e9\"}<tool_call|>",
      "a:",
      "<|\"|>",
      "text ",
      "\n",
      " \t",
      "thought",
      "thought\n",
      "\xe3\x80\x80",
      "\xf0\x9f\x8e\x89",
      "\xff",
      "th",
      "{b:1}",
      ","};
  for (int round = 0; round < 3000; ++round) {
    std::string reply;
    for (size_t n = random() % 9; n > 0; --n) reply += fragments[random() % fragments.size()];
    const std::string prompt = random() % 3 ? "" : "<|turn>model\n<|channel>thought\n";
    const ChatFormat format = random() % 2 ? ChatFormat::kGemma4 : ChatFormat::kGemma4Interleaved;
    const std::vector<Token> tokens = tokens_of(reply);
    const Heard whole = hear(tokens, prompt, format);
    for (const size_t longest : {1, 2, 5, 40}) {
      const Heard pieces = hear(split(tokens, longest, random), prompt, format);
      EXPECT_EQ(pieces.events, whole.events) << reply;
      EXPECT_EQ(pieces.thought_open, whole.thought_open) << reply;
    }
    if (HasFailure()) break;
  }
}

TEST(Speech, TwentyRepliesWithAThoughtTextAndTwoCalls) {
  std::mt19937 random(21);
  RandomJson maker(22);
  for (int reply = 0; reply < 20; ++reply) {
    const Json first = maker.object(3);
    const Json second = maker.object(3);
    const std::string said = "<|channel>thought\nI must look.\n<channel|>Wait: <|tool_call>call:find{" +
                             write_entries(first) + "}<tool_call|><|tool_call>call:find{" + write_entries(second) +
                             "}<tool_call|>";
    const std::vector<Token> tokens = tokens_of(said);
    for (const size_t longest : {1, 3, 1000}) {
      const Events events = hear(split(tokens, longest, random)).events;
      ASSERT_EQ(events.size(), 4u);
      EXPECT_EQ(events[0], reasoning("I must look."));
      EXPECT_EQ(events[1], text("Wait: "));
      for (const auto& [event, arguments] : {std::pair(events[2], first), std::pair(events[3], second)}) {
        EXPECT_EQ(event.text, "find");
        EXPECT_EQ(sorted_text(Json::parse(event.arguments)), sorted_text(arguments));
      }
    }
  }
}

TEST(Speech, WrittenArgumentsReadBack) {
  RandomJson maker(2000);
  for (int round = 0; round < 2000; ++round) {
    const Json arguments = maker.object(4);
    const std::string written = "call:tool_" + std::to_string(round) + "{" + write_entries(arguments) + "}";
    const auto calls = read_calls(CallText::spelled(written));
    ASSERT_TRUE(calls.has_value()) << written;
    ASSERT_EQ(calls->size(), 1u);
    EXPECT_EQ(calls->front().name, "tool_" + std::to_string(round));
    EXPECT_EQ(sorted_text(calls->front().arguments), sorted_text(arguments)) << written;
  }
}

TEST(Speech, CallsSplitAnywhereReadAsTheyWereWritten) {
  std::mt19937 random(23);
  RandomJson maker(24);
  for (int round = 0; round < 10'000; ++round) {
    const Json arguments = maker.object(3);
    const std::vector<Token> tokens = tokens_of("<|tool_call>call:tool{" + write_entries(arguments) + "}<tool_call|>");
    const Events events = hear(split(tokens, 1 + random() % 6, random)).events;
    ASSERT_EQ(events.size(), 1u);
    ASSERT_EQ(events[0].kind, Kind::kToolCall) << events[0].text;
    EXPECT_EQ(events[0].text, "tool");
    ASSERT_EQ(sorted_text(Json::parse(events[0].arguments)), sorted_text(arguments));
  }
}

/// A reply that comes back as a message renders to the very prompt that the model has in its cache.
TEST(Speech, RepliesComeBackAsTheyWereSaid) {
  RandomJson maker(7);
  for (const ChatFormat format : {ChatFormat::kGemma4, ChatFormat::kGemma4Interleaved}) {
    for (int round = 0; round < 50; ++round) {
      Json messages = Json::parse(R"([{"role": "user", "content": "go"}])");
      const std::string prompt = render_chat(format, messages, nullptr, {.enable_thinking = true});
      const std::string said = "<|channel>thought\nlet me see\n\n<channel|><|tool_call>call:f{" +
                               write_entries(maker.object(3)) + "}<tool_call|><|tool_call>call:g{}<tool_call|>";
      Json message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array()}};
      for (const SpeechEvent& event : hear(said, prompt, format).events) {
        if (event.kind == Kind::kReasoning) message["reasoning"] = event.text;
        if (event.kind != Kind::kToolCall) continue;
        message["tool_calls"].push_back({{"function", {{"name", event.text}, {"arguments", event.arguments}}}});
      }
      messages.push_back(message);
      const std::string next = render_chat(format, messages, nullptr, {.enable_thinking = true});
      EXPECT_TRUE(next.starts_with(prompt + said)) << next;
    }
  }
}

TEST(Speech, ArgumentsAreValidUtf8WhateverTheBytes) {
  const Events events = hear("<|tool_call>call:f{a:<|\"|>\xff\xe6\x97<|\"|>}<tool_call|>").events;
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(events[0].kind, Kind::kToolCall);
  EXPECT_EQ(Json::parse(events[0].arguments)["a"].get<std::string>(), "\ufffd\ufffd");
}

}  // namespace
}  // namespace carat

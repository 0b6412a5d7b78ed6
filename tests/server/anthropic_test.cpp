#include "server/anthropic.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "fakes.h"
#include "random_reply.h"
#include "server/anthropic_request.h"
#include "server/anthropic_writer.h"

namespace carat::server {
namespace {

/// A body with what every request needs, changed by `fields`.
std::string body_with(const std::string& fields) {
  Json body = {{"model", "tiny"}, {"max_tokens", 10}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  body.update(Json::parse(fields));
  return body.dump();
}

MessagesRequest read(const std::string& fields) {
  return read_messages_request(body_with(fields), MessagesRoute::kMessages);
}

Json messages_of(const std::string& messages, const std::string& system = "null") {
  return read(R"({"messages":)" + messages + R"(,"system":)" + system + "}").task.messages;
}

void expect_messages(const std::string& messages, const std::string& expected, const std::string& system = "null") {
  EXPECT_EQ(messages_of(messages, system), Json::parse(expected)) << messages;
}

ApiError refusal(const std::string& body, MessagesRoute route = MessagesRoute::kMessages) {
  try {
    read_messages_request(body, route);
  } catch (const ApiFailure& failure) {
    return failure.error();
  }
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

void expect_refused(const std::string& fields, const std::string& param, const std::string& words = "") {
  const ApiError error = refusal(body_with(fields));
  EXPECT_EQ(error.status, 400) << fields;
  EXPECT_EQ(error.param, param) << fields << ": " << error.message;
  EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
}

TEST(AnthropicTurns, TextIsJoinedAndTurnsOfOneRoleAreOne) {
  expect_messages(R"([{"role":"user","content":"Hi"}])", R"([{"role":"user","content":"Hi"}])");
  expect_messages(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
                  R"([{"role":"user","content":"a\nb"}])");
  expect_messages(R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
                      {"role":"assistant","content":"c"},{"role":"assistant","content":"d"},
                      {"role":"user","content":"e"}])",
                  R"([{"role":"user","content":"a\nb"},{"role":"assistant","content":"c\nd"},
                      {"role":"user","content":"e"}])");
}

TEST(AnthropicTurns, SystemIsTextOrBlocksAndMayComeLater) {
  const std::string user = R"([{"role":"user","content":"Hi"}])";
  expect_messages(user, R"([{"role":"system","content":"S"},{"role":"user","content":"Hi"}])", R"("S")");
  expect_messages(user, R"([{"role":"system","content":"S\nT"},{"role":"user","content":"Hi"}])",
                  R"([{"type":"text","text":"S","cache_control":{"type":"ephemeral"}},{"type":"text","text":"T"}])");
  expect_messages(user, R"([{"role":"user","content":"Hi"}])", R"("")");
  expect_messages(R"([{"role":"system","content":"T"},{"role":"user","content":"a"},
                      {"role":"system","content":"U"}])",
                  R"([{"role":"system","content":"S\nT"},{"role":"user","content":"a"},
                      {"role":"system","content":"U"}])",
                  R"("S")");
}

TEST(AnthropicTurns, ToolLoopBecomesCallsAndToolMessages) {
  expect_messages(
      R"([{"role":"user","content":"Weather?"},
          {"role":"assistant","content":[
            {"type":"thinking","thinking":"Ask.","signature":""},{"type":"redacted_thinking","data":"x"},
            {"type":"text","text":"Looking."},
            {"type":"tool_use","id":"toolu_1","name":"get","input":{"city":"Bern","n":null}},
            {"type":"tool_use","id":"toolu_2","name":"get","input":{}}]},
          {"role":"user","content":[
            {"type":"text","text":"Go on"},
            {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},
            {"type":"tool_result","tool_use_id":"toolu_1","content":"sunny"}]}])",
      R"([{"role":"user","content":"Weather?"},
          {"role":"assistant","content":"Looking.","reasoning_content":"Ask.","tool_calls":[
            {"id":"toolu_1","type":"function","function":{"name":"get","arguments":{"city":"Bern","n":null}}},
            {"id":"toolu_2","type":"function","function":{"name":"get","arguments":{}}}]},
          {"role":"tool","tool_call_id":"toolu_2","content":"x\ny"},
          {"role":"tool","tool_call_id":"toolu_1","content":"sunny"},
          {"role":"user","content":"Go on"}])");
}

TEST(AnthropicTurns, ResultsAloneLeaveNoUserTurn) {
  const auto with_result = [](const std::string& result) {
    return messages_of(R"([{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1")" +
                       result + "}]}]");
  };
  for (const auto& [result, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {R"(,"content":[])", ""},
           {R"(,"content":"ok","is_error":false)", "ok"},
           {R"(,"content":"no such file","is_error":true)", "Error: no such file"},
           {R"(,"is_error":true)", "Error"},
       }) {
    const Json messages = with_result(result);
    ASSERT_EQ(messages.size(), 3u) << result;
    EXPECT_EQ(messages.back(), Json({{"role", "tool"}, {"tool_call_id", "1"}, {"content", expected}}));
  }
}

TEST(AnthropicTurns, CallsAndResultsMustAnswerEachOther) {
  const std::string call = R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]})";
  const auto refused = [&](const std::string& last, const std::string& param, const std::string& words) {
    expect_refused(R"({"messages":[{"role":"user","content":"a"},)" + call + "," + last + "]}", param, words);
  };
  refused(R"({"role":"user","content":"b"})", "messages[2].content", R"(no tool_result for the tool_use block "1")");
  refused(R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"2"}]})",
          "messages[2].content[0].tool_use_id", R"(found "2")");
  refused(
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1"},{"type":"tool_result","tool_use_id":"1"}]})",
      "messages[2].content[1].tool_use_id", "a second time");
  expect_refused(R"({"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1"}]}]})",
                 "messages[0].content[0].tool_use_id");
}

TEST(AnthropicTurns, WhatCannotBeReadIsRefusedByName) {
  const auto block = [](const std::string& block) {
    return R"({"messages":[{"role":"user","content":[)" + block + "]}]}";
  };
  expect_refused(block(R"({"type":"image","source":{}})"), "messages[0].content[0].type", "reads no images");
  expect_refused(block(R"({"type":"document","source":{}})"), "messages[0].content[0].type", "document");
  expect_refused(block(R"({"type":"server_tool_use"})"), "messages[0].content[0].type");
  expect_refused(block(R"({"type":"thinking","thinking":"x"})"), "messages[0].content[0].type");
  expect_refused(block(R"({"type":"text"})"), "messages[0].content[0].text");
  expect_refused(block(R"({"type":"text","text":7})"), "messages[0].content[0].text");
  expect_refused(block("7"), "messages[0].content[0]");
  expect_refused(block(""), "messages[0].content", "no text");
  expect_refused(R"({"messages":[{"role":"user","content":""}]})", "messages[0].content", "no text");
  expect_refused(R"({"messages":[{"role":"user","content":7}]})", "messages[0].content");
  expect_refused(R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role");
  expect_refused(R"({"messages":[{"role":"system","content":"x"}]})", "messages");
  expect_refused(R"({"messages":[]})", "messages");
  expect_refused(R"({"messages":null})", "messages");
  expect_refused(R"({"messages":{}})", "messages");
  expect_refused(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The"}]})", "messages",
                 "prefill");
  expect_refused(R"({"system":[{"type":"image"}]})", "system[0].type");
}

TEST(AnthropicRequest, FieldsBecomeTheTask) {
  const MessagesRequest request = read(R"({
    "temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"stop_sequences":["END","\n\n"],"stream":true,
    "metadata":{"user_id":"u"},"service_tier":"auto","thinking":{"type":"enabled","budget_tokens":2048},
    "tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}},
             {"type":"web_search_20250305","name":"web_search"},
             {"type":"custom","name":"g","input_schema":{}}],
    "tool_choice":{"type":"any","disable_parallel_tool_use":true}})");
  const ChatTask& task = request.task;
  EXPECT_EQ(task.model, "tiny");
  EXPECT_EQ(task.max_tokens, 10);
  EXPECT_FLOAT_EQ(task.sampling.temperature.value(), 0.5f);
  EXPECT_FLOAT_EQ(task.sampling.top_p.value(), 0.9f);
  EXPECT_EQ(task.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(task.sampling.min_p.value(), 0.1f);
  EXPECT_EQ(task.stop, (std::vector<std::string>{"END", "\n\n"}));
  EXPECT_EQ(task.thinking, true);
  EXPECT_EQ(task.thinking_budget, 2048);
  EXPECT_EQ(task.tools, Json::parse(R"([
    {"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},
    {"type":"function","function":{"name":"g","parameters":{}}}])"));
  EXPECT_EQ(task.tool_choice.kind, ToolChoice::Kind::kRequired);
  EXPECT_FALSE(task.parallel_tool_calls);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.marks_cache);

  const MessagesRequest plain = read("{}");
  EXPECT_FALSE(plain.stream);
  EXPECT_FALSE(plain.marks_cache);
  EXPECT_FALSE(plain.task.thinking.has_value());
  EXPECT_TRUE(plain.task.parallel_tool_calls);
  EXPECT_EQ(read(R"({"thinking":{"type":"disabled"}})").task.thinking, false);
  EXPECT_EQ(read(R"({"thinking":{"type":"adaptive"}})").task.thinking, true);
  EXPECT_FALSE(read(R"({"thinking":{"type":"adaptive"}})").task.thinking_budget.has_value());
}

TEST(AnthropicRequest, ToolChoiceNeedsToolsThatAreThere) {
  const std::string tools = R"("tools":[{"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"}])";
  const ChatTask named = read("{" + tools + R"(,"tool_choice":{"type":"tool","name":"f"}})").task;
  EXPECT_EQ(named.tool_choice.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(named.tool_choice.name, "f");
  EXPECT_EQ(read("{" + tools + R"(,"tool_choice":{"type":"none"}})").task.tool_choice.kind, ToolChoice::Kind::kNone);
  expect_refused("{" + tools + R"(,"tool_choice":{"type":"tool","name":"bash"}})", "tool_choice", "bash");
  expect_refused(R"({"tool_choice":{"type":"any"}})", "tool_choice");
  expect_refused(R"({"tools":[{"type":"bash_20250124","name":"bash"}],"tool_choice":{"type":"any"}})", "tool_choice");
  expect_refused("{" + tools + R"(,"tool_choice":{"type":"maybe"}})", "tool_choice.type");
  expect_refused("{" + tools + R"(,"tool_choice":{"type":"tool"}})", "tool_choice.name");
  expect_refused(R"({"tools":[{"name":"f"}]})", "tools[0].input_schema");
  expect_refused(R"({"tools":[{"input_schema":{}}]})", "tools[0].name");
  expect_refused(R"({"tools":[{"name":"f","input_schema":[]}]})", "tools[0].input_schema");
}

TEST(AnthropicRequest, OutputFormatIsASchema) {
  for (const char* fields :
       {R"({"output_config":{"effort":"low","format":{"type":"json_schema","schema":{"type":"object"}}}})",
        R"({"output_format":{"type":"json_schema","schema":{"type":"object"}}})"}) {
    const ResponseFormat format = read(fields).task.response_format;
    EXPECT_EQ(format.kind, ResponseFormat::Kind::kJsonSchema);
    EXPECT_EQ(format.schema, Json::parse(R"({"type":"object"})"));
  }
  EXPECT_EQ(read(R"({"output_config":{"effort":"low"}})").task.response_format.kind, ResponseFormat::Kind::kText);
  expect_refused(R"({"output_config":{"format":{"type":"text"}}})", "output_config.format.type");
  expect_refused(R"({"output_config":{"format":{"type":"json_schema"}}})", "output_config.format.schema");
}

TEST(AnthropicRequest, BadFieldsAreRefused) {
  expect_refused(R"({"max_tokens":null})", "max_tokens", "nothing");
  expect_refused(R"({"max_tokens":0})", "max_tokens", "found 0");
  expect_refused(R"({"temperature":3})", "temperature");
  expect_refused(R"({"stop_sequences":[7]})", "stop_sequences[0]");
  expect_refused(R"({"stream":"yes"})", "stream");
  expect_refused(R"({"thinking":{"type":"enabled","budget_tokens":0}})", "thinking.budget_tokens");
  expect_refused(R"({"thinking":{"type":"deep"}})", "thinking.type");
  expect_refused(R"({"mcp_servers":[{"url":"x"}]})", "mcp_servers");
  for (const char* body : {"", "[]", "{", "\"x\"", "{\"messages\":\"\xff\"}"}) {
    EXPECT_EQ(refusal(body).status, 400) << body;
  }
}

TEST(AnthropicRequest, CountingNeedsNoLimitAndReadsTheSamePrompt) {
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"system":"S","thinking":{"type":"adaptive"},
    "tools":[{"name":"f","input_schema":{}}]})";
  EXPECT_EQ(refusal(body).param, "max_tokens");
  const ChatTask counted = read_messages_request(body, MessagesRoute::kCountTokens).task;
  Json full = Json::parse(body);
  full["max_tokens"] = 5;
  const ChatTask asked = read_messages_request(full.dump(), MessagesRoute::kMessages).task;
  EXPECT_EQ(counted.messages, asked.messages);
  EXPECT_EQ(counted.tools, asked.tools);
  EXPECT_EQ(counted.thinking, asked.thinking);
}

// Replies.

using Batches = std::vector<std::vector<ReplyEvent>>;

std::shared_ptr<FakeExchange> ask(FakeService& service, const std::string& fields, const Batches& batches,
                                  const ReplyEnd& end) {
  service.script = [&](ReplyListener& listener, int) {
    for (const auto& batch : batches) say(listener, 0, batch);
    listener.on_end(0, end);
  };
  auto exchange = std::make_shared<FakeExchange>(body_with(fields));
  handle_messages(service, exchange);
  EXPECT_EQ(exchange->mistakes(), std::vector<std::string>{});
  EXPECT_TRUE(exchange->answered());
  return exchange;
}

/// What a client makes of the stream; fails where an event does not follow from those before.
Json fold(const std::vector<SentEvent>& events) {
  Json message;
  bool open = false;
  bool stopped = false;
  std::string partial;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json data = Json::parse(events[i].data);
    const std::string type = data["type"];
    EXPECT_EQ(events[i].name, type);
    EXPECT_EQ(type == "message_start", i == 0);
    EXPECT_EQ(type == "ping", i == 1);
    EXPECT_FALSE(stopped);
    if (type == "message_start") {
      message = data["message"];
      EXPECT_EQ(message["content"], Json::array());
      EXPECT_TRUE(message["stop_reason"].is_null());
    } else if (type == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
      open = true;
      partial.clear();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(data["index"], message["content"].size() - 1);
      Json& block = message["content"].back();
      const Json& delta = data["delta"];
      if (delta["type"] == "text_delta") block["text"].get_ref<std::string&>() += delta["text"];
      if (delta["type"] == "thinking_delta") block["thinking"].get_ref<std::string&>() += delta["thinking"];
      if (delta["type"] == "signature_delta") block["signature"] = delta["signature"];
      if (delta["type"] == "input_json_delta") partial += delta["partial_json"];
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open);
      Json& block = message["content"].back();
      if (block["type"] == "tool_use") block["input"] = Json::parse(partial);
      open = false;
    } else if (type == "message_delta") {
      EXPECT_FALSE(open);
      message.update(data["delta"]);
      message["usage"].update(data["usage"]);
    } else if (type == "message_stop") {
      stopped = true;
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

TEST(AnthropicReply, WholeMessage) {
  FakeService service;
  ReplyEnd end = ending(EndReason::kToolCalls,
                        {.prompt_tokens = 20, .cached_tokens = 8, .completion_tokens = 9, .reasoning_tokens = 3});
  const auto exchange = ask(service, "{}",
                            {{reasoning("Hm"), reasoning("m.")},
                             {text("Look")},
                             {text("ing."), tool_call(0, "call_abc", "get", R"({"b":1,"a":[2]})")}},
                            end);
  ASSERT_EQ(exchange->status(), 200);
  Json message = exchange->json();
  EXPECT_TRUE(message["id"].get<std::string>().starts_with("msg_"));
  message.erase("id");
  EXPECT_EQ(message, Json::parse(R"({
    "type":"message","role":"assistant","model":"tiny",
    "content":[{"type":"thinking","thinking":"Hmm.","signature":""},{"type":"text","text":"Looking."},
               {"type":"tool_use","id":"toolu_abc","name":"get","input":{"b":1,"a":[2]}}],
    "stop_reason":"tool_use","stop_sequence":null,
    "usage":{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":9,
             "output_tokens_details":{"thinking_tokens":3}}})"));
  EXPECT_EQ(service.chats.size(), 1u);
}

TEST(AnthropicReply, StreamHasTheEventsInOrder) {
  FakeService service;
  const auto exchange =
      ask(service, R"({"stream":true})",
          {{reasoning("Hm")}, {text("a"), text("b")}, {tool_call(0, "call_x", "f", "{}")}, {text("c")}},
          ending(EndReason::kStop));
  std::vector<std::string> kinds;
  for (const Json& chunk : exchange->chunks()) {
    std::string kind = chunk["type"];
    if (chunk.contains("delta") && chunk["delta"].contains("type")) kind = chunk["delta"]["type"];
    if (chunk.contains("index")) kind += " " + chunk["index"].dump();
    kinds.push_back(kind);
  }
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"message_start", "ping", "content_block_start 0", "thinking_delta 0",
                                      "signature_delta 0", "content_block_stop 0", "content_block_start 1",
                                      "text_delta 1", "text_delta 1", "content_block_stop 1", "content_block_start 2",
                                      "input_json_delta 2", "content_block_stop 2", "content_block_start 3",
                                      "text_delta 3", "content_block_stop 3", "message_delta", "message_stop"}));
  EXPECT_EQ(exchange->chunks()[0]["message"]["usage"]["input_tokens"], FakeService::kPromptTokens);
  // Rendered and compiled once, not a second time to be counted.
  EXPECT_EQ(service.chats.size(), 1u);
  EXPECT_TRUE(service.counted.empty());
}

TEST(AnthropicReply, StreamAndWholeAreTheSameMessage) {
  std::mt19937 random(6);
  for (int round = 0; round < 500; ++round) {
    const Batches batches = random_reply(random);
    ReplyEnd end = ending(random_end(random));
    if (end.reason == EndReason::kStopSequence) end.stop_sequence = "END";
    FakeService service;
    Json whole = ask(service, "{}", batches, end)->json();
    Json folded = fold(ask(service, R"({"stream":true})", batches, end)->events());
    EXPECT_FALSE(whole["content"].empty());
    whole.erase("id");
    folded.erase("id");
    ASSERT_EQ(folded, whole);
  }
}

TEST(AnthropicReply, StopReasons) {
  const auto message = [](ReplyEnd end) {
    FakeService service;
    return ask(service, "{}", {{text("x")}}, end)->json();
  };
  EXPECT_EQ(message(ending(EndReason::kStop))["stop_reason"], "end_turn");
  EXPECT_EQ(message(ending(EndReason::kLength))["stop_reason"], "max_tokens");
  ReplyEnd end = ending(EndReason::kStopSequence);
  end.stop_sequence = "END";
  EXPECT_EQ(message(end)["stop_reason"], "stop_sequence");
  EXPECT_EQ(message(end)["stop_sequence"], "END");
}

TEST(AnthropicReply, EmptyReplyIsOneEmptyText) {
  FakeService service;
  EXPECT_EQ(ask(service, "{}", {}, ending(EndReason::kStop))->json()["content"],
            Json::parse(R"([{"type":"text","text":""}])"));
}

TEST(AnthropicReply, WhatTheCacheHeldIsToldToThoseWhoAsk) {
  const Usage usage = {.prompt_tokens = 20, .cached_tokens = 8, .completion_tokens = 9};
  FakeService service;
  const Json plain = ask(service, "{}", {}, ending(EndReason::kStop, usage))->json()["usage"];
  EXPECT_EQ(plain["input_tokens"], 20);
  EXPECT_EQ(plain["cache_read_input_tokens"], 0);
  for (
      const char* fields :
      {R"({"cache_control":{"type":"ephemeral"}})",
       R"({"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}]})",
       R"({"messages":[{"role":"user","content":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}]}]})"}) {
    const Json marked = ask(service, fields, {}, ending(EndReason::kStop, usage))->json()["usage"];
    EXPECT_EQ(marked["input_tokens"], 12) << fields;
    EXPECT_EQ(marked["cache_read_input_tokens"], 8) << fields;
  }
}

TEST(AnthropicReply, ErrorsHaveTheirShape) {
  const std::vector<std::pair<int, const char*>> kTypes = {
      {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
      {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
      {503, "overloaded_error"},      {529, "overloaded_error"},     {500, "api_error"}};
  for (const auto& [status, type] : kTypes) {
    FakeService service;
    service.refusal = api_error(status, "No.");
    service.refusal->retry_after = status == 429 ? 7 : 0;
    const auto exchange = ask(service, R"({"stream":true})", {}, {});
    ASSERT_TRUE(exchange->response()) << status;
    EXPECT_EQ(exchange->status(), status);
    EXPECT_EQ(exchange->json(),
              Json({{"type", "error"}, {"error", {{"type", type}, {"message", "No."}}}, {"request_id", "request-1"}}));
    Headers expected = {{"request-id", "request-1"}};
    if (status == 429) expected.emplace_back("Retry-After", "7");
    EXPECT_EQ(exchange->response()->headers, expected);
  }
  FakeService service;
  EXPECT_EQ(ask(service, R"({"model":"other"})", {}, {})->status(), 404);
  EXPECT_EQ(ask(service, R"({"max_tokens":-1})", {}, {})->status(), 400);
}

TEST(AnthropicReply, FailureEndsAStreamWithAnErrorEvent) {
  FakeService service;
  // Before anything was sent there is still a status to tell it with.
  EXPECT_EQ(ask(service, R"({"stream":true})", {}, failure(503, "Full."))->status(), 503);
  EXPECT_EQ(ask(service, "{}", {{text("a")}}, failure(500, "Broken."))->status(), 500);
  const auto exchange = ask(service, R"({"stream":true})", {{text("a")}}, failure(500, "Broken."));
  EXPECT_TRUE(exchange->ended());
  const std::vector<SentEvent> events = exchange->events();
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(Json::parse(events.back().data)["error"], Json::parse(R"({"type":"api_error","message":"Broken."})"));
  for (const SentEvent& event : events) EXPECT_NE(event.name, "message_stop");
}

TEST(AnthropicReply, StreamBeginsAtOnceAndEndsWithItsClient) {
  FakeService service;
  const auto exchange = std::make_shared<FakeExchange>(body_with(R"({"stream":true})"));
  handle_messages(service, exchange);
  EXPECT_EQ(exchange->events().size(), 2u);
  ASSERT_EQ(service.replies.size(), 1u);
  say(*service.replies[0].listener, 0, {text("a")});
  EXPECT_EQ(service.replies[0].handle->cancelled, 0);
  const size_t written = exchange->writes().size();
  exchange->leave();
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
  say(*service.replies[0].listener, 0, {text("b")});
  service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  EXPECT_EQ(exchange->writes().size(), written);
}

TEST(AnthropicReply, NothingIsHeldWhenAReplyIsOver) {
  FakeService service;
  auto exchange = std::make_shared<FakeExchange>(body_with("{}"));
  const std::weak_ptr<FakeExchange> watched = exchange;
  handle_messages(service, exchange);
  const std::weak_ptr<FakeHandle> handle = service.replies[0].handle;
  service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  service.replies.clear();
  EXPECT_TRUE(handle.expired());
  exchange.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(AnthropicCount, IsThePromptOfTheSameTask) {
  FakeService service;
  const std::string body = body_with(R"({"system":"S","tools":[{"name":"f","input_schema":{}}]})");
  const auto exchange = std::make_shared<FakeExchange>(body);
  handle_count_tokens(service, exchange);
  EXPECT_EQ(exchange->json(), Json({{"input_tokens", FakeService::kPromptTokens}}));
  handle_messages(service, std::make_shared<FakeExchange>(body));
  ASSERT_EQ(service.counted.size(), 1u);
  ASSERT_EQ(service.chats.size(), 1u);
  EXPECT_EQ(service.counted[0].messages, service.chats[0].messages);
  EXPECT_EQ(service.counted[0].tools, service.chats[0].tools);
  const auto refused = std::make_shared<FakeExchange>("{}");
  handle_count_tokens(service, refused);
  EXPECT_EQ(refused->status(), 400);
  EXPECT_EQ(refused->json()["error"]["type"], "invalid_request_error");
}

}  // namespace
}  // namespace carat::server

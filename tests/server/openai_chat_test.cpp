#include "server/openai_chat.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fakes.h"

namespace carat::server {
namespace {

const Json kHello = Json::array({{{"role", "user"}, {"content", "Hi"}}});
const Json kTool = {{"type", "function"}, {"function", {{"name", "add"}, {"parameters", {{"type", "object"}}}}}};

/// A request with these fields beside a short conversation.
std::string body(const Json& more = Json::object()) {
  Json request = {{"model", "tiny"}, {"messages", kHello}};
  request.update(more);
  return request.dump();
}

std::shared_ptr<FakeExchange> send(FakeService& service, const std::string& text) {
  auto exchange = std::make_shared<FakeExchange>(text, "POST", "/v1/chat/completions");
  handle_openai_chat(service, exchange);
  EXPECT_TRUE(exchange->mistakes().empty());
  return exchange;
}

TokenReport report(std::string bytes, float logprob, std::vector<TokenReport::Alternative> top = {}) {
  return {.token = 7, .bytes = std::move(bytes), .logprob = logprob, .top = std::move(top)};
}

/// The task that a request becomes.
ChatTask task_of(const Json& more) {
  FakeService service;
  send(service, body(more));
  if (service.chats.size() != 1) {
    ADD_FAILURE() << "refused: " << more.dump();
    return {};
  }
  return service.chats[0];
}

// Requests.

TEST(OpenAiChatRequest, IsReadWhole) {
  const ChatTask task = task_of({{"adapter", "poet"},
                                 {"max_tokens", 5},
                                 {"max_completion_tokens", 9},
                                 {"n", 3},
                                 {"stop", {"a", "", "b"}},
                                 {"temperature", 0.5},
                                 {"seed", 1},
                                 {"logprobs", true},
                                 {"top_logprobs", 20},
                                 {"tools", {kTool}},
                                 {"parallel_tool_calls", false},
                                 {"reasoning_effort", "high"},
                                 {"thinking_budget", 64},
                                 {"user", "u"},
                                 {"metadata", {{"a", "b"}}},
                                 {"store", true},
                                 {"service_tier", "auto"},
                                 {"something_new", {1, 2}}});
  EXPECT_EQ(task.model, "tiny");
  EXPECT_EQ(task.adapter, "poet");
  EXPECT_EQ(task.messages, kHello);
  EXPECT_EQ(task.max_tokens, 9);
  EXPECT_EQ(task.n, 3);
  EXPECT_EQ(task.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(task.sampling.temperature, 0.5f);
  EXPECT_EQ(task.sampling.seed, 1u);
  EXPECT_TRUE(task.logprobs);
  EXPECT_EQ(task.top_logprobs, 20);
  EXPECT_EQ(task.tools, Json::array({kTool}));
  EXPECT_FALSE(task.parallel_tool_calls);
  EXPECT_EQ(task.thinking, true);
  EXPECT_EQ(task.thinking_budget, 64);
}

TEST(OpenAiChatRequest, LeavesTheRestToTheServer) {
  const ChatTask task = task_of(Json::object());
  EXPECT_FALSE(task.max_tokens || task.thinking || task.thinking_budget);
  EXPECT_EQ(task.n, 1);
  EXPECT_FALSE(task.logprobs);
  EXPECT_TRUE(task.parallel_tool_calls);
  EXPECT_TRUE(task.tools.empty());
  EXPECT_EQ(task.tool_choice.kind, ToolChoice::Kind::kAuto);
  EXPECT_EQ(task.response_format.kind, ResponseFormat::Kind::kText);
  EXPECT_EQ(task_of({{"max_tokens", 5}}).max_tokens, 5);
  EXPECT_EQ(task_of({{"max_tokens", 5}, {"max_completion_tokens", nullptr}}).max_tokens, 5);
}

TEST(OpenAiChatRequest, ReadsToolChoices) {
  const auto choice = [](const Json& value) {
    return task_of({{"tools", {kTool}}, {"tool_choice", value}}).tool_choice;
  };
  EXPECT_EQ(choice("none").kind, ToolChoice::Kind::kNone);
  EXPECT_EQ(choice("auto").kind, ToolChoice::Kind::kAuto);
  EXPECT_EQ(choice(nullptr).kind, ToolChoice::Kind::kAuto);
  EXPECT_EQ(choice("required").kind, ToolChoice::Kind::kRequired);
  const ToolChoice named = choice({{"type", "function"}, {"function", {{"name", "add"}}}});
  EXPECT_EQ(named.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(named.name, "add");
}

TEST(OpenAiChatRequest, ReadsResponseFormats) {
  using Kind = ResponseFormat::Kind;
  const Json schema = {{"type", "object"}};
  const auto format = [](const Json& value) { return task_of({{"response_format", value}}).response_format; };
  EXPECT_EQ(format({{"type", "text"}}).kind, Kind::kText);
  EXPECT_EQ(format({{"type", "json_object"}}).kind, Kind::kJsonObject);
  const Json named = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}, {"strict", true}}}};
  EXPECT_EQ(format(named).kind, Kind::kJsonSchema);
  EXPECT_EQ(format(named).schema, schema);
  EXPECT_EQ(format({{"type", "json_object"}, {"schema", schema}}).schema, schema);
  const ResponseFormat guided = task_of({{"guided_json", schema}}).response_format;
  EXPECT_EQ(guided.kind, Kind::kJsonSchema);
  EXPECT_EQ(guided.schema, schema);
}

TEST(OpenAiChatRequest, TakesEveryKindOfMessage) {
  const Json messages = Json::parse(R"([
    {"role":"developer","content":"Be kind."},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"1","content":{"any":"value"}},
    {"role":"assistant","content":"x","reasoning_content":"y"},
    {"role":"system","content":""}])");
  EXPECT_EQ(task_of({{"messages", messages}}).messages, messages);
}

TEST(OpenAiChatRequest, NamesTheFieldToBlame) {
  struct Case {
    Json more;
    std::string param;
    std::string part;  // of the message
  };
  const auto messages = [](const char* text) { return Json{{"messages", Json::parse(text)}}; };
  const std::vector<Case> cases = {
      {messages("[]"), "messages", "found an empty array"},
      {messages("null"), "messages", "found nothing"},
      {messages(R"("hi")"), "messages", "found \"hi\""},
      {messages("[5]"), "messages[0]", "found 5, expected an object"},
      {messages(R"([{"content":"x"}])"), "messages[0].role", "found nothing"},
      {messages(R"([{"role":"function","content":"x"}])"), "messages[0].role", "found \"function\""},
      {messages(R"([{"role":"user","content":5}])"), "messages[0].content", "found 5"},
      {messages(R"([{"role":"user","content":["x"]}])"), "messages[0].content[0]", "expected an object"},
      {messages(R"([{"role":"user","content":[{"text":"x"}]}])"), "messages[0].content[0].type", "found nothing"},
      {messages(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text", "found nothing"},
      {messages(
           R"([{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"x"}}]}])"),
       "messages[0].content[1]", "this server reads text only"},
      {messages(R"([{"role":"user","content":[{"type":"input_audio"}]}])"), "messages[0].content[0]", "text only"},
      {{{"max_tokens", 0}}, "max_tokens", "found 0, expected an integer of at least 1"},
      {{{"max_completion_tokens", "9"}}, "max_completion_tokens", "found \"9\""},
      {{{"n", 0}}, "n", "from 1 to 16"},
      {{{"n", 17}}, "n", "from 1 to 16"},
      {{{"stop", Json::array({1})}}, "stop[0]", "expected a string"},
      {{{"stop", std::vector<std::string>(17, "x")}}, "stop", "at most 16"},
      {{{"temperature", 3}}, "temperature", "from 0 to 2"},
      {{{"logprobs", 1}}, "logprobs", "expected true or false"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs", "from 0 to 20"},
      {{{"top_logprobs", 2}}, "top_logprobs", "logprobs: true"},
      {{{"stream", "yes"}}, "stream", "expected true or false"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options", "stream: true"},
      {{{"stream", true}, {"stream_options", 1}}, "stream_options", "expected an object"},
      {{{"stream", true}, {"stream_options", {{"include_usage", 1}}}}, "stream_options.include_usage", "found 1"},
      {{{"tools", {{"name", "x"}}}}, "tools", "found an object, expected an array"},
      {{{"tools", {{{"type", "custom"}}}}}, "tools[0].type", "found \"custom\""},
      {{{"tool_choice", "required"}}, "tool_choice", "expected tools"},
      {{{"tool_choice", "required"}, {"tools", Json::array()}}, "tool_choice", "expected tools"},
      {{{"tool_choice", "any"}}, "tool_choice", "found \"any\""},
      {{{"tool_choice", 5}}, "tool_choice", "found 5"},
      {{{"tools", {kTool}}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "ad"}}}}}},
       "tool_choice",
       "found the name \"ad\""},
      {{{"tool_choice", {{"type", "function"}, {"function", {{"name", "add"}}}}}}, "tool_choice", "one of the tools"},
      {{{"tool_choice", {{"type", "function"}}}}, "tool_choice.function", "found nothing"},
      {{{"tool_choice", {{"type", "allowed_tools"}}}}, "tool_choice.type", "found \"allowed_tools\""},
      {{{"parallel_tool_calls", 0}}, "parallel_tool_calls", "found 0"},
      {{{"functions", Json::array()}}, "functions", "tools and tool_choice"},
      {{{"function_call", "auto"}}, "function_call", "tools and tool_choice"},
      {{{"response_format", "json"}}, "response_format", "expected an object"},
      {{{"response_format", {{"type", "xml"}}}}, "response_format.type", "found \"xml\""},
      {{{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema", "found nothing"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}}}}}},
       "response_format.json_schema.schema",
       "found nothing"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", "x"}}}}}},
       "response_format.json_schema.schema",
       "expected an object"},
      {{{"reasoning_effort", "huge"}}, "reasoning_effort", "found \"huge\""},
      {{{"modalities", {"text", "audio"}}}, "modalities", "found \"audio\""},
      {{{"model", 5}}, "model", "expected a string"},
  };
  for (const Case& test : cases) {
    FakeService service;
    const auto exchange = send(service, body(test.more));
    const Json error = exchange->json()["error"];
    EXPECT_EQ(exchange->status(), 400) << test.more;
    EXPECT_TRUE(service.chats.empty()) << test.more;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], test.param) << error;
    EXPECT_NE(error["message"].get<std::string>().find(test.part), std::string::npos) << error;
    EXPECT_EQ(error["code"], nullptr);
  }
}

TEST(OpenAiChatRequest, RefusesWhatIsNoJson) {
  FakeService service;
  for (const char* text : {"", "{", "[]", "{\"a\":\"\xc3\"}"}) {
    const auto exchange = send(service, text);
    EXPECT_EQ(exchange->status(), 400);
    EXPECT_EQ(exchange->json()["error"]["param"], nullptr);
  }
}

TEST(OpenAiChatRequest, ReportsUnknownModels) {
  FakeService service;
  const auto exchange = send(service, body({{"model", "huge"}}));
  EXPECT_EQ(exchange->status(), 404);
  EXPECT_EQ(exchange->json()["error"]["code"], "model_not_found");
  EXPECT_EQ(exchange->json()["error"]["type"], "invalid_request_error");
}

TEST(OpenAiChatRequest, PassesOnRefusalsOfTheService) {
  FakeService service;
  service.refusal = ApiError{429, "too many requests wait", "queue_full", "", 7};
  for (const bool stream : {false, true}) {
    const auto exchange = send(service, body({{"stream", stream}}));
    EXPECT_EQ(exchange->status(), 429);
    EXPECT_FALSE(exchange->began());
    EXPECT_EQ(exchange->json()["error"]["type"], "rate_limit_error");
    EXPECT_EQ(exchange->json()["error"]["code"], "queue_full");
    EXPECT_EQ(exchange->response()->headers, (Headers{{"Retry-After", "7"}}));
  }
}

// Responses.

TEST(OpenAiChatResponse, HasTheShapeThatClientsKnow) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {reasoning("hm, "), reasoning("yes")});
    say(listener, 0, {text("Hel")});
    say(listener, 0, {});
    say(listener, 0, {text("lo"), text("!")});
    listener.on_end(0,
                    ending(EndReason::kStop,
                           {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 5, .reasoning_tokens = 2}));
  };
  const auto exchange = send(service, body());
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->response()->content_type, "application/json");
  Json json = exchange->json();
  EXPECT_EQ(json["id"].get<std::string>().size(), std::string_view("chatcmpl-").size() + 24);
  EXPECT_EQ(json["id"].get<std::string>().find("chatcmpl-"), 0u);
  EXPECT_GT(json["created"].get<int64_t>(), 1'600'000'000);
  json.erase("id");
  json.erase("created");
  EXPECT_EQ(json, Json::parse(R"({
    "object":"chat.completion","model":"tiny","system_fingerprint":"carat",
    "choices":[{"index":0,"message":{"role":"assistant","content":"Hello!","refusal":null,"reasoning_content":"hm, yes"},
                "logprobs":null,"finish_reason":"stop"}],
    "usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4},
             "completion_tokens_details":{"reasoning_tokens":2}},
    "timings":{"cache_n":4,"prompt_n":6,"prompt_ms":500.0,"prompt_per_second":12.0,"predicted_n":5,"predicted_ms":2000.0,
               "predicted_per_second":2.0}})"));
}

TEST(OpenAiChatResponse, ListsToolCalls) {
  FakeService service;
  service.script = [](ReplyListener& listener, int number) {
    if (number == 1) say(listener, 0, {text("Well:")});
    say(listener, 0, {tool_call(0, "call_a", "add", R"({"x":"\"ü"})"), tool_call(1, "call_b", "add", "{}")});
    listener.on_end(0, ending(EndReason::kToolCalls));
  };
  const Json choice = send(service, body({{"tools", {kTool}}}))->json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_FALSE(choice["message"].contains("reasoning_content"));
  EXPECT_EQ(choice["message"]["tool_calls"], Json::parse(R"([
    {"id":"call_a","type":"function","function":{"name":"add","arguments":"{\"x\":\"\\\"ü\"}"}},
    {"id":"call_b","type":"function","function":{"name":"add","arguments":"{}"}}])"));
  EXPECT_EQ(send(service, body())->json()["choices"][0]["message"]["content"], "Well:");
}

TEST(OpenAiChatResponse, TellsHowRepliesEnd) {
  const auto choice = [](EndReason reason, const std::vector<ReplyEvent>& events, bool thought_open = false) {
    FakeService service;
    service.script = [&](ReplyListener& listener, int) {
      say(listener, 0, events);
      ReplyEnd end = ending(reason);
      end.thought_open = thought_open;
      end.stop_sequence = reason == EndReason::kStopSequence ? "x" : "";
      listener.on_end(0, end);
    };
    return send(service, body())->json()["choices"][0];
  };
  EXPECT_EQ(choice(EndReason::kStop, {})["finish_reason"], "stop");
  EXPECT_EQ(choice(EndReason::kStop, {})["message"]["content"], "");
  EXPECT_EQ(choice(EndReason::kStopSequence, {text("a")})["finish_reason"], "stop");
  EXPECT_EQ(choice(EndReason::kLength, {text("a")})["finish_reason"], "length");
  const Json cut = choice(EndReason::kLength, {reasoning("so")}, true);
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(cut["message"]["content"], "");
  EXPECT_EQ(cut["message"]["reasoning_content"], "so");
}

TEST(OpenAiChatResponse, KeepsRepliesApart) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 1, {text("b")});
    say(listener, 0, {text("a")});
    say(listener, 1, {text("B")});
    listener.on_end(1, ending(EndReason::kLength, {.prompt_tokens = 10, .cached_tokens = 2, .completion_tokens = 3}));
    say(listener, 0, {text("A")});
    listener.on_end(0, ending(EndReason::kStop, {.prompt_tokens = 10, .cached_tokens = 9, .completion_tokens = 4}));
  };
  const Json json = send(service, body({{"n", 2}}))->json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "aA");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["message"]["content"], "bB");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
  // The prompt counts once.
  EXPECT_EQ(json["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(json["usage"]["completion_tokens"], 7);
  EXPECT_EQ(json["usage"]["total_tokens"], 17);
}

TEST(OpenAiChatResponse, ReportsLogprobs) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {}, {report("\xf0\x9f", -0.5f, {{1, "\xf0\x9f", -0.5f}, {2, "no", -1.25f}})});
    say(listener, 0, {text("😀")},
        {report("\x98\x80", -1e30f), report("<eos>", -std::numeric_limits<float>::infinity())});
    listener.on_end(0, ending(EndReason::kStop));
  };
  const Json logprobs =
      send(service, body({{"logprobs", true}, {"top_logprobs", 2}}))->json()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs, Json::parse(R"({"content":[
    {"token":"\ufffd","logprob":-0.5,"bytes":[240,159],"top_logprobs":[
      {"token":"\ufffd","logprob":-0.5,"bytes":[240,159]},{"token":"no","logprob":-1.25,"bytes":[110,111]}]},
    {"token":"\ufffd\ufffd","logprob":-9999.0,"bytes":[152,128],"top_logprobs":[]},
    {"token":"<eos>","logprob":-9999.0,"bytes":[60,101,111,115,62],"top_logprobs":[]}],"refusal":null})"));
}

TEST(OpenAiChatResponse, SurvivesIllFormedText) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {text("a\xff"), reasoning("b\xc3"), tool_call(0, "c\x80", "d\xfe", "{\xff}")});
    listener.on_end(0, ending(EndReason::kStop));
  };
  EXPECT_EQ(send(service, body())->json()["choices"][0]["message"]["content"], "a\ufffd");
  const auto stream = send(service, body({{"stream", true}}));
  EXPECT_EQ(stream->chunks().size(), stream->events().size() - 1);  // all but [DONE] are JSON
}

TEST(OpenAiChatResponse, FailsWithTheStatusOfTheFirstFailure) {
  FakeService service;
  const auto exchange = send(service, body({{"n", 3}}));
  ReplyListener& listener = *service.replies[0].listener;
  say(listener, 0, {text("a")});
  listener.on_end(0, ending(EndReason::kStop));
  EXPECT_FALSE(exchange->answered());
  listener.on_end(1, failure(503, "out of memory"));
  EXPECT_EQ(exchange->status(), 503);
  EXPECT_EQ(exchange->json()["error"]["message"], "out of memory");
  EXPECT_EQ(exchange->json()["error"]["type"], "server_error");
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
  // What comes afterwards is dropped.
  say(listener, 2, {text("c")});
  listener.on_end(2, ending(EndReason::kStop));
  EXPECT_TRUE(exchange->mistakes().empty());
}

// Streams.

/// The choices of a stream's chunks, one each.
std::vector<Json> choices(const FakeExchange& exchange) {
  std::vector<Json> all;
  for (const Json& chunk : exchange.chunks()) {
    for (const Json& choice : chunk["choices"]) all.push_back(choice);
  }
  return all;
}

std::vector<Json> deltas(const FakeExchange& exchange) {
  std::vector<Json> all;
  for (const Json& choice : choices(exchange)) all.push_back(choice["delta"]);
  return all;
}

TEST(OpenAiChatStream, HasTheShapeThatClientsKnow) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {reasoning("hm")});
    say(listener, 0, {});
    say(listener, 0,
        {reasoning("!"), text("He"), text("llo"), text(""), tool_call(0, "call_a", "add", R"({"x":1})"),
         tool_call(1, "call_b", "add", "{}")});
    listener.on_end(0, ending(EndReason::kToolCalls));
  };
  const auto exchange = send(service, body({{"stream", true}}));
  ASSERT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->events().back().data, "[DONE]");
  const std::vector<Json> chunks = exchange->chunks();
  ASSERT_EQ(chunks.size() + 1, exchange->events().size());
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["model"], "tiny");
    EXPECT_EQ(chunk["created"], chunks[0]["created"]);
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk.contains("timings"), &chunk == &chunks.back());
    ASSERT_EQ(chunk["choices"].size(), 1u);
    EXPECT_EQ(chunk["choices"][0]["logprobs"], nullptr);
    const Json expected = &chunk == &chunks.back() ? Json("tool_calls") : Json(nullptr);
    EXPECT_EQ(chunk["choices"][0]["finish_reason"], expected);
  }
  const std::vector<std::string> expected = {
      R"({"role":"assistant","content":""})",
      R"({"reasoning_content":"hm"})",
      R"({"reasoning_content":"!"})",
      R"({"content":"Hello"})",
      R"({"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"add","arguments":"{\"x\":1}"}}]})",
      R"({"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"add","arguments":"{}"}}]})",
      "{}"};
  const std::vector<Json> found = deltas(*exchange);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].dump(), expected[i]);
}

TEST(OpenAiChatStream, SaysTheSameAsTheWholeResponse) {
  const std::vector<std::vector<ReplyEvent>> said = {{reasoning("a"), reasoning("b\n")},
                                                     {},
                                                     {text("x"), reasoning("c"), text("y\"")},
                                                     {tool_call(0, "1", "add", "{}")}};
  FakeService service;
  service.script = [&](ReplyListener& listener, int) {
    for (const auto& events : said) say(listener, 0, events, {report("t", -1.0f)});
    listener.on_end(0, ending(EndReason::kToolCalls));
  };
  const Json whole = send(service, body({{"logprobs", true}}))->json();
  const auto exchange =
      send(service, body({{"stream", true}, {"logprobs", true}, {"stream_options", {{"include_usage", true}}}}));
  Json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", Json::array()}};
  Json logprobs = Json::array();
  Json reason;
  for (const Json& choice : choices(*exchange)) {
    for (const auto& [key, value] : choice["delta"].items()) {
      if (key == "tool_calls") {
        for (Json call : value) {
          EXPECT_EQ(call["index"], message["tool_calls"].size());
          call.erase("index");
          message["tool_calls"].push_back(call);
        }
      } else if (key != "role") {
        message[key] = message[key].get<std::string>() + value.get<std::string>();
      }
    }
    if (!choice["logprobs"].is_null()) {
      for (const Json& entry : choice["logprobs"]["content"]) logprobs.push_back(entry);
    }
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
  }
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(message["content"], choice["message"]["content"]);
  EXPECT_EQ(message["reasoning_content"], choice["message"]["reasoning_content"]);
  EXPECT_EQ(message["tool_calls"], choice["message"]["tool_calls"]);
  EXPECT_EQ(logprobs, choice["logprobs"]["content"]);
  EXPECT_EQ(reason, choice["finish_reason"]);
  EXPECT_EQ(exchange->chunks().back()["usage"], whole["usage"]);
  EXPECT_EQ(exchange->chunks().back()["timings"], whole["timings"]);
}

TEST(OpenAiChatStream, SendsNoEmptyDeltas) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {}, {report("a", -1.0f)});
    say(listener, 0, {text("")}, {report("b", -2.0f)});
    say(listener, 0, {text("ab")}, {report("c", -3.0f)});
    say(listener, 0, {}, {report("<eos>", -4.0f)});
    listener.on_end(0, ending(EndReason::kStop));
  };
  const auto exchange = send(service, body({{"stream", true}, {"logprobs", true}}));
  const std::vector<Json> all = choices(*exchange);
  ASSERT_EQ(all.size(), 3u);
  // Reports wait for the text that their tokens led to; what is left comes with the end.
  EXPECT_EQ(all[0]["logprobs"], nullptr);
  EXPECT_EQ(all[1]["delta"], Json({{"content", "ab"}}));
  EXPECT_EQ(all[1]["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(all[2]["delta"], Json::object());
  EXPECT_EQ(all[2]["logprobs"]["content"].size(), 1u);
}

TEST(OpenAiChatStream, SendsUsageOnRequestOnce) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    for (int index = 0; index < 3; ++index) {
      say(listener, index, {text("x")});
      listener.on_end(index, ending(EndReason::kStop));
    }
  };
  const auto exchange =
      send(service, body({{"n", 3}, {"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  const std::vector<Json> chunks = exchange->chunks();
  ASSERT_EQ(chunks.size(), 10u);  // role, text and end of three replies, usage
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    ASSERT_TRUE(chunks[i].contains("usage"));
    EXPECT_EQ(chunks[i]["usage"], nullptr);
    EXPECT_FALSE(chunks[i].contains("timings"));
    EXPECT_EQ(chunks[i]["choices"][0]["index"], static_cast<int>(i / 3));
  }
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 15);
  EXPECT_TRUE(chunks.back().contains("timings"));
}

TEST(OpenAiChatStream, BeginsWhenTheTaskIsAccepted) {
  FakeService service;
  const auto exchange = send(service, body({{"stream", true}}));
  EXPECT_TRUE(exchange->began());  // comments can flow while the prompt is read
  EXPECT_TRUE(exchange->writes().empty());
  EXPECT_FALSE(exchange->ended());
  say(*service.replies[0].listener, 0, {text("x")});
  EXPECT_EQ(exchange->chunks().size(), 2u);
  service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  EXPECT_TRUE(exchange->ended());
}

TEST(OpenAiChatStream, GivesAnErrorItsStatusWhileItCan) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) { listener.on_end(0, failure(400, "too long")); };
  const auto exchange = send(service, body({{"stream", true}}));
  EXPECT_FALSE(exchange->began());
  EXPECT_EQ(exchange->status(), 400);
  EXPECT_EQ(exchange->json()["error"]["message"], "too long");
}

TEST(OpenAiChatStream, EndsWithAnErrorEvent) {
  FakeService service;
  const auto exchange = send(service, body({{"stream", true}, {"n", 2}}));
  ReplyListener& listener = *service.replies[0].listener;
  say(listener, 0, {text("x")});
  listener.on_end(1, failure(500, "lost"));
  EXPECT_TRUE(exchange->ended());
  EXPECT_EQ(Json::parse(exchange->events().back().data),
            Json::parse(R"({"error":{"message":"lost","type":"server_error","param":null,"code":null}})"));
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
  say(listener, 0, {text("y")});
  listener.on_end(0, ending(EndReason::kStop));
  EXPECT_TRUE(exchange->mistakes().empty());
}

struct HalfRefusingService : FakeService {
  std::shared_ptr<TaskHandle> chat(ChatTask, std::shared_ptr<ReplyListener> listener) override {
    if (first_says) say(*listener, 0, {text("x")});
    throw ApiFailure(api_error(429, "full"));
  }
  bool first_says = false;
};

TEST(OpenAiChatStream, EndsWhenTheServiceRefusesHalfway) {
  HalfRefusingService service;
  EXPECT_EQ(send(service, body({{"stream", true}, {"n", 2}}))->status(), 429);
  EXPECT_EQ(send(service, body({{"n", 2}}))->status(), 429);
  service.first_says = true;
  const auto exchange = send(service, body({{"stream", true}, {"n", 2}}));
  EXPECT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->chunks().back()["error"]["message"], "full");
}

// Life and death.

TEST(OpenAiChat, CancelsWhenTheClientLeaves) {
  for (const bool stream : {false, true}) {
    FakeService service;
    const auto exchange = send(service, body({{"stream", stream}}));
    EXPECT_EQ(service.replies[0].handle->cancelled, 0);
    exchange->leave();
    EXPECT_EQ(service.replies[0].handle->cancelled, 1);
    // The engine may not have noticed yet.
    say(*service.replies[0].listener, 0, {text("x")});
    EXPECT_TRUE(exchange->mistakes().empty());
    EXPECT_TRUE(exchange->writes().empty());
  }
}

TEST(OpenAiChat, CancelsWhenTheClientHasLeftBefore) {
  FakeService service;
  auto exchange = std::make_shared<FakeExchange>(body({{"stream", true}}));
  exchange->leave();
  handle_openai_chat(service, exchange);
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
}

TEST(OpenAiChat, DoesNotCancelWhatHasEnded) {
  FakeService service;
  const auto exchange = send(service, body({{"stream", true}}));
  service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  exchange->leave();
  EXPECT_EQ(service.replies[0].handle->cancelled, 0);
}

/// A handle that holds the listener, as a service's may.
struct HoldingHandle : TaskHandle {
  explicit HoldingHandle(std::shared_ptr<ReplyListener> held) : listener(std::move(held)) {}
  void cancel() override { listener.reset(); }
  std::shared_ptr<ReplyListener> listener;
};

struct HoldingService : FakeService {
  std::shared_ptr<TaskHandle> chat(ChatTask, std::shared_ptr<ReplyListener> listener) override {
    weak = listener;
    return std::make_shared<HoldingHandle>(std::move(listener));
  }
  std::weak_ptr<ReplyListener> weak;
};

TEST(OpenAiChat, LeavesNothingBehind) {
  for (const bool leaves : {false, true}) {
    HoldingService service;
    std::weak_ptr<FakeExchange> gone;
    {
      const auto exchange = send(service, body({{"stream", true}}));
      gone = exchange;
      if (leaves) {
        exchange->leave();
      } else {
        service.weak.lock()->on_end(0, ending(EndReason::kStop));
      }
    }
    EXPECT_TRUE(service.weak.expired()) << leaves;
    EXPECT_TRUE(gone.expired()) << leaves;
  }
}

TEST(OpenAiChat, ToleratesRepliesFromAnotherThread) {
  // The replies race with the return of chat() and with the client's leaving.
  for (int round = 0; round < 200; ++round) {
    FakeService service;
    std::thread engine;
    service.script = [&](ReplyListener&, int) {
      engine = std::thread([listener = service.replies.back().listener] {
        for (int i = 0; i < 5; ++i) say(*listener, 0, {text("x")});
        listener->on_end(0, ending(EndReason::kStop));
      });
    };
    auto exchange = std::make_shared<FakeExchange>(body({{"stream", true}}));
    handle_openai_chat(service, exchange);
    engine.join();
    EXPECT_TRUE(exchange->mistakes().empty());
    EXPECT_EQ(exchange->events().back().data, "[DONE]");
    EXPECT_EQ(deltas(*exchange).size(), 7u);
  }
}

}  // namespace
}  // namespace carat::server

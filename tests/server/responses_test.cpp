#include "server/responses.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "fakes.h"
#include "random_reply.h"
#include "server/response_items.h"
#include "server/responses_request.h"

namespace carat::server {
namespace {

ResponsesRequest read(const std::string& body) {
  ResponseStore store;
  return read_responses_request(body, store);
}

ChatTask task_of(const std::string& fields) {
  Json body = {{"model", "tiny"}, {"input", "Hi"}};
  body.update(Json::parse(fields));
  return read(body.dump()).task;
}

void expect_messages(const std::string& input, const std::string& expected, const std::string& instructions = "null") {
  EXPECT_EQ(task_of(R"({"input":)" + input + R"(,"instructions":)" + instructions + "}").messages,
            Json::parse(expected))
      << input;
}

void expect_refused(const std::string& fields, const std::string& param, const std::string& words = "") {
  try {
    task_of(fields);
  } catch (const ApiFailure& failure) {
    EXPECT_EQ(failure.error().status, 400) << fields;
    EXPECT_EQ(failure.error().param, param) << fields << ": " << failure.error().message;
    EXPECT_NE(failure.error().message.find(words), std::string::npos) << failure.error().message;
    return;
  }
  ADD_FAILURE() << "accepted: " << fields;
}

TEST(ResponsesInput, StringsAndMessages) {
  expect_messages(R"("Hi")", R"([{"role":"user","content":"Hi"}])");
  expect_messages(R"([{"role":"user","content":"a"},
                      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
                      {"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]}])",
                  R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                      {"role":"user","content":"cd"}])");
}

TEST(ResponsesInput, FirstInstructionsAreOneSystemMessage) {
  expect_messages(R"([{"role":"developer","content":"D"},{"role":"system","content":"S"},{"role":"user","content":"u"},
                      {"role":"developer","content":"E"}])",
                  R"([{"role":"system","content":"I\n\nD\n\nS"},{"role":"user","content":"u"},
                      {"role":"system","content":"E"}])",
                  R"("I")");
  expect_messages(R"([{"role":"assistant","content":"a"},{"role":"user","content":"u"}])",
                  R"([{"role":"system","content":"I"},{"role":"assistant","content":"a"},
                      {"role":"user","content":"u"}])",
                  R"("I")");
}

TEST(ResponsesInput, WhatTheModelDidInOneTurnIsOneMessage) {
  expect_messages(
      R"([{"role":"user","content":"u"},
          {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"S"}],
           "content":[{"type":"reasoning_text","text":"T"}]},
          {"role":"assistant","content":"Looking."},
          {"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\":1}"},
          {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
          {"type":"function_call_output","call_id":"2","output":"two"},
          {"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"on"},{"type":"input_text","text":"e"}]},
          {"type":"reasoning","summary":[{"type":"summary_text","text":"U"}],"encrypted_content":null},
          {"type":"function_call","call_id":"3","name":"f","arguments":"{}"},
          {"type":"function_call_output","call_id":"3","output":""}])",
      R"([{"role":"user","content":"u"},
          {"role":"assistant","content":"Looking.","reasoning_content":"T","tool_calls":[
            {"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
            {"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"1","content":"one"},
          {"role":"tool","tool_call_id":"2","content":"two"},
          {"role":"assistant","content":"","reasoning_content":"U","tool_calls":[
            {"id":"3","type":"function","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"3","content":""}])");
}

TEST(ResponsesInput, OutputsFollowTheirCallsWhereverTheyStand) {
  expect_messages(
      R"([{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
          {"role":"user","content":"wait"},
          {"type":"function_call_output","call_id":"1","output":"x"}])",
      R"([{"role":"assistant","content":"","tool_calls":[
            {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"1","content":"x"},
          {"role":"user","content":"wait"}])");
}

TEST(ResponsesInput, ThoughtsThatLedToNothingAreNoTurn) {
  expect_messages(R"([{"role":"user","content":"u"},{"type":"reasoning","summary":[{"type":"summary_text","text":"S"}]},
                      {"role":"user","content":"v"}])",
                  R"([{"role":"user","content":"u"},{"role":"user","content":"v"}])");
}

TEST(ResponsesInput, CallsAndOutputsMustAnswerEachOther) {
  const std::string call = R"({"type":"function_call","call_id":"1","name":"f","arguments":"{}"})";
  const std::string output = R"({"type":"function_call_output","call_id":"1","output":"x"})";
  expect_refused(R"({"input":[)" + call + "]}", "input", "no function_call_output");
  expect_refused(R"({"input":[)" + output + "]}", "input", "a function_call of that call_id before it");
  expect_refused(R"({"input":[)" + output + "," + call + "]}", "input", "before it");
  expect_refused(R"({"input":[)" + call + "," + call + "," + output + "]}", "input", "a second function_call ");
  expect_refused(R"({"input":[)" + call + "," + output + "," + output + "]}", "input", "a second function_call_output");
}

TEST(ResponsesInput, WhatCannotBeReadIsRefusedByName) {
  const auto item = [](const std::string& item) { return R"({"input":[)" + item + "]}"; };
  expect_refused(item(R"({"type":"item_reference","id":"msg_1"})"), "input[0].type", "resolves no references");
  expect_refused(item(R"({"type":"web_search_call"})"), "input[0].type", "web_search_call");
  expect_refused(item(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
                 "input[0].content[0].type", "reads no images");
  expect_refused(item(R"({"role":"user","content":[{"type":"blob"}]})"), "input[0].content[0].type");
  expect_refused(item(R"({"role":"user"})"), "input[0].content");
  expect_refused(item(R"({"role":"critic","content":"x"})"), "input[0].role");
  expect_refused(item(R"({"type":"function_call","call_id":"1","name":"f"})"), "input[0].arguments");
  expect_refused(item(R"({"type":"function_call_output","call_id":"1"})"), "input[0].output");
  expect_refused(item("7"), "input[0]");
  expect_refused(R"({"input":[]})", "input");
  expect_refused(R"({"input":null})", "input");
  expect_refused(R"({"input":7})", "input");
}

TEST(ResponsesRequest, FieldsBecomeTheTask) {
  const ChatTask task = task_of(R"({
    "temperature":0.5,"top_p":0.9,"max_output_tokens":64,"parallel_tool_calls":false,"min_p":0.1,
    "tools":[{"type":"web_search"},{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},
             {"type":"custom","name":"patch"},{"type":"function","name":"g"}],
    "tool_choice":{"type":"function","name":"g"},
    "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},
    "reasoning":{"effort":"low","summary":"auto"},"include":["message.output_text.logprobs"],"top_logprobs":3})");
  EXPECT_FLOAT_EQ(task.sampling.temperature.value(), 0.5f);
  EXPECT_FLOAT_EQ(task.sampling.top_p.value(), 0.9f);
  EXPECT_FLOAT_EQ(task.sampling.min_p.value(), 0.1f);
  EXPECT_EQ(task.max_tokens, 64);
  EXPECT_FALSE(task.parallel_tool_calls);
  EXPECT_EQ(task.tools, Json::parse(R"([
    {"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}},
    {"type":"function","function":{"name":"g"}}])"));
  EXPECT_EQ(task.tool_choice.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(task.tool_choice.name, "g");
  EXPECT_EQ(task.response_format.kind, ResponseFormat::Kind::kJsonSchema);
  EXPECT_EQ(task.response_format.schema, Json::parse(R"({"type":"object"})"));
  EXPECT_EQ(task.thinking, true);
  EXPECT_TRUE(task.logprobs);
  EXPECT_EQ(task.top_logprobs, 3);

  const ChatTask plain = task_of("{}");
  EXPECT_FALSE(plain.max_tokens || plain.thinking || plain.logprobs);
  EXPECT_TRUE(plain.parallel_tool_calls);
  EXPECT_EQ(task_of(R"({"reasoning":{"effort":"none"}})").thinking, false);
  EXPECT_EQ(task_of(R"({"text":{"format":{"type":"json_object"}}})").response_format.kind,
            ResponseFormat::Kind::kJsonObject);
}

TEST(ResponsesRequest, AllowedToolsAreTheOnesThatStay) {
  const std::string tools = R"("tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}])";
  const ChatTask task = task_of("{" + tools + R"(,"tool_choice":{"type":"allowed_tools","mode":"required",
    "tools":[{"type":"function","name":"g"}]}})");
  ASSERT_EQ(task.tools.size(), 1u);
  EXPECT_EQ(task.tools[0]["function"]["name"], "g");
  EXPECT_EQ(task.tool_choice.kind, ToolChoice::Kind::kRequired);
  expect_refused(
      "{" + tools +
          R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"h"}]}})",
      "tool_choice.tools[0].name");
}

TEST(ResponsesRequest, BadFieldsAreRefused) {
  expect_refused(R"({"background":true})", "background");
  expect_refused(R"({"conversation":"c"})", "conversation");
  expect_refused(R"({"prompt":{"id":"p"}})", "prompt");
  expect_refused(R"({"max_output_tokens":0})", "max_output_tokens");
  expect_refused(R"({"temperature":9})", "temperature");
  expect_refused(R"({"tool_choice":"required"})", "tool_choice");
  expect_refused(R"({"tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}})", "tool_choice.type");
  expect_refused(R"({"tools":[{"type":"web_search"}],"tool_choice":"required"})", "tool_choice");
  expect_refused(R"({"tool_choice":"sometimes"})", "tool_choice");
  expect_refused(R"({"tools":[{"type":"function"}]})", "tools[0].name");
  expect_refused(R"({"tools":[{"name":"f"}]})", "tools[0].type");
  expect_refused(R"({"text":{"format":{"type":"xml"}}})", "text.format.type");
  expect_refused(R"({"text":{"format":{"type":"json_schema","name":"n"}}})", "text.format.schema");
  expect_refused(R"({"reasoning":{"effort":"huge"}})", "reasoning.effort");
  expect_refused(R"({"metadata":{"a":1}})", "metadata.a");
  expect_refused(R"({"top_logprobs":21})", "top_logprobs");
  expect_refused(R"({"truncation":"front"})", "truncation");
  expect_refused(R"({"store":"no"})", "store");
}

TEST(ResponsesRequest, ResponseTellsWhatWasAsked) {
  const Json response = read(R"({"input":"Hi","model":"tiny","instructions":"I","temperature":0.5,"max_output_tokens":9,
    "metadata":{"a":"b"},"user":"u","tools":[{"type":"web_search"},{"type":"function","name":"f"}],
    "reasoning":{"effort":"low"},"truncation":"auto"})")
                            .response;
  EXPECT_TRUE(response["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(response["instructions"], "I");
  EXPECT_EQ(response["temperature"], 0.5);
  EXPECT_EQ(response["max_output_tokens"], 9);
  EXPECT_EQ(response["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(response["user"], "u");
  EXPECT_EQ(response["tools"],
            Json::parse(R"([{"type":"function","description":null,"parameters":null,"strict":null,"name":"f"}])"));
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_EQ(response["reasoning"], Json::parse(R"({"effort":"low","summary":null})"));
  EXPECT_EQ(response["text"], Json::parse(R"({"format":{"type":"text"}})"));
  EXPECT_EQ(response["truncation"], "disabled");
  EXPECT_EQ(response["status"], "in_progress");
  EXPECT_EQ(response["output"], Json::array());
}

// Replies.

using Batches = std::vector<std::vector<ReplyEvent>>;

struct Server {
  FakeService service;
  std::shared_ptr<ResponseStore> store = std::make_shared<ResponseStore>();

  std::shared_ptr<FakeExchange> post(const std::string& body) {
    auto exchange = std::make_shared<FakeExchange>(body, "POST", "/v1/responses");
    handle_responses(service, exchange, store);
    EXPECT_EQ(exchange->mistakes(), std::vector<std::string>{});
    return exchange;
  }
  std::shared_ptr<FakeExchange> ask(const std::string& fields, const Batches& batches, const ReplyEnd& end) {
    service.script = [&](ReplyListener& listener, int) {
      for (const auto& batch : batches) say(listener, 0, batch);
      listener.on_end(0, end);
    };
    Json body = {{"model", "tiny"}, {"input", "Hi"}};
    body.update(Json::parse(fields));
    const auto exchange = post(body.dump());
    EXPECT_TRUE(exchange->answered());
    return exchange;
  }
  std::shared_ptr<FakeExchange> stored(const std::string& method, const std::string& rest,
                                       const std::string& query = "") {
    auto exchange = std::make_shared<FakeExchange>("", method, "/v1/responses/" + rest);
    exchange->mutable_request().query = query;
    handle_stored_response(service, exchange, store);
    return exchange;
  }
};

/// What a client makes of the stream; fails where an event does not follow from those before.
Json fold(const std::vector<SentEvent>& events) {
  Json response;
  Json done = Json::array();
  Json item = Json::object();
  bool ended = false;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json data = Json::parse(events[i].data);
    const std::string type = data["type"];
    EXPECT_EQ(events[i].name, type);
    EXPECT_EQ(data["sequence_number"], i);
    EXPECT_FALSE(ended);
    EXPECT_EQ(type == "response.created", i == 0);
    EXPECT_EQ(type == "response.in_progress", i == 1);
    EXPECT_EQ(data.value("output_index", done.size()), done.size()) << type;
    EXPECT_EQ(data.value("item_id", item.value("id", "")), item.value("id", "")) << type;
    if (type == "response.output_item.added") {
      EXPECT_TRUE(item.empty());
      item = data["item"];
      EXPECT_EQ(item["status"], "in_progress");
    } else if (type == "response.content_part.added") {
      item["content"].push_back(data["part"]);
    } else if (type == "response.output_text.delta") {
      Json& part = item["content"][0];
      part["text"].get_ref<std::string&>() += data["delta"];
      for (const Json& entry : data["logprobs"]) part["logprobs"].push_back(entry);
    } else if (type == "response.output_text.done") {
      EXPECT_EQ(item["content"][0]["text"], data["text"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(item["content"][0], data["part"]);
    } else if (type == "response.reasoning_summary_part.added") {
      item["summary"].push_back(data["part"]);
    } else if (type == "response.reasoning_summary_text.delta") {
      item["summary"][0]["text"].get_ref<std::string&>() += data["delta"];
    } else if (type == "response.reasoning_summary_text.done") {
      EXPECT_EQ(item["summary"][0]["text"], data["text"]);
    } else if (type == "response.reasoning_summary_part.done") {
      EXPECT_EQ(item["summary"][0], data["part"]);
    } else if (type == "response.function_call_arguments.delta") {
      item["arguments"].get_ref<std::string&>() += data["delta"];
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(item["arguments"], data["arguments"]);
    } else if (type == "response.output_item.done") {
      Json finished = data["item"];
      done.push_back(finished);
      EXPECT_NE(finished["status"], "in_progress");
      item["status"] = finished["status"];
      if (finished["type"] == "reasoning") {
        EXPECT_EQ(finished["content"][0]["text"], finished["summary"][0]["text"]);
        finished.erase("content");
      }
      EXPECT_EQ(item, finished);
      item = Json::object();
    } else if (type == "response.completed" || type == "response.incomplete") {
      EXPECT_TRUE(item.empty());
      response = data["response"];
      EXPECT_EQ(response["output"], done);
      ended = true;
    }
  }
  EXPECT_TRUE(ended);
  return response;
}

/// Without what differs from one response to the next.
Json anonymous(Json response) {
  for (const char* name : {"id", "created_at", "completed_at"}) response.erase(name);
  for (Json& item : response["output"]) item.erase("id");
  return response;
}

TEST(ResponsesReply, WholeResponse) {
  Server server;
  const auto exchange =
      server.ask("{}", {{reasoning("Hm")}, {text("Look"), text("ing.")}, {tool_call(0, "call_1", "f", R"({"a":1})")}},
                 ending(EndReason::kToolCalls,
                        {.prompt_tokens = 20, .cached_tokens = 8, .completion_tokens = 9, .reasoning_tokens = 3}));
  ASSERT_EQ(exchange->status(), 200);
  const Json response = exchange->json();
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "tiny");
  EXPECT_TRUE(response["completed_at"].is_number());
  EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens":20,
    "input_tokens_details":{"cached_tokens":8,"cache_write_tokens":0},"output_tokens":9,
    "output_tokens_details":{"reasoning_tokens":3},"total_tokens":29})"));
  EXPECT_EQ(anonymous(response)["output"], Json::parse(R"([
    {"type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":"Hm"}],
     "content":[{"type":"reasoning_text","text":"Hm"}]},
    {"type":"message","status":"completed","role":"assistant",
     "content":[{"type":"output_text","text":"Looking.","annotations":[],"logprobs":[]}]},
    {"type":"function_call","status":"completed","call_id":"call_1","name":"f","arguments":"{\"a\":1}"}])"));
}

TEST(ResponsesReply, StreamHasTheEventsInOrder) {
  Server server;
  const auto exchange =
      server.ask(R"({"stream":true})", {{reasoning("Hm")}, {text("a"), text("b")}, {tool_call(0, "call_1", "f", "{}")}},
                 ending(EndReason::kToolCalls));
  std::vector<std::string> names;
  for (const SentEvent& event : exchange->events()) names.push_back(event.name.substr(event.name.find('.') + 1));
  EXPECT_EQ(names, (std::vector<std::string>{"created",
                                             "in_progress",
                                             "output_item.added",
                                             "reasoning_summary_part.added",
                                             "reasoning_summary_text.delta",
                                             "reasoning_summary_text.done",
                                             "reasoning_summary_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "content_part.added",
                                             "output_text.delta",
                                             "output_text.delta",
                                             "output_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "completed"}));
}

TEST(ResponsesReply, StreamAndWholeAreTheSameResponse) {
  std::mt19937 random(8);
  for (int round = 0; round < 500; ++round) {
    const Batches batches = random_reply(random);
    const ReplyEnd end = ending(random_end(random));
    Server server;
    const Json whole = server.ask("{}", batches, end)->json();
    const Json folded = fold(server.ask(R"({"stream":true})", batches, end)->events());
    EXPECT_FALSE(whole["output"].empty());
    ASSERT_EQ(anonymous(folded), anonymous(whole));
    EXPECT_EQ(server.stored("GET", folded["id"])->json(), folded);
  }
}

TEST(ResponsesReply, TheLimitOfTokensLeavesItIncomplete) {
  Server server;
  const Json thought = server.ask("{}", {{reasoning("Hm")}}, ending(EndReason::kLength))->json();
  EXPECT_EQ(thought["status"], "incomplete");
  EXPECT_EQ(thought["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(thought["output"].size(), 1u);
  EXPECT_EQ(thought["output"][0]["status"], "incomplete");
  EXPECT_EQ(fold(server.ask(R"({"stream":true})", {{text("a")}}, ending(EndReason::kLength))->events())["status"],
            "incomplete");
}

TEST(ResponsesReply, LogprobsAreThoseOfTheText) {
  const auto token = [](const std::string& bytes, float logprob) {
    return TokenReport{
        .token = 1, .bytes = bytes, .logprob = logprob, .top = {{.token = 2, .bytes = "z", .logprob = -3}}};
  };
  for (const bool stream : {false, true}) {
    Server server;
    server.service.script = [&](ReplyListener& listener, int) {
      say(listener, 0, {}, {token("<|channel>", -1)});
      say(listener, 0, {reasoning("Hm")}, {token("Hm", -1)});
      say(listener, 0, {}, {token("<channel|>", -1)});
      say(listener, 0, {text("a")}, {token("a", -0.5f)});
      say(listener, 0, {}, {token("\xc3", -0.25f)});
      say(listener, 0, {text("\xc3\xa9")}, {token("\xa9", -0.125f)});
      listener.on_end(0, ending(EndReason::kStop));
    };
    const auto exchange = server.post(
        Json({{"input", "Hi"}, {"stream", stream}, {"top_logprobs", 1}, {"include", {"message.output_text.logprobs"}}})
            .dump());
    const Json response = stream ? fold(exchange->events()) : exchange->json();
    const Json& part = response["output"][1]["content"][0];
    ASSERT_EQ(part["logprobs"].size(), 3u) << part;
    EXPECT_EQ(part["logprobs"][0]["token"], "a");
    EXPECT_EQ(part["logprobs"][1]["bytes"], Json::parse("[195]"));
    EXPECT_EQ(part["logprobs"][2]["logprob"], -0.125);
    EXPECT_EQ(part["logprobs"][2]["top_logprobs"][0]["token"], "z");
    if (!stream) continue;
    Json streamed = Json::array();
    for (const Json& chunk : exchange->chunks()) {
      if (chunk["type"] != "response.output_text.delta") continue;
      for (const Json& entry : chunk["logprobs"]) streamed.push_back(entry);
    }
    EXPECT_EQ(streamed, part["logprobs"]);
  }
}

TEST(ResponsesReply, FailuresHaveTheirShape) {
  Server server;
  server.service.refusal = api_error(429, "Full.", "queue_full");
  server.service.refusal->retry_after = 3;
  const auto refused = server.ask(R"({"stream":true})", {}, {});
  EXPECT_EQ(refused->status(), 429);
  EXPECT_EQ(refused->json()["error"]["code"], "queue_full");
  server.service.refusal.reset();
  EXPECT_EQ(server.ask("{}", {{text("a")}}, failure(500, "Broken."))->status(), 500);
  EXPECT_EQ(server.ask(R"({"model":"other"})", {}, {})->status(), 404);

  const auto exchange = server.ask(R"({"stream":true})", {{text("a")}}, failure(500, "Broken."));
  EXPECT_TRUE(exchange->ended());
  const std::vector<Json> chunks = exchange->chunks();
  const Json& error = chunks[chunks.size() - 2];
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["message"], "Broken.");
  EXPECT_EQ(error["sequence_number"], chunks.size() - 2);
  EXPECT_EQ(chunks.back()["type"], "response.failed");
  EXPECT_EQ(chunks.back()["response"]["status"], "failed");
  EXPECT_EQ(chunks.back()["response"]["error"], Json::parse(R"({"code":"server_error","message":"Broken."})"));
}

TEST(ResponsesReply, ClientsThatLeaveCancel) {
  Server server;
  const auto exchange = server.post(R"({"input":"Hi","stream":true})");
  EXPECT_EQ(exchange->events().size(), 2u);
  exchange->leave();
  EXPECT_EQ(server.service.replies[0].handle->cancelled, 1);
  server.service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  EXPECT_EQ(server.store->stats().entries, 0u);
}

TEST(ResponsesStored, AreGoneOnFromWithoutTheirInstructions) {
  Server server;
  const Json first = server
                         .ask(R"({"instructions":"I"})", {{reasoning("Hm")}, {tool_call(0, "call_1", "f", "{}")}},
                              ending(EndReason::kToolCalls))
                         ->json();
  const Json second =
      server
          .ask(Json({{"previous_response_id", first["id"]},
                     {"instructions", "J"},
                     {"input", {{{"type", "function_call_output"}, {"call_id", "call_1"}, {"output", "x"}}}}})
                   .dump(),
               {{text("Done.")}}, ending(EndReason::kStop))
          ->json();
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  EXPECT_EQ(server.service.chats[1].messages, Json::parse(R"([
    {"role":"system","content":"J"},{"role":"user","content":"Hi"},
    {"role":"assistant","content":"","reasoning_content":"Hm","tool_calls":[
      {"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"call_1","content":"x"}])"));
  server.ask(Json({{"previous_response_id", second["id"]}, {"input", "And?"}}).dump(), {}, ending(EndReason::kStop));
  const Json& messages = server.service.chats[2].messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0], Json::parse(R"({"role":"user","content":"Hi"})"));
  EXPECT_EQ(messages[3], Json::parse(R"({"role":"assistant","content":"Done."})"));
  EXPECT_EQ(messages[4], Json::parse(R"({"role":"user","content":"And?"})"));
  // The call of the first response is still open there.
  EXPECT_EQ(server.ask(Json({{"previous_response_id", first["id"]}, {"input", "x"}}).dump(), {}, {})->status(), 400);
}

TEST(ResponsesStored, AreFetchedListedAndDeleted) {
  Server server;
  const std::string first = server.ask("{}", {{text("a")}}, ending(EndReason::kStop))->json()["id"];
  const Json second = server
                          .ask(Json({{"previous_response_id", first}, {"input", "More"}}).dump(), {{text("b")}},
                               ending(EndReason::kStop))
                          ->json();
  const std::string id = second["id"];
  EXPECT_EQ(server.stored("GET", id)->json(), second);
  EXPECT_EQ(server.stored("GET", id, "stream=true")->status(), 400);

  const Json all = server.stored("GET", id + "/input_items", "order=asc")->json();
  EXPECT_EQ(all["object"], "list");
  EXPECT_FALSE(all["has_more"].get<bool>());
  ASSERT_EQ(all["data"].size(), 3u);
  EXPECT_EQ(all["data"][0]["content"][0], Json::parse(R"({"type":"input_text","text":"Hi"})"));
  EXPECT_EQ(all["data"][1]["role"], "assistant");
  EXPECT_EQ(all["first_id"], all["data"][0]["id"]);
  EXPECT_EQ(all["last_id"], all["data"][2]["id"]);
  const Json page = server.stored("GET", id + "/input_items", "limit=1")->json();
  EXPECT_TRUE(page["has_more"].get<bool>());
  EXPECT_EQ(page["data"], Json::array({all["data"][2]}));
  const std::string after = page["last_id"];
  EXPECT_EQ(server.stored("GET", id + "/input_items", "after=" + after)->json()["data"],
            Json::array({all["data"][1], all["data"][0]}));
  for (const char* query : {"limit=0", "limit=101", "limit=x", "order=up", "after=none"}) {
    EXPECT_EQ(server.stored("GET", id + "/input_items", query)->status(), 400) << query;
  }

  EXPECT_EQ(server.stored("POST", id + "/cancel")->status(), 400);
  EXPECT_EQ(server.stored("DELETE", id)->json(), Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  for (const char* rest : {"", "/input_items"}) EXPECT_EQ(server.stored("GET", id + rest)->status(), 404);
  EXPECT_EQ(server.stored("DELETE", id)->status(), 404);
  EXPECT_EQ(server.stored("POST", id + "/cancel")->status(), 404);
  EXPECT_EQ(server.stored("PUT", id)->status(), 405);
  EXPECT_EQ(server.stored("GET", id + "/tea")->status(), 404);
  EXPECT_EQ(server.stored("GET", "")->status(), 404);
  const auto gone = server.ask(Json({{"previous_response_id", id}, {"input", "x"}}).dump(), {}, {});
  EXPECT_EQ(gone->status(), 404);
  EXPECT_EQ(gone->json()["error"]["code"], "previous_response_not_found");
}

TEST(ResponsesStored, OnlyWhenWanted) {
  Server server;
  const Json response = server.ask(R"({"store":false})", {{text("a")}}, ending(EndReason::kStop))->json();
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(server.stored("GET", response["id"])->status(), 404);
}

TEST(ResponsesCount, IsThePromptOfTheSameTask) {
  Server server;
  const auto exchange = std::make_shared<FakeExchange>(R"({"input":"Hi","instructions":"I"})");
  handle_response_input_tokens(server.service, exchange, server.store);
  EXPECT_EQ(exchange->json(), Json::parse(R"({"object":"response.input_tokens","input_tokens":17})"));
  server.post(R"({"input":"Hi","instructions":"I"})");
  EXPECT_EQ(server.service.counted[0].messages, server.service.chats[0].messages);
}

}  // namespace
}  // namespace carat::server

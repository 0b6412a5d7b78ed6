#include "server/openai_completions.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes.h"

namespace carat::server {
namespace {

std::string body(const Json& more = Json::object()) {
  Json request = {{"model", "tiny"}, {"prompt", "Once"}};
  request.update(more);
  return request.dump();
}

std::shared_ptr<FakeExchange> send(FakeService& service, const Json& more) {
  auto exchange = std::make_shared<FakeExchange>(body(more), "POST", "/v1/completions");
  handle_openai_completions(service, exchange);
  EXPECT_TRUE(exchange->mistakes().empty());
  return exchange;
}

TokenReport report(int token, std::string bytes, float logprob, std::vector<TokenReport::Alternative> top = {}) {
  return {.token = token, .bytes = std::move(bytes), .logprob = logprob, .top = std::move(top)};
}

/// Each reply says the number of its task and its index.
void say_places(ReplyListener& listener, int task, int replies) {
  for (int index = replies - 1; index >= 0; --index) {
    say(listener, index, {text(std::to_string(task) + "-" + std::to_string(index))});
    listener.on_end(index, ending(EndReason::kLength));
  }
}

TEST(OpenAiCompletionsRequest, IsReadWhole) {
  FakeService service;
  send(service, {{"adapter", "poet"},
                 {"temperature", 0.5},
                 {"stop", "x"},
                 {"max_tokens", 0},
                 {"n", 2},
                 {"best_of", 3},
                 {"echo", true},
                 {"logprobs", 4},
                 {"suffix", ""}});
  ASSERT_EQ(service.completions.size(), 1u);
  const CompletionTask& task = service.completions[0];
  EXPECT_EQ(task.prompt, "Once");
  EXPECT_TRUE(task.prompt_ids.empty());
  EXPECT_EQ(task.adapter, "poet");
  EXPECT_EQ(task.sampling.temperature, 0.5f);
  EXPECT_EQ(task.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(task.max_tokens, 0);
  EXPECT_EQ(task.n, 3);
  EXPECT_TRUE(task.logprobs);
  EXPECT_EQ(task.top_logprobs, 4);
  EXPECT_TRUE(task.prompt_logprobs);
}

TEST(OpenAiCompletionsRequest, HasOpenAisDefaults) {
  FakeService service;
  send(service, Json::object());
  const CompletionTask& task = service.completions.at(0);
  EXPECT_EQ(task.max_tokens, 16);
  EXPECT_EQ(task.n, 1);
  EXPECT_FALSE(task.logprobs);
  EXPECT_FALSE(task.prompt_logprobs);
}

TEST(OpenAiCompletionsRequest, TakesPromptsInEveryForm) {
  const auto tasks = [](const Json& prompt) {
    FakeService service;
    send(service, {{"prompt", prompt}});
    std::vector<std::pair<std::string, std::vector<int>>> out;
    for (const CompletionTask& task : service.completions) out.emplace_back(task.prompt, task.prompt_ids);
    return out;
  };
  using Prompts = std::vector<std::pair<std::string, std::vector<int>>>;
  EXPECT_EQ(tasks("a"), (Prompts{{"a", {}}}));
  EXPECT_EQ(tasks(""), (Prompts{{"", {}}}));
  EXPECT_EQ(tasks({"a", "b"}), (Prompts{{"a", {}}, {"b", {}}}));
  EXPECT_EQ(tasks({2, 300}), (Prompts{{"", {2, 300}}}));
  EXPECT_EQ(tasks(Json::parse("[[2],[300,301]]")), (Prompts{{"", {2}}, {"", {300, 301}}}));
}

TEST(OpenAiCompletionsRequest, NamesTheFieldToBlame) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"prompt":null})", "prompt"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":{}})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt[0]"},
      {R"({"prompt":[1,"a"]})", "prompt[1]"},
      {R"({"prompt":[1.5]})", "prompt[0]"},
      {R"({"prompt":[-1]})", "prompt[0]"},
      {R"({"prompt":["a",1]})", "prompt[1]"},
      {R"({"prompt":["a",[1]]})", "prompt[1]"},
      {R"({"prompt":[[1],["a"]]})", "prompt[1][0]"},
      {R"({"prompt":[true]})", "prompt[0]"},
      {R"({"suffix":"the end"})", "suffix"},
      {R"({"max_tokens":-1})", "max_tokens"},
      {R"({"logprobs":21})", "logprobs"},
      {R"({"logprobs":true})", "logprobs"},
      {R"({"n":17})", "n"},
      {R"({"n":3,"best_of":2})", "best_of"},
      {R"({"best_of":17})", "best_of"},
      {R"({"best_of":2,"stream":true})", "best_of"},
      {R"({"echo":1})", "echo"},
      {R"({"echo":true,"logprobs":1,"stream":true})", "logprobs"},
      {R"({"stream_options":{}})", "stream_options"},
      {R"({"prompt":["a","b","c","d","e"],"n":13})", "n"},
  };
  for (const auto& [more, param] : cases) {
    FakeService service;
    const auto exchange = send(service, Json::parse(more));
    EXPECT_EQ(exchange->status(), 400) << more;
    EXPECT_EQ(exchange->json()["error"]["param"], param) << exchange->json();
    EXPECT_TRUE(service.completions.empty()) << more;
  }
  FakeService service;
  EXPECT_EQ(send(service, {{"prompt", std::vector<std::string>(65, "a")}})->status(), 400);
  EXPECT_EQ(send(service, {{"model", "huge"}})->status(), 404);
}

TEST(OpenAiCompletions, HaveTheShapeThatClientsKnow) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {text(" upon"), text(" a")});
    say(listener, 0, {text(" time")});
    listener.on_end(0, ending(EndReason::kStopSequence));
  };
  Json json = send(service, Json::object())->json();
  EXPECT_EQ(json["id"].get<std::string>().find("cmpl-"), 0u);
  json.erase("id");
  json.erase("created");
  json.erase("timings");
  EXPECT_EQ(json, Json::parse(R"({"object":"text_completion","model":"tiny","system_fingerprint":"carat",
    "choices":[{"text":" upon a time","index":0,"logprobs":null,"finish_reason":"stop"}],
    "usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":0},
             "completion_tokens_details":{"reasoning_tokens":0}}})"));
}

TEST(OpenAiCompletions, NumberChoicesThroughThePrompts) {
  FakeService service;
  service.script = [](ReplyListener& listener, int task) { say_places(listener, task % 3, 2); };
  const Json prompts = {{"prompt", {"a", "b", "c"}}, {"n", 2}};
  const Json json = send(service, prompts)->json();
  const std::vector<std::string> expected = {"0-0", "0-1", "1-0", "1-1", "2-0", "2-1"};
  ASSERT_EQ(json["choices"].size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(json["choices"][i]["text"], expected[i]);
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 30);  // each prompt once
  EXPECT_EQ(json["usage"]["completion_tokens"], 30);

  Json streaming = prompts;
  streaming["stream"] = true;
  streaming["echo"] = true;
  const auto exchange = send(service, streaming);
  std::vector<std::string> texts(6);
  for (const Json& chunk : exchange->chunks()) {
    const Json& choice = chunk["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"a0-0", "a0-1", "b1-0", "b1-1", "c2-0", "c2-1"}));
}

TEST(OpenAiCompletions, AnswerWithTheBest) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    // Sums would favour the short reply 0, means do not.
    const float logprobs[] = {-1.0f, -0.5f, -2.0f, -0.25f};
    for (int index = 0; index < 4; ++index) {
      for (int i = 0; i <= index * 4; ++i) {
        say(listener, index, {text(std::to_string(index))}, {report(1, "x", logprobs[index])});
      }
      listener.on_end(index, ending(EndReason::kLength));
    }
  };
  const Json json = send(service, {{"best_of", 4}, {"n", 2}})->json();
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["text"], std::string(13, '3'));
  EXPECT_EQ(json["choices"][0]["index"], 0);
  EXPECT_EQ(json["choices"][1]["text"], std::string(5, '1'));
  EXPECT_EQ(json["choices"][0]["logprobs"], nullptr);  // not asked for
  EXPECT_EQ(json["usage"]["completion_tokens"], 20);   // the others were made too
  EXPECT_TRUE(service.completions[0].logprobs);
}

TEST(OpenAiCompletions, ReportLogprobs) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {text("é")}, {report(5, "é", -0.1f, {{5, "é", -0.1f}, {6, "e", -3.0f}})});
    say(listener, 0, {}, {report(7, "\xf0\x9f", -0.2f, {{8, "x", -0.15f}})});
    say(listener, 0, {text("😀!")}, {report(9, "\x98\x80", -0.3f), report(10, "!", -0.4f)});
    listener.on_end(0, ending(EndReason::kLength));
  };
  const Json expected = Json::parse(R"({
    "tokens":["é","bytes:\\xf0\\x9f","bytes:\\x98\\x80","!"],"token_logprobs":[-0.1,-0.2,-0.3,-0.4],
    "top_logprobs":[{"é":-0.1,"e":-3.0},{"x":-0.15,"bytes:\\xf0\\x9f":-0.2},{"bytes:\\x98\\x80":-0.3},{"!":-0.4}],
    "text_offset":[0,1,2,2]})");
  EXPECT_EQ(send(service, {{"logprobs", 2}})->json()["choices"][0]["logprobs"], expected);

  const auto exchange = send(service, {{"logprobs", 2}, {"stream", true}});
  Json all = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const Json& chunk : exchange->chunks()) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    for (const auto& [key, value] : logprobs.items()) {
      for (const Json& item : value) all[key].push_back(item);
    }
  }
  EXPECT_EQ(all, expected);
}

TEST(OpenAiCompletions, EchoPromptsWithTheirLogprobs) {
  FakeService service;
  // BOS, then a token a byte.
  service.script = [&](ReplyListener& listener, int task) {
    const bool bos_is_added = service.completions[task].prompt_ids == std::vector<int>{256 + 'h', 256 + 'i'};
    say(listener, 0, {text("!")}, {report(256 + '!', "!", -0.5f)});
    ReplyEnd end = ending(EndReason::kLength);
    if (bos_is_added || service.completions[task].prompt_ids.empty()) {
      end.prompt_reports.push_back(report(256 + 'h', "h", -1.0f));
    }
    end.prompt_reports.push_back(report(256 + 'i', "i", -2.0f, {{256 + 'o', "o", -1.5f}}));
    listener.on_end(0, end);
  };
  const auto choice = [&](const Json& prompt) {
    return send(service, {{"prompt", prompt}, {"echo", true}, {"logprobs", 1}})->json()["choices"][0];
  };
  const Json with_bos = choice("hi");
  EXPECT_EQ(with_bos["text"], "hi!");
  EXPECT_EQ(with_bos["logprobs"]["tokens"], Json({"", "h", "i", "!"}));  // the fake's BOS has no spelling
  EXPECT_EQ(with_bos["logprobs"]["token_logprobs"], Json({nullptr, -1.0, -2.0, -0.5}));
  EXPECT_EQ(with_bos["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(with_bos["logprobs"]["top_logprobs"][2], Json({{"o", -1.5}, {"i", -2.0}}));
  EXPECT_EQ(with_bos["logprobs"]["text_offset"], Json({0, 0, 1, 2}));
  // Ids before which the service has set BOS are reported all.
  const Json added = choice({256 + 'h', 256 + 'i'});
  EXPECT_EQ(added["logprobs"]["tokens"], Json({"h", "i", "!"}));
  EXPECT_EQ(added["logprobs"]["token_logprobs"], Json({-1.0, -2.0, -0.5}));
  // Ids that are read as they are: nothing stands before the first.
  const Json given = choice({256 + 'H', 256 + 'i'});
  EXPECT_EQ(given["text"], "Hi!");
  EXPECT_EQ(given["logprobs"]["tokens"], Json({"H", "i", "!"}));
  EXPECT_EQ(given["logprobs"]["token_logprobs"], Json({nullptr, -2.0, -0.5}));
  EXPECT_EQ(given["logprobs"]["text_offset"], Json({0, 1, 2}));
}

TEST(OpenAiCompletions, StreamChunksOfText) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) {
    say(listener, 0, {text("a"), text("b")});
    say(listener, 0, {});
    listener.on_end(0, ending(EndReason::kStop));
  };
  const auto exchange = send(service, {{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  const std::vector<Json> chunks = exchange->chunks();
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0]["object"], "text_completion");
  EXPECT_EQ(chunks[0]["choices"], Json::parse(R"([{"text":"ab","index":0,"logprobs":null,"finish_reason":null}])"));
  EXPECT_EQ(chunks[0]["usage"], nullptr);
  EXPECT_EQ(chunks[1]["choices"], Json::parse(R"([{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}])"));
  EXPECT_EQ(chunks[2]["choices"], Json::array());
  EXPECT_EQ(chunks[2]["usage"]["total_tokens"], 15);
  EXPECT_EQ(exchange->events().back().data, "[DONE]");
}

TEST(OpenAiCompletions, EchoEvenWhenNothingIsWritten) {
  FakeService service;
  service.script = [](ReplyListener& listener, int) { listener.on_end(0, ending(EndReason::kLength)); };
  EXPECT_EQ(send(service, {{"echo", true}, {"max_tokens", 0}})->json()["choices"][0]["text"], "Once");
  const auto exchange = send(service, {{"echo", true}, {"max_tokens", 0}, {"stream", true}});
  EXPECT_EQ(exchange->chunks().at(0)["choices"][0]["text"], "Once");
}

TEST(OpenAiCompletions, CancelAllWhenOnePromptIsRefused) {
  for (const bool stream : {false, true}) {
    FakeService service;
    service.refusal = ApiError{429, "full", "queue_full", "", 1};
    service.refuse_from = 2;
    const auto exchange = send(service, {{"prompt", {"a", "b", "c"}}, {"stream", stream}});
    EXPECT_EQ(exchange->status(), 429);
    EXPECT_EQ(service.replies[0].handle->cancelled, 1);
    EXPECT_EQ(service.replies[1].handle->cancelled, 1);
  }
  // Where the earlier prompts have begun the stream, the error ends it.
  FakeService service;
  service.refusal = ApiError{429, "full", "queue_full", "", 1};
  service.refuse_from = 1;
  service.script = [](ReplyListener& listener, int) { say(listener, 0, {text("x")}); };
  const auto exchange = send(service, {{"prompt", {"a", "b"}}, {"stream", true}});
  EXPECT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->chunks().back()["error"]["message"], "full");
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
}

TEST(OpenAiCompletions, CancelAllWhenTheClientLeaves) {
  FakeService service;
  const auto exchange = send(service, {{"prompt", {"a", "b"}}});
  exchange->leave();
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
  EXPECT_EQ(service.replies[1].handle->cancelled, 1);
}

TEST(OpenAiCompletions, FailTogether) {
  FakeService service;
  const auto exchange = send(service, {{"prompt", {"a", "b"}}});
  service.replies[1].listener->on_end(0, failure(500, "lost"));
  EXPECT_EQ(exchange->status(), 500);
  EXPECT_EQ(service.replies[0].handle->cancelled, 1);
  service.replies[0].listener->on_end(0, ending(EndReason::kStop));
  EXPECT_TRUE(exchange->mistakes().empty());
}

}  // namespace
}  // namespace carat::server

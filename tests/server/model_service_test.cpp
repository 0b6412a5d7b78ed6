// Requests over tiny models with random weights: what a client gets must not depend on who else is being served.
#include "server/model_service.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "compute/cpu/cpu_device.h"
#include "engine/memory_plan.h"
#include "support/adapter_files.h"

namespace carat::server {
namespace {

std::filesystem::path gguf(const std::string& name) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "gguf" / (name + ".gguf");
}

/// Gemma 4 with the markers of thoughts and calls in its vocabulary.
std::filesystem::path talker() {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "talker" / "talker.q8_0.gguf";
}

class Collected final : public ReplyListener {
 public:
  explicit Collected(int replies) : left_(replies), replies_(static_cast<size_t>(replies)) {}

  struct Reply {
    std::string text, reasoning;
    std::vector<ReplyEvent> calls;
    std::vector<TokenReport> tokens;
    std::optional<ReplyEnd> end;
    int64_t prompt_tokens = 0;  // as on_prompt() has it
  };

  void on_prompt(int64_t tokens) override {
    for (Reply& reply : replies_) {
      EXPECT_EQ(reply.prompt_tokens, 0);
      EXPECT_TRUE(reply.text.empty() && reply.reasoning.empty() && reply.calls.empty() && !reply.end);
      reply.prompt_tokens = tokens;
    }
  }

  void on_reply(int index, std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override {
    const std::lock_guard lock(mutex_);
    Reply& reply = replies_.at(static_cast<size_t>(index));
    for (const ReplyEvent& event : events) {
      if (event.kind == ReplyEvent::Kind::kToolCall) {
        reply.calls.push_back(event);
        continue;
      }
      (event.kind == ReplyEvent::Kind::kReasoning ? reply.reasoning : reply.text) += event.text;
    }
    reply.tokens.insert(reply.tokens.end(), tokens.begin(), tokens.end());
  }
  void on_end(int index, const ReplyEnd& end) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(replies_.at(static_cast<size_t>(index)).end.has_value());
    replies_[static_cast<size_t>(index)].end = end;
    --left_;
    changed_.notify_all();
  }
  const std::vector<Reply>& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    return replies_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
  std::vector<Reply> replies_;
};

class ModelServiceTest : public ::testing::Test {
 protected:
  static ServingOptions options() {
    ServingOptions o;
    o.engine.threads = 2;
    o.engine.chunk = 64;
    o.memory = size_t{1} << 30;
    o.max_running = 8;
    return o;
  }
  ModelServiceTest() : service_({{"tiny", talker()}, {"other", gguf("gemma3.q8_0")}}, options(), metrics_) {}

  static ChatTask chat_task(const std::string& text, int max_tokens = 16) {
    ChatTask task;
    task.messages = Json::array({{{"role", "user"}, {"content", text}}});
    task.max_tokens = max_tokens;
    task.sampling.seed = 7;
    task.ignore_eos = true;
    return task;
  }
  std::vector<Collected::Reply> chat(const ChatTask& task) {
    const auto listener = std::make_shared<Collected>(task.n);
    service_.chat(task, listener);
    return listener->wait();
  }
  template <typename Call>
  static ApiError refused(const Call& call) {
    try {
      call();
    } catch (const ApiFailure& failure) {
      return failure.error();
    }
    ADD_FAILURE() << "was not refused";
    return {};
  }

  Metrics metrics_;
  ModelService service_;
};

TEST_F(ModelServiceTest, ARequestGetsTheSameReplyAloneAndUnderLoad) {
  std::vector<ChatTask> tasks;
  for (int i = 0; i < 12; ++i) {
    tasks.push_back(chat_task("question " + std::to_string(i), 10 + i));
    tasks.back().sampling.temperature = i % 2 == 0 ? 1.0f : 0.0f;
    tasks.back().model = i % 3 == 0 ? "other" : "tiny";
    tasks.back().logprobs = i % 4 == 0;
    tasks.back().n = 1 + i % 3;
  }
  std::vector<std::vector<Collected::Reply>> alone;
  for (const ChatTask& task : tasks) alone.push_back(chat(task));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Collected>> listeners;
    for (const ChatTask& task : tasks) {
      listeners.push_back(std::make_shared<Collected>(task.n));
      service_.chat(task, listeners.back());
      service_.chat(task, std::make_shared<Collected>(task.n))->cancel();
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto& replies = listeners[i]->wait();
      for (size_t n = 0; n < replies.size(); ++n) {
        EXPECT_EQ(replies[n].text, alone[i][n].text);
        EXPECT_EQ(replies[n].reasoning, alone[i][n].reasoning);
        ASSERT_EQ(replies[n].tokens.size(), alone[i][n].tokens.size());
        for (size_t t = 0; t < replies[n].tokens.size(); ++t) {
          EXPECT_EQ(replies[n].tokens[t].logprob, alone[i][n].tokens[t].logprob);
        }
        EXPECT_EQ(replies[n].end->usage.completion_tokens, 10 + static_cast<int>(i));
      }
    }
  }
}

TEST_F(ModelServiceTest, ChoicesDifferAndTheFirstIsThatOfARequestForOne) {
  ChatTask task = chat_task("hello", 24);
  task.sampling.temperature = 1.0f;
  const auto one = chat(task);
  task.n = 3;
  const auto three = chat(task);
  EXPECT_EQ(three[0].text + three[0].reasoning, one[0].text + one[0].reasoning);
  EXPECT_NE(three[0].text + three[0].reasoning, three[1].text + three[1].reasoning);
  EXPECT_NE(three[1].text + three[1].reasoning, three[2].text + three[2].reasoning);
}

TEST_F(ModelServiceTest, CountingIsWhatIsRead) {
  ChatTask task = chat_task("count me, with tools");
  const auto reply = chat(task)[0];
  EXPECT_EQ(service_.count_prompt(task), reply.end->usage.prompt_tokens);
  EXPECT_EQ(reply.prompt_tokens, reply.end->usage.prompt_tokens);
  task.tools = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "description": "d",
          "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}])");
  for (const char* model : {"tiny", "other"}) {
    task.model = model;
    const int64_t with_tools = service_.count_prompt(task);
    EXPECT_EQ(with_tools, chat(task)[0].end->usage.prompt_tokens);
    ChatTask without = task;
    without.tool_choice.kind = ToolChoice::Kind::kNone;
    EXPECT_LT(service_.count_prompt(without), with_tools);
  }
}

TEST_F(ModelServiceTest, ModelsAreFoundByName) {
  EXPECT_EQ(service_.models().size(), 2U);
  for (const char* name : {"", "default", "default_model", "tiny"}) EXPECT_EQ(service_.model_id(name), "tiny");
  EXPECT_EQ(service_.model_id("other"), "other");
  EXPECT_EQ(service_.model_id("tiny:x"), "tiny:x");
  const ApiError unknown = refused([&] { service_.model_id("gpt-4o"); });
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.code, "model_not_found");
  ChatTask task = chat_task("x");
  task.model = "tiny:none-such";
  EXPECT_EQ(refused([&] { service_.chat(task, std::make_shared<Collected>(1)); }).code, "adapter_not_found");
}

TEST_F(ModelServiceTest, WhatCannotBeIsRefusedAtOnce) {
  const auto refuse = [&](ChatTask task) {
    return refused([&] { service_.chat(std::move(task), std::make_shared<Collected>(1)); });
  };
  ChatTask wrong = chat_task("x");
  wrong.messages = Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "hologram"}}})}}});
  EXPECT_EQ(refuse(wrong).status, 400);
  ChatTask hot = chat_task("x");
  hot.sampling.temperature = -1.0f;
  EXPECT_EQ(refuse(hot).status, 400);
  ChatTask required = chat_task("x");
  required.tool_choice.kind = ToolChoice::Kind::kRequired;
  EXPECT_EQ(refuse(required).status, 400);
  ChatTask schema = chat_task("x");
  schema.response_format = {ResponseFormat::Kind::kJsonSchema, Json::parse(R"({"type": "nonsense"})")};
  EXPECT_EQ(refuse(schema).code, "invalid_schema");
  CompletionTask none;
  none.prompt_ids = {2, 1 << 20};
  EXPECT_EQ(refused([&] { service_.complete(none, std::make_shared<Collected>(1)); }).status, 400);
  EXPECT_EQ(refused([&] { service_.detokenize("", {-5}); }).status, 400);
  EXPECT_EQ(refused([&] { service_.load_adapter("", "a", "/nowhere"); }).status, 400);
  EXPECT_EQ(refused([&] { service_.load_adapter("", "a+b", "/nowhere"); }).param, "id");
  EXPECT_EQ(refused([&] { service_.remove_adapter("", "a"); }).status, 404);
  // And the service goes on.
  EXPECT_TRUE(chat(chat_task("still there?"))[0].end->error == std::nullopt);
}

TEST_F(ModelServiceTest, TheQueueIsFullBeyondItsLimit) {
  ServingOptions narrow = options();
  narrow.max_running = 1;
  narrow.max_waiting = 2;
  ModelService service({{"tiny", gguf("dense.q8_0")}}, narrow, metrics_);
  std::vector<std::shared_ptr<Collected>> listeners;
  std::optional<ApiError> full;
  for (int i = 0; i < 8 && !full; ++i) {
    listeners.push_back(std::make_shared<Collected>(1));
    try {
      service.chat(chat_task("x", 200), listeners.back());
    } catch (const ApiFailure& failure) {
      full = failure.error();
      listeners.pop_back();
    }
  }
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->status, 429);
  EXPECT_GE(full->retry_after, 1);
  for (const auto& listener : listeners) EXPECT_FALSE(listener->wait()[0].end->error.has_value());
}

TEST_F(ModelServiceTest, JsonIsWhatTheSchemaSays) {
  ChatTask task = chat_task("make json", 400);
  task.ignore_eos = false;
  task.response_format = {ResponseFormat::Kind::kJsonSchema,
                          Json::parse(R"({"type": "object", "properties": {"n": {"type": "integer"},
                                          "who": {"enum": ["a", "b"]}}, "required": ["n", "who"],
                                          "additionalProperties": false})")};
  task.sampling.temperature = 1.5f;
  for (const char* model : {"tiny", "other"}) {
    task.model = model;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      task.sampling.seed = seed;
      const auto reply = chat(task)[0];
      ASSERT_FALSE(reply.end->error) << reply.end->error->message;
      if (reply.end->reason == EndReason::kLength) continue;
      const Json json = Json::parse(reply.text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << reply.text;
      EXPECT_TRUE(json["n"].is_number_integer()) << reply.text;
      EXPECT_TRUE(json["who"] == "a" || json["who"] == "b") << reply.text;
    }
  }
}

TEST_F(ModelServiceTest, ForcedCallsAreCallsOfTheRightToolWithValidArguments) {
  ChatTask task = chat_task("call something", 300);
  task.ignore_eos = false;
  task.tools = Json::parse(R"([
      {"type": "function", "function": {"name": "send", "parameters": {"type": "object",
        "properties": {"to": {"enum": ["ann", "bob"]}, "urgent": {"type": "boolean"}}, "required": ["to"]}}},
      {"type": "function", "function": {"name": "send_message", "parameters": {"type": "object",
        "properties": {"count": {"type": "integer"}}, "required": ["count"]}}}])");
  task.sampling.temperature = 0.7f;
  for (const char* model : {"tiny", "other"}) {
    task.model = model;
    std::map<std::string, int> called;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      task.sampling.seed = seed;
      task.parallel_tool_calls = seed % 3 != 0;
      task.tool_choice = {ToolChoice::Kind::kRequired, ""};
      if (seed % 3 == 1) task.tool_choice = {ToolChoice::Kind::kNamed, seed % 2 == 0 ? "send" : "send_message"};
      const auto reply = chat(task)[0];
      ASSERT_FALSE(reply.end->error) << reply.end->error->message;
      if (reply.end->reason == EndReason::kLength) continue;
      EXPECT_EQ(reply.end->reason, EndReason::kToolCalls) << model << ": " << reply.text;
      ASSERT_FALSE(reply.calls.empty()) << model << ": " << reply.text;
      if (!task.parallel_tool_calls) {
        EXPECT_EQ(reply.calls.size(), 1U);
      }
      for (const ReplyEvent& call : reply.calls) {
        ++called[call.text];
        if (task.tool_choice.kind == ToolChoice::Kind::kNamed) {
          EXPECT_EQ(call.text, task.tool_choice.name);
        }
        const Json arguments = Json::parse(call.arguments);
        if (call.text == "send") {
          EXPECT_TRUE(arguments.at("to") == "ann" || arguments.at("to") == "bob") << call.arguments;
        } else {
          EXPECT_TRUE(arguments.at("count").is_number_integer()) << call.arguments;
        }
      }
    }
    EXPECT_GT(called["send"], 0) << model;
    EXPECT_GT(called["send_message"], 0) << model;
  }
}

Json two_tools(const Json& strict = nullptr) {
  Json tools = Json::parse(R"([
      {"type": "function", "function": {"name": "send", "parameters": {"type": "object",
        "properties": {"to": {"enum": ["ann", "bob"]}, "urgent": {"type": "boolean"}}, "required": ["to"]}}},
      {"type": "function", "function": {"name": "send_message", "parameters": {"type": "object",
        "properties": {"count": {"type": "integer"}}, "required": ["count"]}}}])");
  for (Json& tool : tools) tool["function"]["strict"] = strict;
  return tools;
}

TEST_F(ModelServiceTest, CallsThatNobodyForcedAreBoundByTheirSchemasToo) {
  ChatTask task = chat_task("call something, or do not", 300);
  task.ignore_eos = false;
  task.tools = two_tools();
  task.sampling.temperature = 1.0f;
  task.sampling.top_k = 0;
  task.sampling.top_p = 1.0f;
  // A random model begins calls when it is pushed to.
  task.sampling.logit_bias = {{*service_.first().tokenizer().id("<|tool_call>"), 4.0f}};
  int calls = 0;
  int talked = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    task.sampling.seed = seed;
    task.thinking = seed % 2 == 0;
    task.parallel_tool_calls = seed % 3 != 0;
    const auto reply = chat(task)[0];
    ASSERT_FALSE(reply.end->error) << reply.end->error->message;
    talked += reply.text.empty() ? 0 : 1;
    for (const ReplyEvent& call : reply.calls) {
      ++calls;
      const Json arguments = Json::parse(call.arguments);
      if (call.text == "send") {
        EXPECT_TRUE(arguments.at("to") == "ann" || arguments.at("to") == "bob") << call.arguments;
      } else {
        ASSERT_EQ(call.text, "send_message");
        EXPECT_TRUE(arguments.at("count").is_number_integer()) << call.arguments;
      }
    }
    // None that was begun came out malformed, save one that was cut.
    if (reply.end->usage.completion_tokens < *task.max_tokens) {
      EXPECT_EQ(reply.text.find("<|tool_call>"), std::string::npos) << reply.text;
    }
  }
  EXPECT_GT(calls, 20);
  EXPECT_GT(talked, 5);
}

TEST_F(ModelServiceTest, ToolsThatAreNotCalledChangeNoToken) {
  ChatTask task = chat_task("just talk", 60);
  task.sampling.temperature = 1.0f;
  task.logprobs = true;
  task.top_logprobs = 3;
  for (const char* model : {"tiny", "other"}) {
    task.model = model;
    if (model == std::string("tiny")) {
      task.sampling.logit_bias = {{*service_.first().tokenizer().id("<|tool_call>"), -100.0f}};
    }
    for (uint64_t seed = 0; seed < 5; ++seed) {
      task.sampling.seed = seed;
      task.tools = two_tools(false);  // the same prompt, and no constraint
      const auto free = chat(task)[0];
      for (const Json& strict : {Json(), Json(true)}) {
        task.tools = two_tools(strict);
        const auto bound = chat(task)[0];
        ASSERT_EQ(bound.end->usage.prompt_tokens, free.end->usage.prompt_tokens);
        EXPECT_EQ(bound.text, free.text);
        ASSERT_EQ(bound.tokens.size(), free.tokens.size());
        for (size_t t = 0; t < free.tokens.size(); ++t) {
          EXPECT_EQ(bound.tokens[t].token, free.tokens[t].token);
          EXPECT_EQ(bound.tokens[t].logprob, free.tokens[t].logprob);
        }
      }
    }
    task.sampling.logit_bias.clear();
  }
}

TEST_F(ModelServiceTest, OnlyStrictToolsMustHaveASchemaThatIsSupported) {
  for (const char* model : {"tiny", "other"}) {
    ChatTask task = chat_task("x", 4);
    task.model = model;
    for (const Json& strict : {Json(), Json(false)}) {
      task.tools = two_tools(strict);
      task.tools[0]["function"]["parameters"]["not"] = Json::object();
      EXPECT_FALSE(chat(task)[0].end->error);
    }
    task.tools[0]["function"]["strict"] = true;
    const ApiError error = refused([&] { service_.chat(task, std::make_shared<Collected>(1)); });
    EXPECT_EQ(error.code, "invalid_schema");
    EXPECT_EQ(error.param, "tools");
    EXPECT_NE(error.message.find("'send'"), std::string::npos) << error.message;
  }
}

TEST(GrammarCacheTest, KeepsWhatWasUsedLast) {
  GrammarCache cache;
  int made = 0;
  const auto get = [&](size_t key) {
    cache.get(std::to_string(key), [&]() -> std::shared_ptr<const Grammar> {
      ++made;
      return nullptr;
    });
  };
  for (size_t i = 0; i < GrammarCache::kMost; ++i) get(i);
  for (size_t i = 0; i < GrammarCache::kMost; ++i) get(i);
  EXPECT_EQ(made, static_cast<int>(GrammarCache::kMost));
  get(0);
  get(100);  // in the place of 1
  get(0);
  EXPECT_EQ(made, static_cast<int>(GrammarCache::kMost) + 1);
  get(1);
  EXPECT_EQ(made, static_cast<int>(GrammarCache::kMost) + 2);
  EXPECT_THROW(cache.get("bad", []() -> std::shared_ptr<const Grammar> { fail("no"); }), Error);
  EXPECT_THROW(cache.get("bad", []() -> std::shared_ptr<const Grammar> { fail("no"); }), Error);
}

// The schema binds the answer: at once when there is no thought, behind the thought when there is one.
TEST_F(ModelServiceTest, ThoughtsComeBeforeJsonAndAreFree) {
  ChatTask task = chat_task("think, then make json", 400);
  task.ignore_eos = false;
  task.thinking = true;
  task.thinking_budget = 12;
  task.response_format = {ResponseFormat::Kind::kJsonSchema,
                          Json::parse(R"({"type": "object", "properties": {"n": {"type": "integer"}},
                                          "required": ["n"], "additionalProperties": false})")};
  task.sampling.temperature = 1.0f;
  task.sampling.top_k = 0;
  task.sampling.top_p = 1.0f;
  int thoughts = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    task.sampling.seed = seed;
    task.sampling.logit_bias = {{*service_.first().tokenizer().id("<|channel>"), seed % 2 == 0 ? 8.0f : -100.0f}};
    const auto reply = chat(task)[0];
    ASSERT_FALSE(reply.end->error) << reply.end->error->message;
    thoughts += reply.reasoning.empty() ? 0 : 1;
    EXPECT_LE(reply.end->usage.reasoning_tokens, 14);
    if (reply.end->reason == EndReason::kLength) continue;
    EXPECT_TRUE(Json::parse(reply.text)["n"].is_number_integer()) << reply.text;
  }
  EXPECT_GT(thoughts, 5);
}

TEST_F(ModelServiceTest, EmbeddingsAreUnitVectorsThatDoNotDependOnTheirCompany) {
  const auto embed = [&](std::vector<std::vector<int>> inputs) {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<std::vector<EmbeddingResult>> results;
    service_.embed("tiny", std::move(inputs), [&](std::vector<EmbeddingResult> got, std::optional<ApiError> error) {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(error.has_value());
      results = std::move(got);
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return results.has_value(); });
    return *results;
  };
  const auto alone = embed({{2, 30, 31, 32}});
  const auto together = embed({{2, 50}, {2, 30, 31, 32}, {2, 60, 61}});
  EXPECT_EQ(alone[0].values, together[1].values);
  EXPECT_EQ(together[1].tokens, 4);
  double square = 0.0;
  for (const float value : alone[0].values) square += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(square, 1.0, 1e-5);
}

TEST_F(ModelServiceTest, DrainingRefusesNewRequestsAndEndsOldOnes) {
  const auto listener = std::make_shared<Collected>(1);
  service_.chat(chat_task("x", 100), listener);
  service_.drain();
  const ApiError closed = refused([&] { service_.chat(chat_task("y"), std::make_shared<Collected>(1)); });
  EXPECT_EQ(closed.status, 503);
  EXPECT_GE(closed.retry_after, 1);
  EXPECT_FALSE(listener->wait()[0].end->error.has_value());
}

class AdapterMemoryTest : public ModelServiceTest {
 protected:
  AdapterMemoryTest() {
    const Model model(Checkpoint::open(talker()), make_cpu_device({.threads = 1}));
    test::write_adapter(small_, model, {.rank = 2, .seed = 1});
    test::write_adapter(other_, model, {.rank = 5, .seed = 2});
  }
  size_t limit() { return service_.first().stats().kv_bytes_limit; }
  static size_t cost(const AdapterInfo& info) { return info.bytes + adapter_scratch_bytes(64, info.rank); }

  testing::TempDir small_, other_;
};

TEST_F(AdapterMemoryTest, WhatAdaptersTakeIsNotThereForKeysAndValues) {
  const size_t all = limit();
  const int64_t longest = service_.first().longest();
  const AdapterInfo a = service_.load_adapter("", "a", small_.path().string());
  EXPECT_EQ(limit(), all - cost(a));
  const AdapterInfo b = service_.load_adapter("", "b", other_.path().string());
  EXPECT_EQ(limit(), all - cost(a) - cost(b));
  EXPECT_EQ(service_.served()[1]->stats().kv_bytes_limit, all);  // the other model has its own share
  // Another under the same id, and one that was removed.
  service_.load_adapter("", "a", other_.path().string());
  EXPECT_EQ(limit(), all - 2 * cost(b));
  service_.remove_adapter("", "b");
  EXPECT_EQ(limit(), all - cost(b));
  service_.remove_adapter("", "a");
  EXPECT_EQ(limit(), all);
  EXPECT_EQ(service_.first().longest(), longest);
}

TEST_F(AdapterMemoryTest, WhatIsInUseCountsAsLongAsItIs) {
  const size_t all = limit();
  const AdapterInfo a = service_.load_adapter("", "a", small_.path().string());
  const AdapterInfo b = service_.load_adapter("", "b", other_.path().string());
  ChatTask task = chat_task("and so on", 2000);
  task.adapter = "a+b";
  std::vector<std::shared_ptr<TaskHandle>> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(service_.chat(task, std::make_shared<Collected>(1)));
  // Requests for the same sum share it.
  const size_t sum = a.bytes + b.bytes + adapter_scratch_bytes(64, a.rank + b.rank);
  EXPECT_EQ(limit(), all - cost(a) - cost(b) - sum);
  service_.remove_adapter("", "a");
  service_.remove_adapter("", "b");
  EXPECT_EQ(limit(), all - sum);
  for (const auto& handle : handles) handle->cancel();
  for (int i = 0; i < 1000 && limit() != all; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(limit(), all);
}

TEST_F(AdapterMemoryTest, OneThatDoesNotFitIsRefusedAndLeavesNothing) {
  const size_t all = limit();
  ServingOptions narrow = options();
  narrow.memory = service_.fixed_memory() + 2 * kLeastKvBytes + (size_t{40} << 20);
  ModelService service({{"tiny", talker()}, {"other", gguf("gemma3.q8_0")}}, narrow, metrics_);
  const testing::TempDir huge;
  test::write_adapter(huge, Model(Checkpoint::open(talker()), make_cpu_device({.threads = 1})),
                      {.rank = 12000, .zero_b = true, .has = [](int layer, const std::string& name) {
                         return layer == 0 && name.starts_with("mlp.");
                       }});
  const ApiError error = refused([&] { service.load_adapter("", "huge", huge.path().string()); });
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "insufficient_memory");
  EXPECT_TRUE(service.adapters("").empty());
  EXPECT_NO_THROW(service.load_adapter("", "a", small_.path().string()));
  EXPECT_NO_THROW(service_.load_adapter("", "huge", huge.path().string()));
  EXPECT_LT(limit(), all);
}

TEST(ModelServiceMemory, TooLittleMemoryIsSaid) {
  Metrics metrics;
  ServingOptions options;
  options.memory = size_t{20} << 20;
  EXPECT_THROW(ModelService({{"tiny", gguf("dense.q8_0")}}, options, metrics), Error);
}

}  // namespace
}  // namespace carat::server

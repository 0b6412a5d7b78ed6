// Continuous batching on tiny checkpoints: what a generation says must not depend on what runs beside it.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>

#include "checkpoint/checkpoint.h"
#include "compute/cpu/cpu_device.h"
#include "engine/engine_thread.h"
#include "model/kv_choice.h"

namespace carat {
namespace {

struct Recorded : GenerationListener {
  std::vector<int> tokens;
  std::vector<float> logprobs;
  std::optional<GenerationEnd> end;
  size_t stop_after = SIZE_MAX;
  std::map<size_t, int> forced;  // after that many tokens

  Verdict on_token(const GeneratedToken& token) override {
    tokens.push_back(token.token);
    logprobs.push_back(token.logprob);
    Verdict verdict;
    verdict.stop = tokens.size() >= stop_after;
    if (const auto next = forced.find(tokens.size()); next != forced.end()) verdict.next = next->second;
    return verdict;
  }
  void on_end(GenerationEnd given) override {
    EXPECT_FALSE(end.has_value());
    end = std::move(given);
  }
};

/// "dense.q8_0+recent": of that model, with codes and latest positions beside them.
std::string file_of(const std::string& name) {
  return name.substr(0, name.find('+')) + ".gguf";
}
EngineOptions engine_options(const std::string& name) {
  EngineOptions options;
  if (name.find('+') == std::string::npos) return options;
  options.kv = parse_kv_choice("turbo:k8v3");
  options.kv_recent = 20;
  return options;
}

struct Bench {
  explicit Bench(const std::string& name, SchedulerOptions options = {}, int64_t max_rows = 64)
      : checkpoint(Checkpoint::open(std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "gguf" / file_of(name))),
        device(make_cpu_device({.threads = 2})),
        model(checkpoint, device, max_rows),
        cache(*device, model.cache_spec(kv_choice_for(engine_options(name), *checkpoint))) {
    options.threads = 2;
    scheduler = std::make_unique<Scheduler>(model, cache, std::vector<int>{}, options);
  }

  std::shared_ptr<Recorded> submit(GenerationRequest request) {
    auto listener = std::make_shared<Recorded>();
    scheduler->submit(++last, std::move(request), listener);
    return listener;
  }
  void run() {
    while (scheduler->step()) {
    }
  }

  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<Device> device;
  Model model;
  KvCache cache;
  std::unique_ptr<Scheduler> scheduler;
  uint64_t last = 0;
};

std::vector<int> random_prompt(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> ids{2};
  while (ids.size() < count) ids.push_back(static_cast<int>(3 + random() % 500));
  return ids;
}

/// A request of its own kind for each number.
GenerationRequest request_of(unsigned number) {
  std::mt19937 random(number * 77 + 1);
  GenerationRequest request;
  request.prompt = random_prompt(1 + random() % 320, number % 5);  // some begin alike
  request.max_tokens = static_cast<int>(1 + random() % 24);
  request.sampling.logprobs = true;
  if (number % 3 == 1) request.sampling.temperature = 1.0f;
  if (number % 3 == 2) {
    request.sampling.temperature = 0.8f;
    request.sampling.top_k = 20;
    request.sampling.repetition_penalty = 1.3f;
  }
  request.sampling.seed = number;
  request.priority = static_cast<int>(number % 2);
  return request;
}

class SchedulerTest : public testing::TestWithParam<const char*> {};

TEST_P(SchedulerTest, EveryGenerationIsTheSameAloneAndInACrowd) {
  constexpr unsigned kRequests = 24;
  std::vector<std::shared_ptr<Recorded>> alone;
  for (unsigned i = 0; i < kRequests; ++i) {
    Bench bench(GetParam());
    alone.push_back(bench.submit(request_of(i)));
    bench.run();
  }
  struct Setting {
    int max_running;
    int mixed_rows;
    size_t prefix_bytes;
  };
  for (const Setting& s : {Setting{64, 128, size_t{64} << 20}, {3, 40, 0}, {8, 64, size_t{1} << 20}}) {
    Bench bench(GetParam(),
                {.prefix_cache_bytes = s.prefix_bytes, .max_running = s.max_running, .mixed_rows = s.mixed_rows});
    std::vector<std::shared_ptr<Recorded>> together;
    std::mt19937 random(5);
    for (unsigned i = 0; i < kRequests; ++i) {
      together.push_back(bench.submit(request_of(i)));
      for (unsigned steps = random() % 3; steps > 0; --steps) bench.scheduler->step();
    }
    bench.run();
    for (unsigned i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(together[i]->end.has_value());
      EXPECT_EQ(together[i]->tokens, alone[i]->tokens) << i;
      EXPECT_EQ(together[i]->logprobs, alone[i]->logprobs) << i;
      EXPECT_EQ(together[i]->end->error, "");
      EXPECT_EQ(together[i]->end->generated_tokens, static_cast<int64_t>(together[i]->tokens.size()));
    }
    EXPECT_EQ(bench.scheduler->stats().running, 0);
    EXPECT_EQ(bench.scheduler->stats().waiting, 0);
  }
}

// With memory for two or three of them at once generations push each other out, and still say the same.
TEST_P(SchedulerTest, GenerationsThatGiveUpTheirMemoryAreComputedAnewWithTheSameBits) {
  constexpr unsigned kRequests = 12;
  Bench measure(GetParam());
  const size_t one = measure.cache.bytes_for(330);
  size_t blocks = 0;
  for (int i = 0; i < measure.cache.layer_count(); ++i) blocks += measure.cache.block_bytes(i);
  Bench roomy(GetParam());
  Bench tight(GetParam(), {.kv_bytes = one * 3 / 2 + 5 * blocks, .prefix_cache_bytes = one});
  const auto demand = [](unsigned i) {
    GenerationRequest request = request_of(i);
    request.prompt = random_prompt(160, i);
    request.max_tokens = 150;
    return request;
  };
  std::vector<std::shared_ptr<Recorded>> expected, got;
  for (unsigned i = 0; i < kRequests; ++i) {
    expected.push_back(roomy.submit(demand(i)));
    got.push_back(tight.submit(demand(i)));
  }
  roomy.run();
  size_t most = 0;
  while (tight.scheduler->step()) {
    most = std::max(most, tight.cache.bytes());
    ASSERT_LE(tight.cache.bytes(), one * 3 / 2 + 5 * blocks);
  }
  EXPECT_GT(tight.scheduler->stats().preempted, 0U);
  EXPECT_GT(most, one / 2);
  for (unsigned i = 0; i < kRequests; ++i) {
    EXPECT_EQ(got[i]->tokens, expected[i]->tokens) << i;
    EXPECT_EQ(got[i]->logprobs, expected[i]->logprobs) << i;
    EXPECT_EQ(got[i]->end->finish, expected[i]->end->finish) << i;
  }
}

TEST_P(SchedulerTest, AGenerationThatOutgrowsTheMemoryAloneEndsAsFull) {
  Bench measure(GetParam());
  size_t blocks = 0;
  for (int i = 0; i < measure.cache.layer_count(); ++i) blocks += measure.cache.block_bytes(i);
  Bench bench(GetParam(), {.kv_bytes = measure.cache.bytes_for(256) + 4 * blocks, .prefix_cache_bytes = 0});
  GenerationRequest request;
  request.prompt = random_prompt(100, 1);
  request.max_tokens = 100000;
  const auto full = bench.submit(request);
  bench.run();
  EXPECT_EQ(full->end->finish, FinishReason::kContext);
  EXPECT_EQ(full->end->error, "");
  EXPECT_GE(static_cast<int64_t>(full->tokens.size()) + 100, 256);
  request.prompt = random_prompt(static_cast<size_t>(bench.scheduler->longest()) + 1, 1);
  EXPECT_THROW(bench.submit(request), Error);
}

// What adapters take goes off what keys and values may have: at once, and until it is given back.
TEST_P(SchedulerTest, FollowsTheMemoryThatIsLeft) {
  constexpr size_t kBytes = size_t{64} << 20;
  size_t reserved = 0;
  Bench bench(GetParam(), {.kv_bytes = kBytes, .reserved = [&] { return reserved; }});
  const int64_t longest = bench.scheduler->longest();
  const auto submit_all = [&] {
    std::vector<std::shared_ptr<Recorded>> all;
    for (unsigned i = 0; i < 8; ++i) all.push_back(bench.submit(request_of(i)));
    return all;
  };
  const auto before = submit_all();
  for (int i = 0; i < 4; ++i) bench.scheduler->step();
  const size_t in_use = bench.cache.bytes_in_use();
  ASSERT_GT(in_use, size_t{0});
  // In the middle of it most of the memory goes. All end with the same bits, some having been computed anew.
  const size_t block = bench.cache.bytes_for(1);
  reserved = kBytes - bench.cache.bytes_for(350) - 4 * block;
  EXPECT_EQ(bench.scheduler->kv_bytes(), kBytes - reserved);
  EXPECT_EQ(bench.scheduler->stats().kv_bytes_limit, kBytes - reserved);
  EXPECT_LT(bench.scheduler->longest(), longest);
  EXPECT_GE(bench.scheduler->longest(), 350);
  while (bench.scheduler->step()) EXPECT_LE(bench.cache.bytes_in_use(), kBytes - reserved);
  for (unsigned i = 0; i < 8; ++i) {
    Bench alone(GetParam());
    const auto expected = alone.submit(request_of(i));
    alone.run();
    EXPECT_EQ(before[i]->tokens, expected->tokens) << i;
    EXPECT_EQ(before[i]->end->error, "");
  }
  // Idle, but with prompts that are kept: those and what lies free go back.
  reserved = kBytes - 5 * block;
  EXPECT_FALSE(bench.scheduler->step());
  EXPECT_LE(bench.cache.bytes(), kBytes - reserved);
  GenerationRequest large = request_of(0);
  large.prompt = random_prompt(200, 1);
  EXPECT_THROW(bench.scheduler->check(large), Error);
  reserved = 0;
  EXPECT_EQ(bench.scheduler->longest(), longest);
  EXPECT_NO_THROW(bench.scheduler->check(large));
  // What fitted when it came and does no longer ends with an error.
  const auto late = bench.submit(large);
  reserved = kBytes - 5 * block;
  bench.run();
  ASSERT_TRUE(late->end.has_value());
  EXPECT_NE(late->end->error.find("now holds"), std::string::npos) << late->end->error;
  reserved = kBytes + 1;
  EXPECT_EQ(bench.scheduler->kv_bytes(), size_t{0});
  EXPECT_EQ(bench.scheduler->longest(), 0);
}

TEST_P(SchedulerTest, CancelledGenerationsFreeTheirPlaceAtOnceAndDisturbNobody) {
  Bench bench(GetParam(), {.max_running = 2});
  GenerationRequest request;
  request.prompt = random_prompt(40, 3);
  request.max_tokens = 60;
  const auto first = bench.submit(request);
  const auto second = bench.submit(request);
  request.prompt = random_prompt(50, 4);
  const auto third = bench.submit(request);
  const auto fourth = bench.submit(request);
  for (int i = 0; i < 5; ++i) bench.scheduler->step();
  EXPECT_TRUE(third->tokens.empty());
  const size_t said = first->tokens.size();
  bench.scheduler->cancel(1);
  bench.scheduler->cancel(4);
  bench.scheduler->cancel(99);
  bench.scheduler->step();
  EXPECT_EQ(bench.scheduler->stats().running, 2);
  bench.run();
  EXPECT_EQ(first->tokens.size(), said);
  EXPECT_FALSE(first->end.has_value());
  EXPECT_FALSE(fourth->end.has_value());
  EXPECT_EQ(second->tokens.size(), 60U);
  EXPECT_EQ(third->tokens.size(), 60U);
}

TEST_P(SchedulerTest, ShortPromptsPassLongOnesAndLongOnesStillGetOn) {
  Bench bench(GetParam(), {.mixed_rows = 64}, 64);
  GenerationRequest request;
  request.prompt = random_prompt(3000, 1);
  request.max_tokens = 1;
  const auto longer = bench.submit(request);
  bench.scheduler->step();
  std::vector<std::shared_ptr<Recorded>> shorts;
  for (unsigned i = 0; i < 10; ++i) {
    request.prompt = random_prompt(20, 10 + i);
    request.max_tokens = 4;
    shorts.push_back(bench.submit(request));
    bench.scheduler->step();
    EXPECT_EQ(shorts.back()->tokens.size(), 1U) << "a short prompt is read in one step";
    EXPECT_TRUE(longer->tokens.empty());
  }
  // A stream of short ones that never ends takes half of the room.
  int steps = 0;
  for (unsigned i = 0; !longer->end; ++i, ++steps) {
    request.prompt = random_prompt(200, 100 + i);
    request.max_tokens = 1;
    bench.submit(request);
    bench.scheduler->step();
    ASSERT_LT(steps, 200);
  }
}

TEST_P(SchedulerTest, StopTokensVerdictsAndForcedTokens) {
  Bench bench(GetParam());
  GenerationRequest request;
  request.prompt = random_prompt(30, 8);
  request.max_tokens = 20;
  const auto plain = bench.submit(request);
  bench.run();
  ASSERT_EQ(plain->tokens.size(), 20U);
  EXPECT_EQ(plain->end->finish, FinishReason::kMaxTokens);

  request.stop_tokens = {plain->tokens[6]};
  const auto stopped = bench.submit(request);
  bench.run();
  EXPECT_EQ(stopped->end->finish, FinishReason::kStopToken);
  EXPECT_EQ(stopped->tokens.back(), plain->tokens[6]);
  EXPECT_LE(stopped->tokens.size(), 7U);

  request.stop_tokens.clear();
  auto listener = std::make_shared<Recorded>();
  listener->stop_after = 5;
  bench.scheduler->submit(++bench.last, request, listener);
  bench.run();
  EXPECT_EQ(listener->tokens.size(), 5U);
  EXPECT_EQ(listener->end->finish, FinishReason::kStopText);

  // Forced tokens are as if the model had said them: what follows is what follows that prompt.
  listener = std::make_shared<Recorded>();
  listener->forced[3] = 77;
  bench.scheduler->submit(++bench.last, request, listener);
  bench.run();
  EXPECT_EQ(listener->tokens[3], 77);
  GenerationRequest longer = request;
  longer.prompt.insert(longer.prompt.end(), listener->tokens.begin(), listener->tokens.begin() + 4);
  longer.max_tokens = 16;
  const auto after = bench.submit(longer);
  bench.run();
  EXPECT_EQ(after->tokens, std::vector<int>(listener->tokens.begin() + 4, listener->tokens.end()));
}

TEST_P(SchedulerTest, PromptLogprobsAreThoseOfGeneratedTokens) {
  Bench bench(GetParam());
  GenerationRequest request;
  request.prompt = random_prompt(90, 9);
  request.max_tokens = 12;
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 3;
  const auto said = bench.submit(request);
  bench.run();
  GenerationRequest whole = request;
  whole.prompt.insert(whole.prompt.end(), said->tokens.begin(), said->tokens.end());
  whole.max_tokens = 0;
  whole.prompt_logprobs = true;
  const auto scored = bench.submit(whole);
  bench.run();
  ASSERT_EQ(scored->end->prompt_logprobs.size(), whole.prompt.size() - 1);
  for (size_t i = 0; i < said->tokens.size(); ++i) {
    const PromptLogprob& report = scored->end->prompt_logprobs[request.prompt.size() - 1 + i];
    EXPECT_EQ(report.logprob, said->logprobs[i]);
    ASSERT_EQ(report.top.size(), 3U);
    EXPECT_EQ(report.top[0].token, said->tokens[i]);  // greedy
  }
}

TEST_P(SchedulerTest, EmbeddingsDoNotDependOnWhatRunsBeside) {
  GenerationRequest request;
  request.prompt = random_prompt(150, 11);
  request.embedding = true;
  Bench alone(GetParam());
  const auto expected = alone.submit(request);
  alone.run();
  Bench bench(GetParam(), {}, 32);
  bench.submit(request_of(1));
  bench.scheduler->step();
  const auto got = bench.submit(request);
  bench.submit(request_of(2));
  bench.run();
  ASSERT_EQ(static_cast<int>(got->end->embedding.size()), bench.model.config().hidden);
  EXPECT_EQ(got->end->embedding, expected->end->embedding);
  EXPECT_TRUE(got->tokens.empty());
}

TEST_P(SchedulerTest, TheNextTurnOfAConversationReusesTheLast) {
  Bench bench(GetParam());
  GenerationRequest request;
  request.prompt = random_prompt(200, 12);
  request.max_tokens = 30;
  const auto first = bench.submit(request);
  bench.run();
  request.prompt.insert(request.prompt.end(), first->tokens.begin(), first->tokens.end());
  const size_t known = request.prompt.size();
  request.prompt.insert(request.prompt.end(), std::initializer_list<int>{9, 10, 11});
  const auto second = bench.submit(request);
  bench.run();
  EXPECT_GE(second->end->reused_tokens, static_cast<int64_t>(known - 2 * kKvBlock));
  Bench cold(GetParam());
  const auto expected = cold.submit(request);
  cold.run();
  EXPECT_EQ(second->tokens, expected->tokens);
}

TEST_P(SchedulerTest, PromptsThatBeginAlikeAreReadOnce) {
  Bench bench(GetParam());
  const std::vector<int> common = random_prompt(1000, 13);
  std::vector<GenerationRequest> requests;
  for (unsigned i = 0; i < 6; ++i) {
    GenerationRequest request;
    request.prompt.assign(common.begin(), common.begin() + (i < 4 ? 1000 : 700));
    request.prompt.insert(request.prompt.end(), {static_cast<int>(20 + i), 7});
    request.max_tokens = 4;
    requests.push_back(request);
  }
  std::vector<std::shared_ptr<Recorded>> got;
  for (const GenerationRequest& request : requests) got.push_back(bench.submit(request));
  bench.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_GE(got[i]->end->reused_tokens, i == 0 ? 0 : (i < 4 ? 1000 : 700) - 3 * kKvBlock) << i;
    Bench cold(GetParam());
    const auto expected = cold.submit(requests[i]);
    cold.run();
    EXPECT_EQ(got[i]->tokens, expected->tokens) << i;
  }
}

TEST_P(SchedulerTest, TheQueueHasAnEnd) {
  Bench bench(GetParam(), {.max_running = 2, .max_waiting = 3});
  GenerationRequest request;
  request.prompt = {2, 5, 6};
  for (int i = 0; i < 5; ++i) bench.submit(request);
  EXPECT_THROW(bench.submit(request), QueueFull);
  bench.run();
  EXPECT_NO_THROW(bench.submit(request));
  bench.scheduler->abandon("closing");
  EXPECT_EQ(bench.scheduler->stats().waiting, 0);
}

TEST_P(SchedulerTest, RequestsThatAreWrongAreRefused) {
  Bench bench(GetParam());
  const auto refused = [&](auto change) {
    GenerationRequest request;
    request.prompt = {2, 5};
    change(request);
    EXPECT_THROW(bench.submit(std::move(request)), Error);
  };
  refused([](GenerationRequest& r) { r.prompt.clear(); });
  refused([](GenerationRequest& r) { r.prompt = {2, -1}; });
  refused([&](GenerationRequest& r) { r.prompt = {2, bench.model.config().vocab}; });
  refused([](GenerationRequest& r) { r.max_tokens = -1; });
  refused([](GenerationRequest& r) { r.sampling.temperature = -1.0f; });
  refused(
      [&](GenerationRequest& r) { r.prompt.resize(static_cast<size_t>(bench.model.config().max_positions) + 1, 5); });
  EXPECT_FALSE(bench.scheduler->step());
}

INSTANTIATE_TEST_SUITE_P(Models, SchedulerTest,
                         testing::Values("dense.q8_0", "pli.q8_0", "gemma3.q8_0", "moe.q8_0", "dense.q8_0+recent",
                                         "pli.q8_0+recent"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           const bool plain = name.find('+') == std::string::npos;
                           return name.substr(0, name.find('.')) + (plain ? "" : "_recent");
                         });

struct Waiting : Recorded {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  void on_end(GenerationEnd given) override {
    const std::lock_guard lock(mutex);
    Recorded::on_end(std::move(given));
    done = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done; });
  }
};

TEST(EngineThreadTest, ManyThreadsSubmitAndCancel) {
  Bench bench("pli.q8_0");
  std::vector<std::vector<int>> expected;
  for (unsigned i = 0; i < 8; ++i) {
    const auto alone = bench.submit(request_of(i));
    bench.run();
    expected.push_back(alone->tokens);
  }
  EngineThread engine(std::move(bench.scheduler), std::make_shared<FairMutex>());
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int round = 0; round < 6; ++round) {
        auto kept = std::make_shared<Waiting>();
        auto dropped = std::make_shared<Waiting>();
        engine.submit(request_of(c), kept);
        engine.cancel(engine.submit(request_of(c + 1), dropped));
        kept->wait();
        EXPECT_EQ(kept->tokens, expected[c]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GE(engine.stats().prefixes.hits, 1U);
}

TEST(EngineThreadTest, ClosingEndsWhatIsNotDoneWithAnError) {
  Bench bench("dense.q8_0");
  auto running = std::make_shared<Waiting>();
  {
    EngineThread engine(std::move(bench.scheduler), std::make_shared<FairMutex>());
    GenerationRequest request;
    request.prompt = {2, 5, 6};
    request.max_tokens = 100000;
    engine.submit(request, running);
  }
  ASSERT_TRUE(running->end.has_value());
  EXPECT_NE(running->end->error, "");
}

}  // namespace
}  // namespace carat

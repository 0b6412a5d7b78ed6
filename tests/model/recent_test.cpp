// The latest positions of coded layers as floats: law 2, and what it amounts to where everything, or nothing, is
// recent.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "support/golden.h"
#include "support/run_model.h"

namespace carat {
namespace {

struct Case {
  const char* model;
  const char* kv;
  int recent;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.kv << ", recent " << c.recent;
}

KvChoice choice_of(const char* kv, int recent) {
  KvChoice choice = parse_kv_choice(kv);
  choice.keep_recent(recent);
  return choice;
}

std::vector<int> random_tokens(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens{2};
  while (tokens.size() < count) tokens.push_back(static_cast<int>(random() % 500));
  return tokens;
}

std::unique_ptr<Model> open(const char* model, const test::RunOptions& options) {
  return test::open_model(test::data_directory() / "goldens" / "models" / model, options);
}

class RecentPositions : public testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Model> open_fast(int threads = 1, int64_t max_rows = 700,
                                          std::optional<Isa> isa = std::nullopt) {
    return open(GetParam().model,
                {.precision = Precision::kFast, .threads = threads, .isa = isa, .max_rows = max_rows});
  }
  /// Logits of all positions.
  static std::vector<float> logits(Model& model, const std::vector<int64_t>& chunks) {
    return test::logits_of(model, kTokens, chunks, choice_of(GetParam().kv, GetParam().recent));
  }

  // Floats begin at 0, 256 and 512 as the prompt is read.
  inline static const std::vector<int> kTokens = random_tokens(620, 1);
};

TEST_P(RecentPositions, WhateverTheChunksAndTheRings) {
  const auto model = open_fast();
  const std::vector<float> whole = logits(*model, {700});
  for (const int64_t chunk : {1, 7, 64, 100, 256}) EXPECT_EQ(logits(*model, {chunk}), whole) << chunk;
  EXPECT_EQ(logits(*model, {250, 1, 1, 40, 1, 217, 2, 64}), whole);
  for (const int64_t rows : {1, 5, 33}) EXPECT_EQ(logits(*open_fast(1, rows), {700}), whole) << rows << " rows";
}

TEST_P(RecentPositions, WhateverTheThreads) {
  const std::vector<float> one = logits(*open_fast(1), {500, 1});
  for (const int threads : {2, 4}) EXPECT_EQ(logits(*open_fast(threads), {500, 1}), one) << threads;
}

TEST_P(RecentPositions, WhateverTheInstructionSet) {
  const std::vector<float> portable = logits(*open_fast(1, 700, Isa::kPortable), {600, 1});
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(logits(*open_fast(1, 700, isa), {600, 1}), portable) << isa_name(isa);
  }
}

// Sequences that have forked, and been cut back, go on beside each other in one batch.
TEST_P(RecentPositions, WhateverBecameOfTheSequence) {
  const auto model = open_fast(2);
  KvCache cache(model->device(), model->cache_spec(choice_of(GetParam().kv, GetParam().recent)));
  ForwardResult result;
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const std::vector<float> whole = logits(*model, {700});
  const int a = cache.add_sequence();
  const auto read = [&](int sequence, size_t begin, size_t end) {
    Batch batch;
    batch.add(sequence, std::span(kTokens).subspan(begin, end - begin), true);
    model->forward(batch, cache, result);
  };
  read(a, 0, 300);
  const int b = cache.fork(a);
  read(b, 300, 560);
  const std::vector<int> other = random_tokens(200, 2);
  Batch wrong;
  wrong.add(a, other, true);
  model->forward(wrong, cache, result);
  ASSERT_TRUE(cache.can_trim(a, 300));
  cache.trim(a, 300);
  for (size_t i = 0; i < 60; ++i) {  // a: 300 …, b: 560 …
    Batch batch;
    batch.rows.push_back({.sequence = b, .token = kTokens[560 + i], .wants_logits = true});
    batch.rows.push_back({.sequence = a, .token = kTokens[300 + i], .wants_logits = true});
    model->forward(batch, cache, result);
    ASSERT_TRUE(std::equal(result.logits.begin(), result.logits.begin() + static_cast<std::ptrdiff_t>(vocab),
                           whole.begin() + static_cast<std::ptrdiff_t>((560 + i) * vocab)))
        << i;
    ASSERT_TRUE(std::equal(result.logits.begin() + static_cast<std::ptrdiff_t>(vocab), result.logits.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>((300 + i) * vocab)))
        << i;
  }
}

// A span that sees itself whole, across the position at which floats begin anew.
TEST_P(RecentPositions, WhateverTheChunksAroundASpan) {
  const auto model = open_fast(2);
  const int64_t begin = 256 + GetParam().recent - 20;
  const auto run = [&](const std::vector<int64_t>& ends) {
    KvCache cache(model->device(), model->cache_spec(choice_of(GetParam().kv, GetParam().recent)));
    const int sequence = cache.add_sequence();
    ForwardResult result;
    std::vector<float> all;
    for (const int64_t end : ends) {
      Batch batch;
      for (int64_t p = cache.length(sequence); p < end; ++p) {
        const bool inside = p >= begin && p < begin + 40;
        batch.rows.push_back({.sequence = sequence,
                              .token = kTokens[static_cast<size_t>(p)],
                              .wants_logits = true,
                              .span_begin = inside ? begin : 0,
                              .span_end = inside ? begin + 40 : 0});
      }
      model->forward(batch, cache, result);
      all.insert(all.end(), result.logits.begin(), result.logits.end());
    }
    return all;
  };
  const std::vector<float> whole = run({620});
  EXPECT_EQ(run({begin, begin + 40, 620}), whole);
  EXPECT_EQ(run({10, begin - 3, begin + 41, begin + 42, 620}), whole);
  EXPECT_NE(logits(*model, {700}), whole);
}

TEST_P(RecentPositions, AreThoseOfTheReference) {
  const test::RunOptions exact{.precision = Precision::kExact, .max_rows = 700};
  test::RunOptions reference = exact;
  reference.reference = true;
  const std::span<const int> tokens = std::span(kTokens).first(330);
  const KvChoice kv = choice_of(GetParam().kv, GetParam().recent);
  const auto model = open(GetParam().model, exact);
  const std::vector<float> expected = test::logits_of(*open(GetParam().model, reference), tokens, {100}, kv);
  const int vocab = model->config().vocab;
  const double kl = test::compare(expected, test::logits_of(*model, tokens, {700}, kv), vocab).mean_kl;
  // A number that lies on the border of two codes falls on either side: that is all that differs.
  const double codes =
      test::compare(expected, test::logits_of(*model, tokens, {700}, parse_kv_choice(GetParam().kv)), vocab).mean_kl;
  EXPECT_LT(kl, 0.3 * codes) << kl << " " << codes;
}

INSTANTIATE_TEST_SUITE_P(Models, RecentPositions,
                         testing::Values(Case{"dense31/q4g64", "q4", 100}, Case{"e2b/q4g64", "turbo:k8v3", 1},
                                         Case{"e2b/q4g64", "q8", 256}, Case{"dense31/q4g64", "turbo:k4v2", 30}),
                         [](const auto& info) {
                           std::string name = info.param.model + std::string("_") + info.param.kv;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name + "_" + std::to_string(info.param.recent);
                         });

// Full layers of f16 beside whatever the sliding layers store.
TEST(AllRecent, IsF16ToTheBit) {
  const std::vector<int> tokens = random_tokens(600, 3);
  for (const char* kv : {"q4", "q8", "mlx4", "turbo:k4v2"}) {
    for (const char* name : {"dense31/q4g64", "e2b/q4g64"}) {
      const auto model = open(name, {.precision = Precision::kFast});
      KvChoice f16 = parse_kv_choice(kv);
      f16.full = KvFormat::kF16;
      const std::vector<float> expected = test::logits_of(*model, tokens, {200}, f16);
      for (const int recent : {600, 100000, kMostRecentKv}) {
        EXPECT_EQ(test::logits_of(*model, tokens, {200}, choice_of(kv, recent)), expected) << name << " " << kv;
      }
      EXPECT_NE(test::logits_of(*model, tokens, {200}, choice_of(kv, 300)), expected) << name << " " << kv;
    }
  }
}

// Until more than `recent` + 255 positions have passed nothing is read as codes; then more and more.
TEST(AllRecent, EndsAtTheNextStep) {
  const std::vector<int> tokens = random_tokens(400, 4);
  const auto model = open("dense31/q4g64", {.precision = Precision::kFast});
  const auto vocab = static_cast<size_t>(model->config().vocab);
  KvChoice f16 = parse_kv_choice("turbo:k4v2");
  f16.full = KvFormat::kF16;
  const std::vector<float> floats = test::logits_of(*model, tokens, {200}, f16);
  const std::vector<float> recent = test::logits_of(*model, tokens, {200}, choice_of("turbo:k4v2", 50));
  const auto same_until =
      static_cast<size_t>(std::mismatch(floats.begin(), floats.end(), recent.begin()).first - floats.begin());
  EXPECT_EQ(same_until / vocab, 256U + 50 - 1);
}

TEST(AllRecent, SlidingLayersAndFloatsHeedNothing) {
  const auto model = open("e2b/q4g64", {});
  KvChoice sliding = KvFormats(KvFormat::kF16);
  sliding.sliding = KvFormat::spread(8);
  for (KvChoice choice : {KvChoice(KvFormat::kF16), KvChoice(KvFormat::kF32), sliding}) {
    const size_t layers = model->cache_spec(choice).layers.size();
    choice.keep_recent(100);
    choice.sliding.recent = 100;
    EXPECT_EQ(model->cache_spec(choice).layers.size(), layers);
  }
  KvChoice wrong = KvFormat::spread(8);
  for (const int recent : {-1, kMostRecentKv + 1}) {
    wrong.keep_recent(recent);
    EXPECT_THROW(model->cache_spec(wrong), Error);
  }
}

}  // namespace
}  // namespace carat

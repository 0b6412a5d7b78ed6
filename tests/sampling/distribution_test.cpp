// Every filter against its definition on random logits.
#include "sampling/distribution.h"

#include <gtest/gtest.h>

#include <random>

#include "sampling/oracle.h"

namespace carat {
namespace {

/// Logits of various characters: smooth, peaked, with many ties, with impossible tokens.
std::vector<float> random_logits(std::mt19937_64& random, size_t vocab) {
  std::vector<float> logits(vocab);
  const int kind = static_cast<int>(random() % 4);
  std::normal_distribution<float> normal(0.0f, kind == 1 ? 8.0f : 1.5f);
  for (float& logit : logits) {
    logit = normal(random);
    if (kind == 2) logit = std::round(logit * 2.0f) / 2.0f;
    if (kind == 3 && random() % 3 == 0) logit = test::kNever;
  }
  logits[random() % vocab] = 2.0f;
  return logits;
}

float greatest(const std::vector<float>& logits) {
  return *std::max_element(logits.begin(), logits.end());
}

/// The tokens that are left: at a huge temperature all weigh the same, and evenly spread draws meet every one.
std::set<int> left(Distribution& distribution, size_t vocab) {
  std::set<int> ids;
  const size_t steps = 2 * vocab;
  for (size_t i = 0; i < steps; ++i) {
    ids.insert(distribution.draw(1e12f, (static_cast<double>(i) + 0.5) / static_cast<double>(steps)));
  }
  return ids;
}

SamplingParams random_filters(std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  SamplingParams params;
  if (random() % 2) params.top_p = uniform(random);
  if (random() % 4 == 0) params.top_p = 1.0f - 0.01f * uniform(random);
  if (random() % 2) params.min_p = random() % 8 == 0 ? 1.0f : 0.3f * uniform(random);
  if (random() % 2) params.top_k = 1 + static_cast<int>(random() % 40);
  params.xtc_threshold = 0.3f * uniform(random);
  return params;
}

TEST(Distribution, FiltersKeepWhatTheirDefinitionsKeep) {
  std::mt19937_64 random(11);
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t vocab = 2 + random() % 150;
    const std::vector<float> logits = random_logits(random, vocab);
    const SamplingParams params = random_filters(random);
    const bool strikes = random() % 2;
    const std::vector<int> safe = {static_cast<int>(random() % vocab), static_cast<int>(random() % vocab)};
    const test::Survivors expected = test::filtered(logits, params, strikes, safe);
    if (expected.margin < 2e-6) continue;
    ++compared;
    Distribution distribution;
    distribution.start(logits, random() % 2);
    const bool k_first = !strikes && params.top_k > 0 && random() % 2;
    if (k_first) distribution.keep_top_k(params.top_k);
    if (params.top_p < 1.0f) distribution.keep_top_p(params.top_p);
    if (params.min_p > 0.0f) distribution.keep_min_p(params.min_p);
    if (strikes) distribution.drop_top_choices(params.xtc_threshold, safe);
    if (params.top_k > 0 && !k_first) distribution.keep_top_k(params.top_k);
    ASSERT_EQ(left(distribution, vocab), std::set<int>(expected.ids.begin(), expected.ids.end()))
        << "round " << round << " top_p " << params.top_p << " min_p " << params.min_p << " top_k " << params.top_k
        << " xtc " << strikes << " " << params.xtc_threshold;
  }
  EXPECT_GT(compared, 2500);
}

/// Large enough for several blocks, partitions and for top-k beyond what the heap takes.
TEST(Distribution, FiltersOverALargeVocabulary) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 12; ++round) {
    const size_t vocab = 1500 + random() % 1200;
    const std::vector<float> logits = random_logits(random, vocab);
    const bool by_k = round % 2 == 0;
    const int k = round % 4 == 0 ? 40 : 1100;
    const float p = round % 4 == 1 ? 0.9f : 0.999f;
    const test::Survivors expected = by_k ? test::top_k(test::everything(logits), k) : test::top_p(logits, p);
    if (expected.margin < 1e-7) continue;
    Distribution distribution;
    distribution.start(logits);
    if (by_k) {
      distribution.keep_top_k(k);
    } else {
      distribution.keep_top_p(p);
    }
    ASSERT_EQ(left(distribution, vocab), std::set<int>(expected.ids.begin(), expected.ids.end()));
  }
}

/// Knowing the total roughly is a short cut and nothing else: the same tokens, without any margin.
TEST(Distribution, ARoughTotalCutsWhereTheExactOneDoes) {
  std::mt19937_64 random(15);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  Distribution rough, exact;
  for (int round = 0; round < 1500; ++round) {
    const size_t vocab = 600 + random() % 5000;
    std::normal_distribution<float> normal(static_cast<float>(round % 5) * 20.0f - 40.0f,
                                           0.1f + static_cast<float>(round % 7));
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = round % 3 == 0 ? std::round(normal(random)) : normal(random);
    const int k = 1 + static_cast<int>(random() % 200);
    const float p = uniform(random);
    rough.start(logits, true);
    exact.start(logits, false);
    for (Distribution* distribution : {&rough, &exact}) {
      distribution->keep_top_k(k);
      distribution->keep_top_p(p);
    }
    ASSERT_EQ(left(rough, 200), left(exact, 200)) << "round " << round;
  }
}

TEST(Distribution, TiesKeepTheLowerIds) {
  const std::vector<float> logits = {1, 3, 3, 1, 3, 1, 3, 1};
  Distribution distribution;
  distribution.start(logits);
  distribution.keep_top_k(3);
  EXPECT_EQ(left(distribution, logits.size()), (std::set<int>{1, 2, 4}));
  distribution.start(logits);
  distribution.keep_top_k(5);
  EXPECT_EQ(left(distribution, logits.size()), (std::set<int>{0, 1, 2, 4, 6}));
  distribution.start(logits);
  distribution.keep_top_p(0.4f);  // each of the four has 0.22
  EXPECT_EQ(left(distribution, logits.size()), (std::set<int>{1, 2}));
  distribution.start(logits);
  const auto best = distribution.best_of_all(6);
  std::vector<int> ids;
  for (const Candidate& candidate : best) ids.push_back(candidate.id);
  EXPECT_EQ(ids, (std::vector<int>{1, 2, 4, 6, 0, 3}));
}

/// The whole vocabulary, without any filter: the draw is where the exact cumulated probability passes u.
TEST(Distribution, DrawInvertsTheCumulatedProbability) {
  std::mt19937_64 random(13);
  for (const size_t vocab : {1u, 3u, 511u, 512u, 513u, 262144u}) {
    const std::vector<float> logits = random_logits(random, vocab);
    const float temperature = 0.8f;
    const auto probability = test::softmax(logits, test::ranking(logits), temperature);
    Distribution distribution;
    distribution.start(logits);
    const int draws = vocab > 1000 ? 60 : 400;
    for (int i = 0; i < draws; ++i) {
      const double u = (i + 0.37) / draws;
      const int id = distribution.draw(temperature, u);
      double before = 0.0;
      for (int k = 0; k < id; ++k) before += probability[static_cast<size_t>(k)];
      EXPECT_LE(before, u + 1e-6);
      EXPECT_GE(before + probability[static_cast<size_t>(id)], u - 1e-6);
      EXPECT_GT(probability[static_cast<size_t>(id)], 0.0);
    }
  }
}

TEST(Distribution, ExtremeDrawsAreTheFirstAndTheLastPossibleToken) {
  const std::vector<float> logits = {test::kNever, 1.0f, 2.0f, 1.0f, test::kNever, -300.0f};
  Distribution distribution;
  distribution.start(logits);
  const double almost_one = std::nextafter(1.0, 0.0);
  EXPECT_EQ(distribution.draw(1.0f, 0.0), 1);
  EXPECT_EQ(distribution.draw(1.0f, almost_one), 3);
  distribution.keep_min_p(0.01f);
  EXPECT_EQ(distribution.draw(1.0f, 0.0), 1);
  EXPECT_EQ(distribution.draw(1.0f, almost_one), 3);
  EXPECT_EQ(distribution.draw(1e-30f, 0.5), 2);
}

TEST(Distribution, TotalIsTheSumOfExponentials) {
  std::mt19937_64 random(14);
  for (const size_t vocab : {1u, 7u, 1000u, 262144u}) {
    const std::vector<float> logits = random_logits(random, vocab);
    const float best = greatest(logits);
    double expected = 0.0;
    for (float logit : logits) expected += std::exp(double(logit) - double(best));
    Distribution distribution;
    distribution.start(logits);
    EXPECT_NEAR(distribution.total() / expected, 1.0, 2e-7);
  }
}

}  // namespace
}  // namespace carat

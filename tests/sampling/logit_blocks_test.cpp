// Blocks of logits against their definitions, and the bounds of the rough exponential.
#include "sampling/logit_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sampling/hlg.h"
#include "sampling/oracle.h"

namespace carat {
namespace {

std::vector<float> random_logits(std::mt19937_64& random, size_t vocab) {
  std::normal_distribution<float> normal(random() % 2 == 0 ? 0.0f : -20.0f, random() % 2 == 0 ? 5.0f : 0.5f);
  const bool holes = random() % 2 == 0;
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    logit = random() % 3 == 0 ? std::round(normal(random)) : normal(random);
    if (holes && random() % 4 == 0) logit = random() % 2 == 0 ? std::nanf("") : test::kNever;
  }
  return logits;
}

/// The same as a plain loop over all logits says.
void expect_summary_of(const std::vector<float>& logits, LogitBlocks& blocks) {
  float best = test::kNever;
  int best_id = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) best = logits[i], best_id = static_cast<int>(i);
  }
  ASSERT_EQ(blocks.best(), best);
  if (best_id < 0) return;
  EXPECT_EQ(blocks.best_id(), best_id);
  ASSERT_EQ(blocks.count(), (logits.size() + LogitBlocks::kSize - 1) / LogitBlocks::kSize);
  for (size_t block = 0; block < blocks.count(); ++block) {
    float greatest = test::kNever;
    for (size_t i = block * LogitBlocks::kSize; i < std::min(logits.size(), (block + 1) * LogitBlocks::kSize); ++i) {
      if (logits[i] > greatest) greatest = logits[i];
    }
    ASSERT_EQ(blocks.greatest(block), greatest);
  }
  for (const float lowest : {best, best - 1.0f, best - 8.0f, std::numeric_limits<float>::lowest()}) {
    std::vector<std::pair<float, int>> expected, found;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= lowest) expected.emplace_back(logits[i], static_cast<int>(i));
    }
    blocks.for_each_from(lowest, [&](float logit, int id) { found.emplace_back(logit, id); });
    ASSERT_EQ(found, expected);
  }
  for (const size_t k : {1u, 2u, 5u, 40u}) {
    const auto reached = blocks.reached_by(k);
    if (!reached) {
      continue;
    }
    size_t count = 0;
    for (const float logit : logits) count += logit >= *reached;
    EXPECT_GE(count, k);
  }
  if (blocks.count() > 0) {
    EXPECT_EQ(blocks.reached_by(1), best);
  }
  EXPECT_EQ(blocks.reached_by(blocks.count() + 1), std::nullopt);
}

TEST(LogitBlocks, AreWhatAPlainLoopSays) {
  std::mt19937_64 random(51);
  LogitBlocks blocks;
  for (int round = 0; round < 400; ++round) {
    const size_t vocab = round < 3 ? 512 * static_cast<size_t>(round) : 1 + random() % 4000;
    const std::vector<float> logits = random_logits(random, vocab);
    blocks.read(logits, round % 2 == 0);
    expect_summary_of(logits, blocks);
  }
}

TEST(LogitBlocks, OfAllowedTokensOnly) {
  std::mt19937_64 random(52);
  LogitBlocks blocks;
  for (int round = 0; round < 400; ++round) {
    const size_t vocab = 1 + random() % 4000;
    std::vector<float> logits = random_logits(random, vocab);
    std::vector<uint64_t> allowed(1 + random() % (vocab / 64 + 2));
    const auto sparse = 1 + random() % 12;
    for (uint64_t& word : allowed) word = random() % sparse != 0 ? 0 : random() % 2 == 0 ? random() : ~uint64_t{0};
    std::vector<float> expected = logits;
    for (size_t i = 0; i < vocab; ++i) {
      if (i / 64 >= allowed.size() || (allowed[i / 64] >> (i % 64) & 1) == 0) expected[i] = test::kNever;
    }
    blocks.read(logits, allowed, round % 2 == 0);
    expect_summary_of(expected, blocks);
  }
}

TEST(LogitBlocks, RoughTotalBoundsTheTotal) {
  std::mt19937_64 random(53);
  int known = 0;
  for (int round = 0; round < 300; ++round) {
    std::normal_distribution<float> normal(static_cast<float>(random() % 140) - 60.0f, round % 2 == 0 ? 8.0f : 0.1f);
    std::vector<float> logits(1 + random() % 20000);
    for (float& logit : logits) logit = normal(random);
    LogitBlocks blocks;
    blocks.read(logits, true);
    if (!blocks.has_rough_total()) continue;
    ++known;
    double total = 0.0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    EXPECT_GE(blocks.rough_total(), total * (1.0 - kRoughError - 1e-5));
    EXPECT_LE(blocks.rough_total(), total * kRoughExcess * (1.0 + kRoughError + 1e-5));
  }
  EXPECT_GT(known, 150);
}

TEST(VectorMath, RoughExponentialsStayWithinTheirBounds) {
  for (float x = kRoughFrom; x < kRoughTo; x += 0.00037f) {
    const double ratio = static_cast<double>(rough_exp(x)) / std::exp(static_cast<double>(x));
    ASSERT_GE(ratio, 1.0 - kRoughError) << x;
    ASSERT_LE(ratio, kRoughExcess * (1.0 + kRoughError)) << x;
  }
  EXPECT_EQ(rough_exp(test::kNever), rough_exp(kRoughFrom));
  EXPECT_EQ(rough_exp(std::nanf("")), rough_exp(kRoughFrom));
}

/// Where a weight is computed, alone or among three others, must not show.
TEST(VectorMath, FourNumbersHaveTheBitsOfOne) {
  std::mt19937_64 random(54);
  std::uniform_real_distribution<float> below(-100.0f, 0.0f), above(1.0f, 1000.0f);
  const HlgCurve curve({.enabled = true});
  for (int round = 0; round < 20000; ++round) {
    Floats x, y;
    for (int lane = 0; lane < 4; ++lane) x[lane] = below(random), y[lane] = above(random);
    if (round % 10 == 0) x[round / 10 % 4] = round % 20 == 0 ? test::kNever : std::nanf("");
    const Floats exponentials = exp_of_negative(x), rough = rough_exp(x), logarithms = log_from_one(y);
    const Floats curved = curve(-y);
    for (int lane = 0; lane < 4; ++lane) {
      ASSERT_EQ(bits_of(exponentials[lane]), bits_of(exp_of_negative(static_cast<float>(x[lane]))));
      ASSERT_EQ(bits_of(rough[lane]), bits_of(rough_exp(static_cast<float>(x[lane]))));
      ASSERT_EQ(bits_of(logarithms[lane]), bits_of(log_from_one(static_cast<float>(y[lane]))));
      ASSERT_EQ(bits_of(curved[lane]), bits_of(curve(-static_cast<float>(y[lane]))));
    }
  }
}

}  // namespace
}  // namespace carat

#include "sampling/hlg.h"

#include <gtest/gtest.h>

#include <random>

#include "sampling/oracle.h"

namespace carat {
namespace {

std::vector<HlgParams> curves() {
  return {{true, 4, 4, 6, 6}, {true, 0, 1, 1, 0},         {true, 2, 0, 5, 8},
          {true, 2, 5, 0, 8}, {true, 100, 100, 100, 100}, {true, 0.5f, 0.01f, 30, 12}};
}

TEST(Hlg, FollowsTheFormulaAndRises) {
  for (const HlgParams& params : curves()) {
    const HlgCurve curve(params);
    float previous = -std::numeric_limits<float>::infinity();
    for (float below = -60.0f; below <= 0.0f; below += 0.01f) {
      const double expected = test::hlg(params, below, 1.0);
      const float value = curve(below);
      // 1 + excess / knee rounds to 6e-8, which the knee multiplies.
      EXPECT_NEAR(value, expected, 4e-6 + 1e-7 * std::abs(expected) + 1.2e-7 * std::max(params.toe, params.shoulder));
      EXPECT_GE(value, previous - 1e-5f);
      previous = value;
    }
  }
}

TEST(Hlg, VectorMathIsAccurate) {
  for (float x = -90.0f; x <= 0.0f; x += 0.001f) {
    const double expected = x > -87.0f ? std::exp(double(x)) : 0.0;
    ASSERT_NEAR(exp_of_negative(x), expected, 2e-7 * expected) << x;
  }
  EXPECT_EQ(exp_of_negative(0.0f), 1.0f);
  EXPECT_EQ(exp_of_negative(test::kNever), 0.0f);
  EXPECT_EQ(exp_of_negative(std::numeric_limits<float>::lowest()), 0.0f);
  for (float x = 1.0f; x < 1e30f; x *= 1.0007f) {
    ASSERT_NEAR(log_from_one(x), std::log(double(x)), 2e-7 * std::max(1.0, std::log(double(x)))) << x;
  }
  EXPECT_EQ(log_from_one(1.0f), 0.0f);
}

/// The token of the greatest weight is the greedy one, whatever the curve.
TEST(Hlg, TheBestTokenStaysTheBest) {
  std::mt19937_64 random(21);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (const HlgParams& params : curves()) {
    const HlgCurve curve(params);
    std::vector<float> logits(300);
    for (float& logit : logits) logit = normal(random);
    const float best = *std::max_element(logits.begin(), logits.end());
    for (float logit : logits) EXPECT_LE(curve(logit - best), curve(0.0f) + 1e-5f);
  }
}

/// Without a knee HLG is temperature, token for token.
TEST(Hlg, StraightCurvesAreTemperature) {
  std::mt19937_64 random(22);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  SamplingParams plain;
  plain.temperature = 0.7f;
  plain.seed = 5;
  for (const HlgParams& straight :
       {HlgParams{true, std::numeric_limits<float>::infinity(), 4, 6, 6}, HlgParams{true, 4, 0, 0, 6}}) {
    SamplingParams params = plain;
    params.hlg = straight;
    Sampler sampler;
    for (int64_t position = 0; position < 500; ++position) {
      std::vector<float> a = logits, b = logits;
      ASSERT_EQ(sampler.sample(a, params, {}, position).token, sampler.sample(b, plain, {}, position).token);
    }
  }
}

}  // namespace
}  // namespace carat

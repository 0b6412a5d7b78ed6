// Sampler::sample against a plain sampler that sorts everything and works in double: the same token for the same seed,
// whatever the logits and the parameters.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/error.h"
#include "sampling/oracle.h"
#include "sampling/sampling.h"

namespace carat {
namespace {

struct PlainResult {
  int token = -1;       // none: no token is left
  double margin = 1.0;  // how close the nearest decision was
  double logprob = 0.0;
  std::vector<int> top;
};

PlainResult plain_sample(std::vector<float> logits, const SamplingParams& params, int64_t position,
                         const std::vector<uint64_t>& allowed, const std::vector<int>& safe) {
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool may = allowed.empty() || (i / 64 < allowed.size() && (allowed[i / 64] >> (i % 64) & 1) != 0);
    if (std::isnan(logits[i]) || !may) logits[i] = test::kNever;
    logits[i] = std::min(logits[i], std::numeric_limits<float>::max());
  }
  PlainResult result;
  const std::vector<int> ranking = test::ranking(logits);
  if (ranking.empty()) return result;
  const auto u = [&](uint32_t stream) { return uniform(params.seed, static_cast<uint64_t>(position), stream); };
  if (params.temperature == 0.0f) {
    result.token = ranking.front();
  } else {
    std::vector<double> probability;
    if (params.hlg.enabled) {
      probability = test::draw_probabilities(logits, params, safe);
    } else {
      const bool xtc = params.xtc_probability > 0.0f && u(kXtcStream) <= static_cast<double>(params.xtc_probability);
      const test::Survivors left = test::filtered(logits, params, xtc, safe);
      result.margin = left.margin;
      probability = test::softmax(logits, left.ids, params.temperature);
    }
    // In the order of ids the first at which the sum exceeds u.
    double sum = 0.0;
    for (size_t id = 0; id < logits.size() && result.token < 0; ++id) {
      sum += probability[id];
      result.margin = std::min(result.margin, std::abs(sum - u(kTokenStream)));
      if (sum > u(kTokenStream)) result.token = static_cast<int>(id);
    }
  }
  if (params.logprobs && result.token >= 0) {
    result.logprob = std::log(test::softmax(logits, ranking, 1.0)[static_cast<size_t>(result.token)]);
    const auto wanted = std::min(static_cast<size_t>(params.top_logprobs), ranking.size());
    result.top.assign(ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(wanted));
  }
  return result;
}

/// Of many characters: sharp and flat, near 0 and far from it, with ties, infinities and NaNs.
std::vector<float> random_logits(std::mt19937_64& random, size_t vocab) {
  constexpr std::array<float, 6> kDeviations = {0.0f, 0.01f, 0.5f, 3.0f, 5.0f, 40.0f};
  constexpr std::array<float, 6> kCenters = {0.0f, 0.0f, -5.0f, -100.0f, 75.0f, 300.0f};
  std::normal_distribution<float> normal(kCenters[random() % 6], kDeviations[random() % 6]);
  const bool ties = random() % 3 == 0;
  const bool forbidden = random() % 4 == 0;
  const bool nan = random() % 4 == 0;
  const bool forced = random() % 12 == 0;
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    logit = normal(random);
    if (ties) logit = std::round(logit * 2.0f) / 2.0f;
    if (forbidden && random() % 3 != 0) logit = test::kNever;
    if (nan && random() % 5 == 0) logit = std::numeric_limits<float>::quiet_NaN();
    if (forced && random() % vocab < 2) logit = -test::kNever;
  }
  return logits;
}

SamplingParams random_params(std::mt19937_64& random, size_t vocab) {
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  SamplingParams params;
  params.seed = random();
  if (random() % 6 != 0) params.temperature = random() % 2 == 0 ? 1.0f : 0.2f + 2.0f * uniform(random);
  if (random() % 2 == 0) params.top_k = 1 + static_cast<int>(random() % (random() % 3 == 0 ? 2 * vocab : 80));
  if (random() % 2 == 0) params.top_p = random() % 3 == 0 ? 1.0f - 0.01f * uniform(random) : uniform(random);
  if (random() % 3 == 0) params.min_p = random() % 6 == 0 ? 1.0f : 0.2f * uniform(random);
  if (random() % 6 == 0) params.xtc_probability = 0.5f, params.xtc_threshold = 0.5f * uniform(random);
  if (random() % 10 == 0) params.hlg.enabled = true;
  if (random() % 3 == 0) params.logprobs = true, params.top_logprobs = static_cast<int>(random() % 30);
  if (random() % 4 == 0) params.logit_bias = {{static_cast<int>(random() % vocab), 4.0f * uniform(random)}};
  if (random() % 16 == 0) params.logit_bias.emplace_back(static_cast<int>(random() % vocab), -test::kNever);
  validate(params, static_cast<int64_t>(vocab));
  return params;
}

/// None, one that allows all, one in places only, or a random one; at times too short.
std::vector<uint64_t> random_mask(std::mt19937_64& random, size_t vocab) {
  const auto kind = random() % 8;
  if (kind >= 4) return {};
  std::vector<uint64_t> words((vocab + 63) / 64);
  for (uint64_t& word : words)
    word = kind == 0 ? ~uint64_t{0} : kind == 1 ? random() : random() % 24 == 0 ? random() : 0;
  if (kind == 3 && words.size() > 1) words.pop_back();
  return words;
}

void compare(size_t vocabs, size_t largest, int* compared) {
  std::mt19937_64 random(largest);
  Sampler sampler({3, 5});  // used again and again: nothing may be left of the draw before
  for (size_t round = 0; round < vocabs; ++round) {
    const size_t vocab = round % 16 == 0 ? largest : 6 + random() % largest;
    const std::vector<float> logits = random_logits(random, vocab);
    for (int64_t position = 0; position < 6; ++position) {
      const SamplingParams params = random_params(random, vocab);
      const std::vector<uint64_t> allowed = random_mask(random, vocab);
      const PlainResult expected = plain_sample(logits, params, position, allowed, {3, 5});
      std::vector<float> scratch = logits;
      if (expected.token < 0) {
        EXPECT_THROW(sampler.sample(scratch, params, {}, position, allowed), Error);
        continue;
      }
      const Sampled sampled = sampler.sample(scratch, params, {}, position, allowed);
      if (expected.margin < 3e-6) continue;
      ++*compared;
      ASSERT_EQ(sampled.token, expected.token)
          << "round " << round << " position " << position << " vocab " << vocab << " temperature "
          << params.temperature << " top_k " << params.top_k << " top_p " << params.top_p << " min_p " << params.min_p
          << " xtc " << params.xtc_probability << " mask " << allowed.size();
      if (!params.logprobs) continue;
      ASSERT_NEAR(sampled.logprob, expected.logprob, 1e-6 + 1e-6 * std::abs(expected.logprob));
      ASSERT_EQ(sampled.top.size(), expected.top.size());
      for (size_t i = 0; i < expected.top.size(); ++i) ASSERT_EQ(sampled.top[i].token, expected.top[i]);
    }
  }
}

TEST(PlainSampler, DrawsTheSameTokensFromSmallVocabularies) {
  int compared = 0;
  compare(4000, 700, &compared);
  EXPECT_GT(compared, 15000);
}

TEST(PlainSampler, DrawsTheSameTokensFromLargeVocabularies) {
  int compared = 0;
  compare(160, 9000, &compared);
  EXPECT_GT(compared, 600);
}

TEST(PlainSampler, DrawsTheSameTokensFromGemmasVocabulary) {
  int compared = 0;
  compare(2, 262144, &compared);
  EXPECT_GT(compared, 5);
}

}  // namespace
}  // namespace carat

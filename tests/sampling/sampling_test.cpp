// The sampler as a whole: what is drawn how often, penalties, log-probabilities, hostile logits.
#include "sampling/sampling.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <string>

#include "base/error.h"
#include "sampling/oracle.h"

namespace carat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::mt19937_64& random, size_t vocab, float deviation = 2.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

Sampled sample(std::vector<float> logits, const SamplingParams& params, const std::vector<int>& history = {},
               int64_t position = 0) {
  return Sampler().sample(logits, params, history, position);
}

/// Draws at 20,000 positions against the exact distribution.
TEST(Sampler, DrawsFollowTheFilteredDistribution) {
  std::mt19937_64 random(31);
  std::vector<SamplingParams> cases(10);
  for (SamplingParams& params : cases) params.temperature = 1.0f;
  cases[1].temperature = 0.4f;
  cases[2].top_p = 0.8f;
  cases[3].top_k = 5;
  cases[4].min_p = 0.1f;
  cases[5].xtc_probability = 0.3f;
  cases[5].xtc_threshold = 0.08f;
  cases[6].top_p = 0.95f, cases[6].top_k = 12, cases[6].min_p = 0.02f, cases[6].temperature = 1.7f;
  cases[6].xtc_probability = 0.5f, cases[6].xtc_threshold = 0.05f;
  cases[7].hlg.enabled = true;
  cases[8].hlg = {true, 1.0f, 0.7f, 2.0f, 3.0f};
  cases[8].temperature = 0.6f;
  cases[8].top_k = 1;  // HLG passes it over
  cases[9].xtc_probability = 1.0f;
  cases[9].xtc_threshold = 0.05f;
  for (size_t which = 0; which < cases.size(); ++which) {
    SamplingParams& params = cases[which];
    params.seed = 1000 + which;
    validate(params);
    const std::vector<float> logits = random_logits(random, 30);
    const std::vector<int> safe = {3};
    const std::vector<double> expected = test::draw_probabilities(logits, params, safe);
    Sampler sampler(safe);
    constexpr int kDraws = 20000;
    std::vector<int> counts(logits.size());
    for (int64_t position = 0; position < kDraws; ++position) {
      std::vector<float> copy = logits;
      ++counts[static_cast<size_t>(sampler.sample(copy, params, {}, position).token)];
    }
    double statistic = 0.0, rest_expected = 0.0;
    int rest = 0, cells = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double wanted = expected[id] * kDraws;
      if (wanted == 0.0) {
        EXPECT_EQ(counts[id], 0) << "case " << which << ": a token that was filtered out";
      } else if (wanted < 10.0) {
        rest += counts[id];
        rest_expected += wanted;
      } else {
        statistic += std::pow(counts[id] - wanted, 2) / wanted;
        ++cells;
      }
    }
    if (rest_expected > 0.0) statistic += std::pow(rest - rest_expected, 2) / std::max(rest_expected, 1.0), ++cells;
    ASSERT_GE(cells, 2);
    EXPECT_LT(test::chi_square_sigmas(statistic, cells - 1), 3.5) << "case " << which;
  }
}

TEST(Sampler, TheDrawDependsOnSeedAndPositionOnly) {
  std::mt19937_64 random(32);
  const std::vector<float> logits = random_logits(random, 500);
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.97f;
  params.seed = 77;
  Sampler used;
  std::map<int64_t, int> first;
  for (int64_t position : {5, 900, 3, 5, 1 << 20, 900}) {
    std::vector<float> other = random_logits(random, 700);
    used.sample(other, params, std::vector<int>{1, 2, 3}, position + 1);  // scratch of another request
    std::vector<float> copy = logits;
    const int token =
        used.sample(copy, params, std::vector<int>(static_cast<size_t>(position % 50), 4), position).token;
    EXPECT_EQ(token, sample(logits, params, {}, position).token);
    if (first.count(position) != 0) {
      EXPECT_EQ(first[position], token);
    }
    first[position] = token;
  }
  int changed = 0;
  for (int64_t position = 0; position < 100; ++position) {
    SamplingParams other = params;
    other.seed = 78;
    changed += sample(logits, params, {}, position).token != sample(logits, other, {}, position).token;
  }
  EXPECT_GT(changed, 80);
}

/// Filters that remove nothing do not move the draw.
TEST(Sampler, FiltersWithoutEffectHaveNoEffect) {
  std::mt19937_64 random(33);
  const std::vector<float> logits = random_logits(random, 2000);
  SamplingParams plain;
  plain.temperature = 0.9f;
  plain.seed = 3;
  std::vector<SamplingParams> same(5, plain);
  same[0].top_k = 2000;
  same[1].top_k = 1 << 30;
  same[2].min_p = 1e-30f;
  same[3].xtc_probability = 1.0f, same[3].xtc_threshold = 0.5f;
  same[4].repetition_penalty = 0.0f;
  for (int64_t position = 0; position < 300; ++position) {
    const int expected = sample(logits, plain, {1, 2, 3}, position).token;
    for (const SamplingParams& params : same) {
      ASSERT_EQ(sample(logits, params, {1, 2, 3}, position).token, expected);
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualTokens) {
  SamplingParams params;
  params.hlg.enabled = true;
  params.top_k = 1;
  EXPECT_EQ(sample({1, 5, 5, 2, 5}, params).token, 1);
  EXPECT_EQ(sample({-kInfinity, -kInfinity, -3.0f}, params).token, 2);
  EXPECT_EQ(sample(std::vector<float>(100, -1e30f), params).token, 0);
  std::mt19937_64 random(34);
  for (size_t vocab : {1u, 15u, 16u, 17u, 1000u}) {
    const std::vector<float> logits = random_logits(random, vocab);
    EXPECT_EQ(sample(logits, params).token, std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST(Sampler, HostileLogitsDoNotCrash) {
  std::vector<SamplingParams> all(6);
  for (size_t i = 1; i < all.size(); ++i) all[i].temperature = 0.5f;
  all[2].top_p = 0.9f, all[2].top_k = 2;
  all[3].min_p = 0.1f;
  all[4].xtc_probability = 1.0f, all[4].xtc_threshold = 0.0f;
  all[5].hlg.enabled = true;
  for (SamplingParams params : all) {
    params.logprobs = true;
    params.top_logprobs = 3;
    const std::vector<int> history = {0, -1, 99, 1};
    EXPECT_THROW(sample({}, params), Error);
    EXPECT_THROW(sample({-kInfinity, kNan, kNan}, params), Error);
    EXPECT_EQ(sample({kNan, -2.0f, kNan}, params, history).token, 1);
    EXPECT_EQ(sample({1.0f, -2.0f, kInfinity}, params, history).token, 2);
    EXPECT_EQ(sample({-kInfinity, 3e38f, -3e38f}, params, history).token, 1);
    EXPECT_EQ(sample({-3.4e38f}, params, history).token, 0);
    const Sampled sampled = sample({kNan, 1.0f, -kInfinity}, params, history);
    EXPECT_EQ(sampled.top.size(), 1u);
    EXPECT_NEAR(sampled.logprob, 0.0f, 1e-6f);
    params.temperature = params.temperature == 0.0f ? 0.0f : 1e-40f;
    EXPECT_EQ(sample({1.0f, 2.0f, 1.5f}, params).token == 1, params.xtc_probability == 0.0f);
    params.temperature = params.temperature == 0.0f ? 0.0f : 3e38f;
    EXPECT_LT(sample({1.0f, 2.0f, 1.5f}, params).token, 3);
  }
}

TEST(Sampler, LogprobsAreThoseBeforeTemperatureAndFilters) {
  std::mt19937_64 random(35);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits = random_logits(random, 400, 4.0f);
    if (round % 2 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties
    }
    SamplingParams params;
    params.logprobs = true;
    params.top_logprobs = 11;
    params.temperature = round % 3 == 0 ? 0.0f : 3.0f;
    params.top_k = 3;
    params.xtc_probability = 1.0f;
    params.logit_bias = {{7, 2.5f}, {100000, 9.0f}};
    const Sampled sampled = sample(logits, params, {}, round);
    logits[7] += 2.5f;
    const std::vector<int> ranking = test::ranking(logits);
    const auto p = test::softmax(logits, ranking, 1.0);
    EXPECT_NEAR(sampled.logprob, std::log(p[static_cast<size_t>(sampled.token)]), 2e-6);
    ASSERT_EQ(sampled.top.size(), 11u);
    for (size_t i = 0; i < 11; ++i) {
      EXPECT_EQ(sampled.top[i].token, ranking[i]);
      EXPECT_NEAR(sampled.top[i].logprob, std::log(p[static_cast<size_t>(ranking[i])]), 2e-6);
    }
    params.logprobs = false;
    EXPECT_TRUE(sample(logits, params).top.empty());
  }
}

/// Penalties on random histories, computed one by one from their definitions.
TEST(Sampler, PenaltiesFollowTheirDefinitions) {
  std::mt19937_64 random(36);
  std::uniform_real_distribution<float> uniform(0.0f, 2.0f);
  Penalties penalties;
  for (int round = 0; round < 500; ++round) {
    const std::vector<float> logits = random_logits(random, 40);
    std::vector<int> history(random() % 60);
    for (int& id : history) id = static_cast<int>(random() % 45) - 2;  // some outside the vocabulary
    SamplingParams params;
    params.repetition_penalty = random() % 3 == 0 ? 1.0f : 0.5f + uniform(random);
    params.presence_penalty = random() % 3 == 0 ? 0.0f : uniform(random) - 1.0f;
    params.frequency_penalty = random() % 3 == 0 ? 0.0f : uniform(random) - 1.0f;
    params.repetition_context = static_cast<int>(random() % 50);
    params.presence_context = static_cast<int>(random() % 50);
    params.frequency_context = static_cast<int>(random() % 50);
    params.logit_bias = {{static_cast<int>(random() % 40), uniform(random)}, {3, -kInfinity}};
    const auto count = [&](int id, int context) {
      const auto from =
          context == 0 || static_cast<size_t>(context) > history.size() ? history.begin() : history.end() - context;
      return static_cast<int>(std::count(from, history.end(), id));
    };
    std::vector<float> penalised = logits;
    penalties.apply(penalised, params, history);
    for (int id = 0; id < 40; ++id) {
      float expected = logits[static_cast<size_t>(id)];
      for (const auto& [biased, bias] : params.logit_bias) {
        if (biased == id) expected += bias;
      }
      if (count(id, params.repetition_context) > 0 && params.repetition_penalty != 1.0f) {
        expected = expected < 0 ? expected * params.repetition_penalty : expected / params.repetition_penalty;
      }
      if (count(id, params.presence_context) > 0) expected -= params.presence_penalty;
      expected -= params.frequency_penalty * static_cast<float>(count(id, params.frequency_context));
      ASSERT_EQ(penalised[static_cast<size_t>(id)], expected) << "token " << id;
    }
  }
}

TEST(Sampler, BiasForbidsAndForces) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.logit_bias = {{1, -kInfinity}};
  for (int64_t position = 0; position < 200; ++position) EXPECT_NE(sample({0, 9, 0}, params, {}, position).token, 1);
  params.logit_bias = {{2, kInfinity}};
  for (int64_t position = 0; position < 200; ++position) EXPECT_EQ(sample({0, 9, 0}, params, {}, position).token, 2);
}

TEST(Sampler, XtcKeepsProtectedTokens) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.xtc_probability = 1.0f;
  params.xtc_threshold = 0.1f;
  std::set<int> seen, seen_protected;
  Sampler plain, careful({0});
  for (int64_t position = 0; position < 500; ++position) {
    std::vector<float> a = {3, 2.5f, 2, -5}, b = a;
    seen.insert(plain.sample(a, params, {}, position).token);
    seen_protected.insert(careful.sample(b, params, {}, position).token);
  }
  EXPECT_EQ(seen.count(0) + seen.count(1), 0u);
  EXPECT_EQ(seen.count(2), 1u);
  EXPECT_EQ(seen_protected.count(0), 1u);
  EXPECT_EQ(seen_protected.count(1), 0u);
}

TEST(Sampler, OutOfRangeParametersAreNamed) {
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&, float)>>> fields = {
      {"temperature", [](SamplingParams& p, float v) { p.temperature = v; }},
      {"top_p", [](SamplingParams& p, float v) { p.top_p = v; }},
      {"min_p", [](SamplingParams& p, float v) { p.min_p = v; }},
      {"xtc_probability", [](SamplingParams& p, float v) { p.xtc_probability = v; }},
      {"xtc_threshold", [](SamplingParams& p, float v) { p.xtc_threshold = v; }},
      {"repetition_penalty", [](SamplingParams& p, float v) { p.repetition_penalty = v; }},
      {"presence_penalty", [](SamplingParams& p, float v) { p.presence_penalty = v < 0 ? kInfinity : v; }},
      {"frequency_penalty", [](SamplingParams& p, float v) { p.frequency_penalty = v < 0 ? kInfinity : v; }},
      {"top_k", [](SamplingParams& p, float) { p.top_k = -1; }},
      {"top_logprobs", [](SamplingParams& p, float) { p.top_logprobs = -1; }},
      {"repetition_context", [](SamplingParams& p, float) { p.repetition_context = -1; }},
      {"presence_context", [](SamplingParams& p, float) { p.presence_context = -1; }},
      {"frequency_context", [](SamplingParams& p, float) { p.frequency_context = -1; }},
      {"logit_bias",
       [](SamplingParams& p, float) {
         p.logit_bias = {{-1, 1.0f}};
       }},
      {"logit_bias",
       [](SamplingParams& p, float) {
         p.logit_bias = {{1, kNan}};
       }},
      {"width",
       [](SamplingParams& p, float v) {
         p.hlg = {true, v, 1, 1, 1};
       }},
      {"shoulder",
       [](SamplingParams& p, float v) {
         p.hlg = {true, 1, v, 1, 1};
       }},
      {"toe",
       [](SamplingParams& p, float v) {
         p.hlg = {true, 1, 1, v, 1};
       }},
      {"pivot_offset",
       [](SamplingParams& p, float v) {
         p.hlg = {true, 1, 1, 1, v};
       }},
  };
  for (const auto& [name, set] : fields) {
    for (float value : {-0.5f, kNan, -kInfinity}) {
      SamplingParams params;
      set(params, value);
      try {
        validate(params);
        ADD_FAILURE() << name << " = " << value;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
  }
  SamplingParams params;
  params.logit_bias = {{262144, 1.0f}, {5, -kInfinity}};
  EXPECT_NO_THROW(validate(params));
  EXPECT_NO_THROW(validate(params, 262145));
  EXPECT_THROW(validate(params, 262144), Error);
  params = {};
  params.xtc_threshold = 0.51f;
  EXPECT_THROW(validate(params), Error);
}

}  // namespace
}  // namespace carat

// A choice changes what it names and nothing else.
#include "sampling/sampling_choice.h"

#include <gtest/gtest.h>

namespace carat {
namespace {

TEST(SamplingChoice, ChangesWhatItNamesAndNothingElse) {
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 5;
  params.seed = 9;
  params.logit_bias = {{1, 2.0f}};
  params.hlg.enabled = true;
  SamplingChoice().apply_to(params);
  EXPECT_EQ(params.temperature, 0.7f);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(params.seed, 9u);
  EXPECT_EQ(params.logit_bias.size(), 1u);
  EXPECT_TRUE(params.hlg.enabled);

  // Every field its own value, so that none can be taken for another.
  SamplingChoice choice;
  choice.temperature = 0.01f, choice.top_p = 0.02f, choice.min_p = 0.03f;
  choice.xtc_probability = 0.04f, choice.xtc_threshold = 0.05f;
  choice.repetition_penalty = 0.06f, choice.presence_penalty = 0.07f, choice.frequency_penalty = 0.08f;
  choice.top_k = 1, choice.repetition_context = 2, choice.presence_context = 3, choice.frequency_context = 4;
  choice.seed = 5;
  choice.logit_bias = {{6, 0.5f}, {7, 0.25f}};
  choice.hlg = HlgParams{.width = 8.0f};
  choice.apply_to(params);
  EXPECT_EQ(params.temperature, 0.01f);
  EXPECT_EQ(params.top_p, 0.02f);
  EXPECT_EQ(params.min_p, 0.03f);
  EXPECT_EQ(params.xtc_probability, 0.04f);
  EXPECT_EQ(params.xtc_threshold, 0.05f);
  EXPECT_EQ(params.repetition_penalty, 0.06f);
  EXPECT_EQ(params.presence_penalty, 0.07f);
  EXPECT_EQ(params.frequency_penalty, 0.08f);
  EXPECT_EQ(params.top_k, 1);
  EXPECT_EQ(params.repetition_context, 2);
  EXPECT_EQ(params.presence_context, 3);
  EXPECT_EQ(params.frequency_context, 4);
  EXPECT_EQ(params.seed, 5u);
  EXPECT_EQ(params.logit_bias, choice.logit_bias);
  EXPECT_FALSE(params.hlg.enabled);
  EXPECT_EQ(params.hlg.width, 8.0f);
}

}  // namespace
}  // namespace carat

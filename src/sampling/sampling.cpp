#include "sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace carat {

namespace {

void expect_range(const char* field, float value, float lowest, float highest) {
  if (!(value >= lowest && value <= highest)) {
    fail("{} is {}, expected a number from {} to {}", field, value, lowest, highest);
  }
}

void expect_finite(const char* field, float value) {
  if (!std::isfinite(value)) fail("{} is {}, expected a finite number", field, value);
}

void expect_not_negative(const char* field, float value) {
  if (!std::isfinite(value) || value < 0.0f) fail("{} is {}, expected a finite number of 0 or more", field, value);
}

void expect_not_negative(const char* field, int value) {
  if (value < 0) fail("{} is {}, expected 0 or more", field, value);
}

}  // namespace

void validate(const SamplingParams& params, int64_t vocab) {
  expect_not_negative("temperature", params.temperature);
  expect_not_negative("top_k", params.top_k);
  expect_range("top_p", params.top_p, 0.0f, 1.0f);
  expect_range("min_p", params.min_p, 0.0f, 1.0f);
  expect_range("xtc_probability", params.xtc_probability, 0.0f, 1.0f);
  expect_range("xtc_threshold", params.xtc_threshold, 0.0f, 0.5f);
  expect_not_negative("repetition_penalty", params.repetition_penalty);
  expect_not_negative("repetition_context_size", params.repetition_context);
  expect_finite("presence_penalty", params.presence_penalty);
  expect_not_negative("presence_context_size", params.presence_context);
  expect_finite("frequency_penalty", params.frequency_penalty);
  expect_not_negative("frequency_context_size", params.frequency_context);
  expect_not_negative("top_logprobs", params.top_logprobs);
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || (vocab > 0 && id >= vocab)) {
      fail("logit_bias names the token {}, expected an id from 0 to {}", id,
           vocab > 0 ? vocab - 1 : std::numeric_limits<int>::max());
    }
    if (std::isnan(bias)) fail("logit_bias of the token {} is not a number", id);
  }
  if (!params.hlg.enabled) return;
  if (!std::isinf(params.hlg.width) || params.hlg.width < 0.0f)
    expect_range("hlg width", params.hlg.width, 0.0f, 100.0f);
  expect_range("hlg shoulder", params.hlg.shoulder, 0.0f, 100.0f);
  expect_range("hlg toe", params.hlg.toe, 0.0f, 100.0f);
  expect_range("hlg pivot_offset", params.hlg.pivot_offset, 0.0f, 100.0f);
}

Sampled Sampler::sample(std::span<float> logits, const SamplingParams& params, std::span<const int> history,
                        int64_t position, std::span<const uint64_t> allowed) {
  penalties_.apply(logits, params, history);
  const auto u = [&](uint32_t stream) { return uniform(params.seed, static_cast<uint64_t>(position), stream); };
  const bool draws = params.temperature != 0.0f;
  const bool filters = draws && !params.hlg.enabled;
  const bool top_p = filters && params.top_p > 0.0f && params.top_p < 1.0f;
  const bool xtc =
      filters && params.xtc_probability > 0.0f && u(kXtcStream) <= static_cast<double>(params.xtc_probability);
  // Where the order does not matter, the filter that makes a short list comes first: the others look at nothing else.
  constexpr int kShort = 1024;
  const bool begin_with_top_k = filters && params.top_k > 0 && params.top_k <= kShort && !xtc;
  // Log-probabilities take the exact total: then it is not needed roughly.
  const bool roughly = top_p && begin_with_top_k && !params.logprobs;
  const auto start = [&] {
    if (allowed.empty()) {
      distribution_.start(logits, roughly);
    } else {
      distribution_.start(logits, allowed, roughly);
    }
  };
  start();
  if (distribution_.best() == std::numeric_limits<float>::infinity()) {
    std::replace(logits.begin(), logits.end(), distribution_.best(), std::numeric_limits<float>::max());
    start();
  }
  if (!std::isfinite(distribution_.best())) {
    fail("no token can be drawn: all {} logits are -infinity or not numbers", logits.size());
  }

  Sampled sampled;
  if (params.logprobs) sampled.top = distribution_.top_logprobs(params.top_logprobs);

  if (!draws) {
    sampled.token = distribution_.best_id();
  } else if (params.hlg.enabled) {
    sampled.token = distribution_.draw(params.hlg, params.temperature, u(kTokenStream));
  } else {
    if (begin_with_top_k) distribution_.keep_top_k(params.top_k);
    if (top_p) distribution_.keep_top_p(params.top_p);
    if (params.min_p > 0.0f) distribution_.keep_min_p(params.min_p);
    if (xtc) distribution_.drop_top_choices(params.xtc_threshold, xtc_protected_);
    if (params.top_k > 0 && !begin_with_top_k) distribution_.keep_top_k(params.top_k);
    sampled.token = distribution_.draw(params.temperature, u(kTokenStream));
  }
  if (params.logprobs) sampled.logprob = distribution_.logprob(logits[static_cast<size_t>(sampled.token)]);
  return sampled;
}

}  // namespace carat

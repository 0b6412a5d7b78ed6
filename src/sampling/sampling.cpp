#include "sampling/sampling.h"

#include <algorithm>
#include <array>
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

/// Tokens without their bit get -infinity.
void forbid_others(std::span<float> logits, std::span<const uint64_t> allowed) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  constexpr size_t kBits = 64;
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const size_t end = std::min(begin + kBits, logits.size());
    const uint64_t bits = begin / kBits < allowed.size() ? allowed[begin / kBits] : 0;
    if (bits == ~uint64_t{0}) continue;
    if (bits == 0) {
      std::fill(logits.begin() + static_cast<std::ptrdiff_t>(begin), logits.begin() + static_cast<std::ptrdiff_t>(end),
                kNever);
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      if ((bits >> (i - begin) & 1) == 0) logits[i] = kNever;
    }
  }
}

/// Replaces NaN by -infinity and +infinity by the largest float, and returns the greatest logit.
float clean(std::span<float> logits) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  constexpr size_t kLanes = 16;  // independent maxima, so that the loop can be vectorised
  std::array<float, kLanes> best;
  best.fill(kNever);
  const auto clean_one = [&](float& logit, float& greatest) {
    const float number = logit >= kNever ? logit : kNever;
    logit = number < kLargest ? number : kLargest;
    greatest = logit > greatest ? logit : greatest;
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) clean_one(logits[i + lane], best[lane]);
  }
  for (; i < logits.size(); ++i) clean_one(logits[i], best[0]);
  return *std::max_element(best.begin(), best.end());
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
  if (!allowed.empty()) forbid_others(logits, allowed);
  const float best = clean(logits);
  if (!std::isfinite(best)) fail("no token can be drawn: all {} logits are -infinity or not numbers", logits.size());
  distribution_.start(logits, best);

  Sampled sampled;
  if (params.logprobs) sampled.top = distribution_.top_logprobs(params.top_logprobs);

  const auto u = [&](uint32_t stream) { return uniform(params.seed, static_cast<uint64_t>(position), stream); };
  if (params.temperature == 0.0f) {
    sampled.token = static_cast<int>(std::find(logits.begin(), logits.end(), best) - logits.begin());
  } else if (params.hlg.enabled) {
    sampled.token = distribution_.draw(params.hlg, params.temperature, u(kTokenStream));
  } else {
    if (params.top_p > 0.0f && params.top_p < 1.0f) distribution_.keep_top_p(params.top_p);
    if (params.min_p > 0.0f) distribution_.keep_min_p(params.min_p);
    if (params.xtc_probability > 0.0f && u(kXtcStream) <= static_cast<double>(params.xtc_probability)) {
      distribution_.drop_top_choices(params.xtc_threshold, xtc_protected_);
    }
    if (params.top_k > 0) distribution_.keep_top_k(params.top_k);
    sampled.token = distribution_.draw(params.temperature, u(kTokenStream));
  }
  if (params.logprobs) sampled.logprob = distribution_.logprob(logits[static_cast<size_t>(sampled.token)]);
  return sampled;
}

}  // namespace carat

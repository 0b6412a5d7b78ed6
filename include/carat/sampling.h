// What a caller may ask of sampling, and what comes back beside the token.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace carat {

/// The HLG tone curve over log-probabilities; see docs/cli.md. Replaces top-p, min-p, XTC and top-k when enabled.
/// Each in [0, 100]; `width` may also be infinite, which leaves temperature alone.
struct HlgParams {
  bool enabled = false;
  float width = 4.0f;
  float shoulder = 4.0f;
  float toe = 6.0f;
  float pivot_offset = 6.0f;
};

/// Applied in the order: bias and penalties (penalties.h), [log-probabilities,] top-p, min-p, XTC, top-k, temperature.
/// Tokens rank by logit, equal ones by id, the lower first. Probabilities of the filters are those at temperature 1.
///
///   top-p   keeps a token while the tokens that rank before it hold less than top_p of the whole probability.
///   min-p   keeps tokens of at least min_p times the probability of the best one.
///   XTC     with probability xtc_probability: of the tokens above xtc_threshold (probabilities renormalised over what
///           top-p and min-p left, as in mlx-lm) the least probable stays, and every more probable token is dropped,
///           except the protected ones.
///   top-k   keeps the k best of what is left.
///
/// With HLG these four are passed over. Temperature 0 takes the best token and ignores them all.
struct SamplingParams {
  float temperature = 0.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;        // off unless 0 < top_p < 1
  float min_p = 0.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  float repetition_penalty = 1.0f;  // 0 and 1 = off
  int repetition_context = 20;      // last n tokens of prompt + generated; 0 = all
  float presence_penalty = 0.0f;
  int presence_context = 20;
  float frequency_penalty = 0.0f;
  int frequency_context = 20;
  std::vector<std::pair<int, float>> logit_bias;  // may be infinite: -infinity forbids, +infinity forces a token
  HlgParams hlg;
  uint64_t seed = 0;
  bool logprobs = false;
  int top_logprobs = 0;  // alternatives per token
};

/// Throws Error naming the field when a parameter is out of its range. A bias for an id of `vocab` or more is an error
/// too, unless vocab is 0 (not known); sample() passes over such ids.
void validate(const SamplingParams& params, int64_t vocab = 0);

struct TokenLogprob {
  int token = 0;
  float logprob = 0.0f;
};

}  // namespace carat

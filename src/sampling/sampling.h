// From logits to a token. Pure functions of (logits, parameters, history, position): no state besides the caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace carat {

/// The HLG tone curve over log-probabilities; see docs/cli.md. Replaces top-p, min-p, XTC and top-k when enabled.
struct HlgParams {
  bool enabled = false;
  float width = 4.0f;
  float shoulder = 4.0f;
  float toe = 6.0f;
  float pivot_offset = 6.0f;
};

struct SamplingParams {
  float temperature = 0.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;        // off unless 0 < top_p < 1
  float min_p = 0.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  float repetition_penalty = 1.0f;
  int repetition_context = 20;  // last n tokens of prompt + generated; 0 = all
  float presence_penalty = 0.0f;
  int presence_context = 20;
  float frequency_penalty = 0.0f;
  int frequency_context = 20;
  std::vector<std::pair<int, float>> logit_bias;
  HlgParams hlg;
  uint64_t seed = 0;
  bool logprobs = false;
  int top_logprobs = 0;  // alternatives per token
};

/// Throws Error naming the field when a parameter is out of its range.
void validate(const SamplingParams& params);

struct TokenLogprob {
  int token = 0;
  float logprob = 0.0f;
};

struct Sampled {
  int token = 0;
  float logprob = 0.0f;           // of `token`, after penalties and bias, before temperature and filters
  std::vector<TokenLogprob> top;  // top_logprobs entries, best first; ties by lower id
};

/// Draws tokens. Holds scratch memory only; one per thread of use.
class Sampler {
 public:
  /// Tokens that XTC never removes (end-of-sequence ids, newlines).
  explicit Sampler(std::vector<int> xtc_protected = {}) : xtc_protected_(std::move(xtc_protected)) {}

  /// The token at `position` (the absolute position that the new token will have). `history` = prompt + generated so
  /// far, for the penalties. `logits` [vocab] are modified in place. Equal logits: the lowest id wins. The draw depends
  /// on (seed, position) only.
  Sampled sample(std::span<float> logits, const SamplingParams& params, std::span<const int> history, int64_t position);

 private:
  std::vector<int> xtc_protected_;
  std::vector<std::pair<float, int>> candidates_;
  std::vector<std::pair<int, int>> counts_;
};

/// Uniform in [0, 1) from a counter-based generator (Philox 4x32-10): `stream` separates draws at one position.
double uniform(uint64_t seed, uint64_t position, uint32_t stream);

}  // namespace carat

// From logits to a token. Pure functions of (logits, parameters, history, position): no state besides the caller's.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "carat/sampling.h"
#include "sampling/distribution.h"
#include "sampling/penalties.h"
#include "sampling/random.h"

namespace carat {

struct Sampled {
  int token = 0;
  // Both only with SamplingParams::logprobs (else 0 and empty), after penalties and bias, before temperature and
  // filters.
  float logprob = 0.0f;           // of `token`
  std::vector<TokenLogprob> top;  // top_logprobs entries, best first; ties by lower id; impossible tokens are left out
};

/// Draws tokens. Holds scratch memory only; one per thread of use. After the first token of a vocabulary size nothing
/// is allocated except Sampled::top.
class Sampler {
 public:
  /// Tokens that XTC never removes (end-of-sequence ids, newlines).
  explicit Sampler(std::vector<int> xtc_protected = {}) : xtc_protected_(std::move(xtc_protected)) {}

  /// The token at `position` (the absolute position that the new token will have). `history` = prompt + generated so
  /// far, for the penalties. `logits` [vocab] are modified in place: scratch afterwards. Equal logits: the lowest id
  /// wins. The draw depends on (seed, position) only. A NaN logit counts as -infinity (never chosen), +infinity as the
  /// largest float. Throws Error when no token is left (no logits, or all of them -infinity or NaN).
  /// `allowed`: bit t of word t / 64 is set for tokens that may be drawn; all others get -infinity, after bias and
  /// penalties. Empty: all may.
  /// REQUIRES: validate(params) passed.
  Sampled sample(std::span<float> logits, const SamplingParams& params, std::span<const int> history, int64_t position,
                 std::span<const uint64_t> allowed = {});

 private:
  std::vector<int> xtc_protected_;
  Penalties penalties_;
  Distribution distribution_;
};

}  // namespace carat

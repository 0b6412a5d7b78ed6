// Sampling parameters of which some are left open: those of a request, or of a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "carat/sampling.h"

namespace carat {

/// The fields of SamplingParams that somebody may choose. Checks nothing: validate() does.
struct SamplingChoice {
  std::optional<float> temperature, top_p, min_p, xtc_probability, xtc_threshold;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k, repetition_context, presence_context, frequency_context;
  std::optional<uint64_t> seed;
  std::vector<std::pair<int, float>> logit_bias;  // empty: none was chosen
  std::optional<HlgParams> hlg;

  /// Sets in `params` what has been chosen.
  void apply_to(SamplingParams& params) const;
};

}  // namespace carat

// What changes logits before they become a distribution: bias and penalties.
#pragma once

#include <span>
#include <vector>

#include "carat/sampling.h"

namespace carat {

/// Holds scratch memory only (one counter per token, all zero between calls).
class Penalties {
 public:
  /// In this order, in float32, with "window" = the last n tokens of history (n = 0: all):
  ///   bias        l += b
  ///   repetition  l = l < 0 ? l * p : l / p   once for each token in the window
  ///   presence    l -= p                      once for each token in the window
  ///   frequency   l -= p * count              with its count in the window
  /// Ids outside the vocabulary (placeholders of images) are passed over.
  void apply(std::span<float> logits, const SamplingParams& params, std::span<const int> history);

 private:
  template <typename Change>
  void for_distinct(std::span<const int> window, size_t vocab, Change change);

  std::vector<int> counts_;
};

}  // namespace carat

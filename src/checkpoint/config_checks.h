// What every ModelConfig must satisfy, whichever file it came from.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/model_config.h"

namespace carat {

/// Largest values that any field may claim. Generous (ten times and more the largest Gemma), yet small enough that no
/// product of two or three of them overflows 64 bits.
struct ConfigLimits {
  static constexpr int64_t kHidden = 1 << 18;
  static constexpr int64_t kLayers = 1 << 12;
  static constexpr int64_t kHeads = 1 << 12;
  static constexpr int64_t kHeadDim = 1 << 14;
  static constexpr int64_t kWidth = 1 << 24;  // of an MLP
  static constexpr int64_t kVocab = 1 << 26;
  static constexpr int64_t kPositions = 1 << 30;
  static constexpr int64_t kExperts = 1 << 16;
  // Bounds of real numbers that only need to be sane.
  static constexpr double kTiny = 1e-9;
  static constexpr double kHuge = 1e18;
  static constexpr double kLeastEps = 1e-20;
  static constexpr int64_t kTokenId = (int64_t{1} << 31) - 1;
};

/// The layer whose K and V layer `layer` uses: itself for layers that have their own, else the last of those of its
/// kind. -1 when there is none.
int kv_donor(const ModelConfig& config, int layer);

/// Throws Error, naming `origin`, for a geometry that contradicts itself: odd head dims, heads that kv heads do not
/// divide, sharers without a donor of their kind and shape, windows missing, more chosen experts than experts …
void check_config(const ModelConfig& config, std::string_view origin);

}  // namespace carat

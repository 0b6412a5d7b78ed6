// How a model is loaded and run.
#pragma once

#include <cstdint>
#include <optional>

#include "carat/kv_format.h"

namespace carat {

enum class Precision : uint8_t {
  kExact,  // float32 activations against dequantised weights
  kFast,   // activations of quantised weights as 16-bit integers per group of 32; integer dot products
};

struct EngineOptions {
  int threads = 0;  // 0: one per physical core that the process may use
  Precision precision = Precision::kFast;
  /// Default: what kv_config.json in the model's directory says, else f16; f32 in exact mode.
  std::optional<KvChoice> kv = std::nullopt;
  int chunk = 512;  // prompt tokens per forward; results do not depend on it
};

}  // namespace carat

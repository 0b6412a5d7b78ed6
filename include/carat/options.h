// How a model is loaded and run.
#pragma once

#include <cstdint>
#include <optional>

namespace carat {

enum class Precision : uint8_t {
  kExact,  // float32 activations against dequantised weights
  kFast,   // activations of quantised weights as 16-bit integers per group of 32; integer dot products
};

/// Number format of cached keys and values.
enum class KvFormat : uint8_t { kF32, kF16, kBF16 };

struct EngineOptions {
  int threads = 0;  // 0: one per physical core that the process may use
  Precision precision = Precision::kFast;
  std::optional<KvFormat> kv = std::nullopt;  // default: f16, and f32 in exact mode
  int chunk = 512;                            // prompt tokens per forward; results do not depend on it

  KvFormat kv_format() const { return kv.value_or(precision == Precision::kExact ? KvFormat::kF32 : KvFormat::kF16); }
};

}  // namespace carat

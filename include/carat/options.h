// How a model is loaded and run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "carat/kv_format.h"

namespace carat {

enum class Precision : uint8_t {
  kExact,  // float32 activations against dequantised weights
  kFast,   // activations of quantised weights as 16-bit integers, one scale a row; integer dot products
};

struct EngineOptions {
  int threads = 0;  // 0: one per physical core that the process may use
  Precision precision = Precision::kFast;
  /// Default: what kv_config.json in the model's directory says, else f16; f32 in exact mode.
  std::optional<KvChoice> kv = std::nullopt;
  /// Sets KvFormats::recent of every layer, whatever `kv` or that file say: 0 to kMostRecentKv.
  std::optional<int> kv_recent = std::nullopt;
  int chunk = 512;  // prompt tokens per forward; results do not depend on it
  /// Most bytes of keys and values kept of earlier prompts, for prompts that begin like them; 0 for none. Default: a
  /// tenth of the memory, at most 1 GiB.
  std::optional<size_t> prefix_cache_bytes = std::nullopt;
  /// LoRA adapters that every token uses, their corrections added up: directories (or safetensors files) of mlx-lm or
  /// PEFT (docs/adapters.md).
  std::vector<std::filesystem::path> adapters = {};
};

}  // namespace carat

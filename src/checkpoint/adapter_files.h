// Files of LoRA adapters, as mlx-lm and PEFT write them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace carat {

/// adapter_config.json: which modules may be adapted, with which rank and scale. Both kinds of file become this.
struct AdapterConfig {
  enum class Layout : uint8_t { kMlx, kPeft };
  /// Exceptions for modules whose path is `pattern` or ends with ".pattern"; the first that fits counts.
  template <typename T>
  struct Exception {
    std::string pattern;
    T value;
  };

  Layout layout = Layout::kMlx;
  int rank = 0;
  double scale = 1.0;  // of mlx-lm
  double alpha = 0.0;  // of PEFT: the scale is alpha / rank, or alpha / sqrt(rank)
  bool by_root = false;
  std::vector<Exception<int>> ranks;
  std::vector<Exception<double>> alphas;
  int last_layers = 0;  // of mlx-lm: only so many layers from the end are adapted; 0 for all
  bool any_module = true;
  std::vector<std::string> modules;  // unless any_module: paths or ends of paths

  int rank_of(std::string_view path) const;
  double scale_of(std::string_view path) const;
  bool names(std::string_view path) const;
};

/// Throws Error naming the field for what is damaged and for kinds of adapters that are not plain LoRA: DoRA, trained
/// biases or whole modules, initialisations that change the model's own weights.
AdapterConfig parse_adapter_config(std::string_view text, std::string_view origin);

/// The correction of one weight: y += b (a x).
struct AdapterModule {
  std::string path;       // as the file spells it, for errors
  std::string canonical;  // "layers.3.self_attn.q_proj"
  int layer = 0;
  std::string_view projection;  // "self_attn.q_proj"; valid for ever
  int rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [rank, out], times the scale
};

struct AdapterFiles {
  std::vector<AdapterModule> modules;  // sorted by canonical name
  double scale = 1.0;                  // of the configuration, exceptions aside
  int unused = 0;  // modules that text never passes: towers of images and sound, keys and values of sharing layers
};

/// What an adapter takes once it is loaded.
struct AdapterSize {
  size_t bytes = 0;  // A and B of all modules as float32, whatever the file has
  int rank = 0;      // the largest
};

/// `path`: a directory with adapters.safetensors (mlx-lm) or adapter_model.safetensors (PEFT), or such a file, with
/// adapter_config.json beside it. Widths are checked against `config` as far as it tells them: columns. Throws Error
/// naming the tensor, file or field: a tensor that is no part of an adapted projection of a layer, half of a pair,
/// shapes that contradict each other or the configuration, values that are not finite.
AdapterFiles read_adapter(const std::filesystem::path& path, const ModelConfig& config);
/// The same, module by module: `take` gets each in their order, and the result has none. What it throws comes through.
AdapterFiles read_adapter(const std::filesystem::path& path, const ModelConfig& config,
                          const std::function<void(const AdapterModule&)>& take);
/// The same from parsed parts.
AdapterFiles read_adapter(const AdapterConfig& adapter, const SafetensorsFile& file, const ModelConfig& config);
/// Looks at headers alone. Throws like read_adapter(), values aside.
AdapterSize adapter_size(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace carat

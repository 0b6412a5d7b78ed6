// A LoRA adapter bound to a model: y = W x + scale * B (A x) in the projections that it names.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace carat {

class Model;

/// Immutable; shared by the batches that use it. Must not outlive the model's device.
class Adapter {
 public:
  /// `path`: a directory with adapters.safetensors + adapter_config.json (mlx-lm), or adapter_model.safetensors +
  /// adapter_config.json (PEFT); or such a safetensors file. Throws Error naming the tensor, file or field: a key that
  /// matches no projection of the model, half of a pair, a shape that does not fit, no config.
  static std::shared_ptr<const Adapter> load(const std::filesystem::path& path, const Model& model);
  /// Several at once: their corrections add up.
  static std::shared_ptr<const Adapter> stack(std::span<const std::shared_ptr<const Adapter>> adapters);

  ~Adapter();

  /// Tells its weights from all others': keys and values depend on it.
  const std::string& fingerprint() const;
  int rank() const;      // the largest
  double scale() const;  // of the config: alpha / rank, or mlx-lm's scale
  size_t bytes() const;
  int modules() const;  // projections that it changes

 private:
  struct Impl;
  explicit Adapter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  friend class Model;
};

}  // namespace carat

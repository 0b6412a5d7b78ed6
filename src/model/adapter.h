// A LoRA adapter bound to a model: y = W x + scale * B (A x) in the projections that it names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "compute/device.h"

namespace carat {

class Model;

/// Projections of a layer that can be adapted. On layers whose keys serve as values kKey changes both.
enum class LoraModule : uint8_t { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown, kPliGate, kPliProjection };
constexpr size_t kLoraModules = 9;

/// Immutable; shared by the batches that use it. Must not outlive the model's device.
class Adapter {
 public:
  /// `path`: a directory with adapters.safetensors + adapter_config.json (mlx-lm), or adapter_model.safetensors +
  /// adapter_config.json (PEFT); or such a safetensors file. Throws Error naming the tensor, file or field: a key that
  /// matches no projection of the model, half of a pair, a shape that does not fit, no config.
  static std::shared_ptr<const Adapter> load(const std::filesystem::path& path, const Model& model);
  /// Several at once: their corrections add up. Throws Error when there are none, or they are of different models.
  static std::shared_ptr<const Adapter> stack(std::span<const std::shared_ptr<const Adapter>> adapters);

  ~Adapter();

  /// Tells its weights from all others': keys and values depend on it. The same weights have the same one, whichever
  /// kind of file they came in.
  const std::string& fingerprint() const;
  int rank() const;      // the largest
  double scale() const;  // of the config: alpha / rank, or mlx-lm's scale; of a stack, its first adapter's
  size_t bytes() const;
  int modules() const;  // projections that it changes
  /// Modules in the file that have no part in text: towers of images and sound, keys and values of layers that use
  /// those of another layer.
  int unused() const;

  /// What it adds to one projection, in device memory; rank 0 where it adds nothing.
  LoraPair pair(int layer, LoraModule module) const;
  /// Whether its corrections have the device and the shapes of this model.
  bool fits(const Model& model) const;

 private:
  struct Impl;
  explicit Adapter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The stack of those at `paths`; null when there are none.
std::shared_ptr<const Adapter> load_adapters(std::span<const std::filesystem::path> paths, const Model& model);

}  // namespace carat

// The one implementation of Checkpoint: tables that the readers of the file formats fill.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"

namespace carat {

/// A stored vector: F32, F16 or BF16 values, not necessarily aligned.
struct StoredVector {
  WeightFormat format = WeightFormat::kF32;
  int64_t count = 0;
  const std::byte* data = nullptr;
};

/// Everything that a reader found. The views point into `files`.
struct CheckpointContents {
  std::filesystem::path path;
  ModelConfig config;
  std::map<std::string, Matrix, std::less<>> matrices;
  std::map<std::string, MatrixStack, std::less<>> stacks;
  std::map<std::string, StoredVector, std::less<>> vectors;
  std::vector<TensorInfo> tensors;
  size_t bytes_on_disk = 0;
  std::vector<int> stop_ids;
  Checkpoint::SamplingDefaults sampling_defaults;
  std::shared_ptr<const GgufFile> gguf;
  std::vector<std::shared_ptr<const void>> files;  // keeps the mappings alive
};

class LoadedCheckpoint final : public Checkpoint {
 public:
  /// Sorts the stop ids and drops duplicates; takes the rest as it is.
  explicit LoadedCheckpoint(CheckpointContents contents);

  const ModelConfig& config() const override { return contents_.config; }
  std::optional<Matrix> matrix(std::string_view name) const override;
  std::optional<MatrixStack> stack(std::string_view name) const override;
  std::optional<std::vector<float>> vector(std::string_view name) const override;
  const std::vector<TensorInfo>& tensors() const override { return contents_.tensors; }
  size_t bytes_on_disk() const override { return contents_.bytes_on_disk; }
  const std::filesystem::path& path() const override { return contents_.path; }
  const GgufFile* gguf() const override { return contents_.gguf.get(); }
  const std::vector<int>& stop_ids() const override { return contents_.stop_ids; }
  const SamplingDefaults& sampling_defaults() const override { return contents_.sampling_defaults; }

 private:
  CheckpointContents contents_;
};

/// Registers the stack of gate projections and that of up projections inside a fused one: in each expert the rows of
/// the gate come first. Throws Error naming `origin` and `name` when the rows are odd in number.
void add_gate_up(CheckpointContents& contents, const MatrixStack& fused, const std::string& layer_prefix,
                 std::string_view origin, std::string_view name);

/// Directory of safetensors; a .gguf file or the first of a split set.
std::shared_ptr<const Checkpoint> open_safetensors_checkpoint(const std::filesystem::path& directory);
std::shared_ptr<const Checkpoint> open_gguf_checkpoint(const std::filesystem::path& path);

}  // namespace carat

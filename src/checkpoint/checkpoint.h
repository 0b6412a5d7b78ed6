// A model on disk: configuration and tensors under canonical names, whatever the file format.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "quant/matrix.h"

namespace carat {

class GgufFile;

/// One stored tensor, for `inspect`.
struct TensorInfo {
  std::string name;            // as in the file
  std::string canonical;       // empty when the text model does not use it (vision, audio, redundant K/V …)
  std::vector<int64_t> shape;  // outermost first
  std::string format;          // "BF16", "Q4_K", "affine 4-bit g64" …
  size_t bytes = 0;            // scales included
};

/// An opened checkpoint: a directory with config.json and safetensors (Hugging Face or MLX layout), or a .gguf file
/// (possibly the first of a split set). All files stay mapped while it lives; matrices are views into them.
/// Canonical names are those of transformers without prefix and without ".weight":
///   embed_tokens, norm, lm_head (untied only), embed_tokens_per_layer, per_layer_model_projection,
///   per_layer_projection_norm, and per layer "layers.I." +
///   input_layernorm, post_attention_layernorm, pre_feedforward_layernorm, post_feedforward_layernorm, layer_scalar,
///   self_attn.{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm}, mlp.{gate_proj,up_proj,down_proj},
///   per_layer_input_gate, per_layer_projection, post_per_layer_input_norm,
///   router.proj, router.scale, router.per_expert_scale, post_feedforward_layernorm_1, post_feedforward_layernorm_2,
///   pre_feedforward_layernorm_2, experts.{gate_proj,up_proj,down_proj} (stacks).
/// Immutable after open; safe to use from many threads.
class Checkpoint {
 public:
  /// Throws Error when a file is missing, damaged, or not a Gemma text model. Shapes and sizes of every tensor that
  /// is handed out are checked against the file; shapes against the config are the model's business.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& path);

  virtual ~Checkpoint() = default;

  virtual const ModelConfig& config() const = 0;

  /// The 2-D weight of that name; nullopt when the checkpoint has none.
  virtual std::optional<Matrix> matrix(std::string_view name) const = 0;
  /// The experts' weights of that name ("layers.3.experts.gate_proj"); fused and split files both.
  virtual std::optional<MatrixStack> stack(std::string_view name) const = 0;
  /// A 1-D tensor as float32 (norm weights as stored: see ModelConfig::norm_plus_one); nullopt when absent.
  virtual std::optional<std::vector<float>> vector(std::string_view name) const = 0;

  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// Sizes of all files together.
  virtual size_t bytes_on_disk() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  /// The GGUF file (its first part) when the checkpoint is one, for the tokenizer inside it; else null.
  virtual const GgufFile* gguf() const = 0;
  /// Stop tokens named by config.json, generation_config.json, tokenizer metadata (GGUF: eos, eot, eom ids): a union,
  /// sorted, without duplicates.
  virtual const std::vector<int>& stop_ids() const = 0;
  /// temperature, top_k, top_p of generation_config.json when it has them.
  struct SamplingDefaults {
    std::optional<double> temperature, top_p;
    std::optional<int> top_k;
  };
  virtual const SamplingDefaults& sampling_defaults() const = 0;
};

}  // namespace carat

// The tensors of a Gemma text model: canonical names, and how Hugging Face and MLX spell them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/model_config.h"

namespace carat {

enum class TensorKind : uint8_t { kVector, kMatrix, kStack };

/// What a canonical name stands for. The expected columns are what the config asks for, needed to tell the bit width of
/// packed weights; vectors have 0.
struct KnownTensor {
  TensorKind kind = TensorKind::kVector;
  int layer = -1;    // -1: not of a layer
  int64_t cols = 0;  // of a matrix, or of each matrix of a stack
};

/// Looks up a canonical name ("layers.3.mlp.up_proj"; here "layers.3.experts.gate_up_proj" too, the fused stack). False
/// when a text model of that config has no such tensor.
bool find_known_tensor(const ModelConfig& config, std::string_view canonical, KnownTensor& known);

/// Something of a known module outside the layers that is not the module itself ("embed_tokens.global_scale",
/// "lm_head.bias"): without it the module would mean something else.
bool is_part_of_top_module(std::string_view canonical);

/// K and V weights of layers that use those of another layer. Google's files carry them, re-saved ones do not.
bool is_redundant_kv(const ModelConfig& config, std::string_view canonical);

/// Tables of which a token reads one row; all other tensors are read whole. The token embeddings are one unless they
/// are the head, too.
bool is_read_by_row(const ModelConfig& config, std::string_view canonical);

/// Part of a module that one stored tensor is.
enum class ModulePart : uint8_t { kWeight, kScales, kBiases };

/// A stored name taken apart: "language_model.model.layers.0.mlp.up_proj.scales" is module "layers.0.mlp.up_proj" (as a
/// path in the file: "language_model.model.layers.0.mlp.up_proj"), part kScales.
struct StoredName {
  std::string path;       // the module as the file spells it
  std::string canonical;  // the module in canonical form
  ModulePart part = ModulePart::kWeight;
};
StoredName parse_stored_name(std::string_view name);

/// Canonical form of a module path with any of the prefixes that are in use.
std::string canonical_module(std::string_view path);

/// Tensors of towers for images and sound, and leftovers of clipping and rotary tables: no part of the text model.
bool is_foreign_tensor(std::string_view name);

}  // namespace carat

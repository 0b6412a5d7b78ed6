// What config.json or GGUF metadata say about a model, validated; nothing is defaulted silently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

enum class Family : uint8_t { kGemma3, kGemma4 };
enum class LayerKind : uint8_t { kSliding, kFull };

/// Rotary position embedding of one layer kind. Pair i of a head of width D is dims (i, i + D/2); its angle at position
/// p is p * frequency(i).
///   default:      frequency(i) = theta^(-2i/D) / factor
///   proportional: the same for i < partial * D / 2, zero (identity) beyond: the exponent runs over the whole D.
struct RopeConfig {
  enum class Type : uint8_t { kDefault, kProportional } type = Type::kDefault;
  double theta = 10000.0;
  double partial = 1.0;  // partial_rotary_factor, used by kProportional only
  double factor = 1.0;   // divides the frequency (Gemma 3 "linear" scaling on global layers)
};

/// Attention shape of one layer.
struct AttentionConfig {
  LayerKind kind = LayerKind::kSliding;
  int head_dim = 0;
  int kv_heads = 0;
  bool k_eq_v = false;  // no v_proj: the value is the raw key projection, before k_norm and RoPE
};

struct ModelConfig {
  Family family = Family::kGemma4;
  std::string model_type;  // as the file says, e.g. "gemma4", "gemma3_text", "gemma4 (GGUF)"
  int hidden = 0;
  int heads = 0;  // query heads, all layers
  int vocab = 0;
  std::vector<AttentionConfig> layers;  // one entry per layer
  std::vector<int> mlp_width;           // intermediate size per layer (double-wide already applied)
  int window = 0;                       // sliding layers see keys with 0 <= i - j < window
  double attention_scale = 1.0;         // Gemma 4: exactly 1; Gemma 3: query_pre_attn_scalar^-0.5
  double norm_eps = 1e-6;
  bool norm_plus_one = false;  // stored norm weights are w of (1 + w): Gemma 3 safetensors, not GGUF
  RopeConfig rope_sliding;
  RopeConfig rope_full;
  std::optional<double> final_softcap;
  int kv_shared_layers = 0;  // the last n layers have no K/V of their own
  int pli_width = 0;         // hidden_size_per_layer_input, 0 = none
  int pli_vocab = 0;         // rows of the per-layer embedding table
  int experts = 0;           // 0 = dense
  int experts_per_token = 0;
  int expert_width = 0;
  bool tied_head = true;
  int max_positions = 0;
  std::vector<int> eos_ids;  // from the config alone; the stop set is a union (docs/cli.md)
  int bos_id = 2;

  int layer_count() const { return static_cast<int>(layers.size()); }
  bool has_moe() const { return experts > 0; }
};

/// Parses a config.json (nested text_config or flat; older fields or `per_layer_config`). `origin` names the file in
/// errors. Throws Error for anything missing, contradictory or unsupported.
ModelConfig parse_config_json(std::string_view json, std::string_view origin);

}  // namespace carat

#include "checkpoint/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace carat {

namespace {

/// What the columns of a weight are.
enum class Cols : uint8_t { kNone, kHidden, kHeads, kMlp, kPli, kPliAll, kExpert };

/// Which models have it.
enum class Only : uint8_t { kAll, kMoe, kPli };

struct Entry {
  std::string_view name;
  TensorKind kind;
  Cols cols;
  Only only = Only::kAll;
};

constexpr Entry kTop[] = {
    {"embed_tokens", TensorKind::kMatrix, Cols::kHidden},
    {"norm", TensorKind::kVector, Cols::kNone},
    {"lm_head", TensorKind::kMatrix, Cols::kHidden},
    {"embed_tokens_per_layer", TensorKind::kMatrix, Cols::kPliAll, Only::kPli},
    {"per_layer_model_projection", TensorKind::kMatrix, Cols::kHidden, Only::kPli},
    {"per_layer_projection_norm", TensorKind::kVector, Cols::kNone, Only::kPli},
};

constexpr Entry kPerLayer[] = {
    {"input_layernorm", TensorKind::kVector, Cols::kNone},
    {"post_attention_layernorm", TensorKind::kVector, Cols::kNone},
    {"pre_feedforward_layernorm", TensorKind::kVector, Cols::kNone},
    {"post_feedforward_layernorm", TensorKind::kVector, Cols::kNone},
    {"layer_scalar", TensorKind::kVector, Cols::kNone},
    {"self_attn.q_proj", TensorKind::kMatrix, Cols::kHidden},
    {"self_attn.k_proj", TensorKind::kMatrix, Cols::kHidden},
    {"self_attn.v_proj", TensorKind::kMatrix, Cols::kHidden},
    {"self_attn.o_proj", TensorKind::kMatrix, Cols::kHeads},
    {"self_attn.q_norm", TensorKind::kVector, Cols::kNone},
    {"self_attn.k_norm", TensorKind::kVector, Cols::kNone},
    {"mlp.gate_proj", TensorKind::kMatrix, Cols::kHidden},
    {"mlp.up_proj", TensorKind::kMatrix, Cols::kHidden},
    {"mlp.down_proj", TensorKind::kMatrix, Cols::kMlp},
    {"per_layer_input_gate", TensorKind::kMatrix, Cols::kHidden, Only::kPli},
    {"per_layer_projection", TensorKind::kMatrix, Cols::kPli, Only::kPli},
    {"post_per_layer_input_norm", TensorKind::kVector, Cols::kNone, Only::kPli},
    {"router.proj", TensorKind::kMatrix, Cols::kHidden, Only::kMoe},
    {"router.scale", TensorKind::kVector, Cols::kNone, Only::kMoe},
    {"router.per_expert_scale", TensorKind::kVector, Cols::kNone, Only::kMoe},
    {"post_feedforward_layernorm_1", TensorKind::kVector, Cols::kNone, Only::kMoe},
    {"post_feedforward_layernorm_2", TensorKind::kVector, Cols::kNone, Only::kMoe},
    {"pre_feedforward_layernorm_2", TensorKind::kVector, Cols::kNone, Only::kMoe},
    {"experts.gate_proj", TensorKind::kStack, Cols::kHidden, Only::kMoe},
    {"experts.up_proj", TensorKind::kStack, Cols::kHidden, Only::kMoe},
    {"experts.gate_up_proj", TensorKind::kStack, Cols::kHidden, Only::kMoe},
    {"experts.down_proj", TensorKind::kStack, Cols::kExpert, Only::kMoe},
};

constexpr std::string_view kLayers = "layers.";

/// Splits "layers.12.mlp.up_proj" into 12 and "mlp.up_proj"; false when it is not of that form.
bool split_layer(std::string_view name, int& layer, std::string_view& rest) {
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<size_t>(parsed.ptr - name.data());
  if (parsed.ec != std::errc() || layer < 0 || digits >= name.size() || name[digits] != '.') return false;
  if (digits > 1 && name[0] == '0') return false;  // "layers.03" would be a second spelling of layer 3
  rest = name.substr(digits + 1);
  return true;
}

int64_t columns(const ModelConfig& config, Cols cols, int layer) {
  switch (cols) {
    case Cols::kNone:
      return 0;
    case Cols::kHidden:
      return config.hidden;
    case Cols::kHeads:
      return int64_t{config.heads} * config.layers[layer].head_dim;
    case Cols::kMlp:
      return config.mlp_width[layer];
    case Cols::kPli:
      return config.pli_width;
    case Cols::kPliAll:
      return int64_t{config.pli_width} * config.layer_count();
    case Cols::kExpert:
      return config.expert_width;
  }
  return 0;
}

}  // namespace

bool find_known_tensor(const ModelConfig& config, std::string_view canonical, KnownTensor& known) {
  int layer = -1;
  std::string_view name = canonical;
  const bool of_layer = split_layer(canonical, layer, name);
  if (of_layer && layer >= config.layer_count()) return false;
  const Entry* const first = of_layer ? std::begin(kPerLayer) : std::begin(kTop);
  const Entry* const last = of_layer ? std::end(kPerLayer) : std::end(kTop);
  const Entry* const entry = std::find_if(first, last, [&](const Entry& e) { return e.name == name; });
  if (entry == last) return false;
  if (entry->only == Only::kMoe && !config.has_moe()) return false;
  if (entry->only == Only::kPli && config.pli_width == 0) return false;
  known = {entry->kind, layer, columns(config, entry->cols, layer)};
  return true;
}

bool is_part_of_top_module(std::string_view canonical) {
  return std::any_of(std::begin(kTop), std::end(kTop), [&](const Entry& entry) {
    return canonical.size() > entry.name.size() && canonical.starts_with(entry.name) &&
           canonical[entry.name.size()] == '.';
  });
}

bool is_read_by_row(const ModelConfig& config, std::string_view canonical) {
  return canonical == "embed_tokens_per_layer" || (canonical == "embed_tokens" && !config.tied_head);
}

bool is_redundant_kv(const ModelConfig& config, std::string_view canonical) {
  int layer = -1;
  std::string_view name;
  if (!split_layer(canonical, layer, name) || layer < config.layer_count() - config.kv_shared_layers) return false;
  return name == "self_attn.k_proj" || name == "self_attn.v_proj" || name == "self_attn.k_norm";
}

std::string canonical_module(std::string_view path) {
  // Longest first: a multimodal checkpoint of Hugging Face, one of MLX, a text model, MLX's lm_head.
  constexpr std::string_view kPrefixes[] = {"model.language_model.", "language_model.model.", "model.",
                                            "language_model."};
  for (const std::string_view prefix : kPrefixes) {
    if (!path.starts_with(prefix)) continue;
    path.remove_prefix(prefix.size());
    break;
  }
  std::string name(path);
  constexpr std::string_view kSwitch = ".experts.switch_glu.";
  if (const auto at = name.find(kSwitch); at != std::string::npos) name.replace(at, kSwitch.size(), ".experts.");
  return name;
}

StoredName parse_stored_name(std::string_view name) {
  StoredName parts;
  std::string_view path = name;
  const auto strip = [&](std::string_view suffix, ModulePart part) {
    if (path.size() != name.size() || !path.ends_with(suffix)) return;
    path.remove_suffix(suffix.size());
    parts.part = part;
  };
  strip(".weight", ModulePart::kWeight);
  strip(".scales", ModulePart::kScales);
  strip(".biases", ModulePart::kBiases);
  parts.path = path;
  parts.canonical = canonical_module(path);
  return parts;
}

bool is_foreign_tensor(std::string_view name) {
  constexpr std::string_view kModules[] = {"vision_tower",    "audio_tower",           "embed_vision",  "embed_audio",
                                           "vision_embedder", "multi_modal_projector", "audio_embedder"};
  constexpr std::string_view kLeaves[] = {"rotary_emb", "input_min", "input_max", "output_min", "output_max"};
  // By whole path segments, so that no part of a text tensor's name can match by accident.
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view segment = name.substr(0, dot);
    if (std::find(std::begin(kModules), std::end(kModules), segment) != std::end(kModules)) return true;
    if (std::find(std::begin(kLeaves), std::end(kLeaves), segment) != std::end(kLeaves)) return true;
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  return false;
}

}  // namespace carat

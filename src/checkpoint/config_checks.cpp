#include "checkpoint/config_checks.h"

#include "base/error.h"

namespace carat {

namespace {

std::string_view name_of(LayerKind kind) {
  return kind == LayerKind::kSliding ? "sliding" : "full";
}

void check_range(std::string_view origin, std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) fail("{}: {} is {}, expected {} to {}", origin, what, value, least, most);
}

/// NaN is in no range.
void check_number(std::string_view origin, std::string_view what, double value, double least, double most) {
  if (!(value >= least && value <= most)) fail("{}: {} is {}, expected {} to {}", origin, what, value, least, most);
}

void check_rope(std::string_view origin, std::string_view kind, const RopeConfig& rope) {
  using Limits = ConfigLimits;
  check_number(origin, fmt::format("the RoPE base of {} layers", kind), rope.theta, Limits::kTiny, Limits::kHuge);
  check_number(origin, fmt::format("the RoPE scaling factor of {} layers", kind), rope.factor, Limits::kTiny,
               Limits::kHuge);
  if (!(rope.partial > 0) || rope.partial > 1) {
    fail("{}: the partial rotary factor of {} layers is {}, expected more than 0 and at most 1", origin, kind,
         rope.partial);
  }
}

void check_attention(const ModelConfig& config, std::string_view origin) {
  bool sliding = false;
  for (int i = 0; i < config.layer_count(); ++i) {
    const AttentionConfig& layer = config.layers[i];
    sliding = sliding || layer.kind == LayerKind::kSliding;
    check_range(origin, fmt::format("the head dimension of layer {}", i), layer.head_dim, 2, ConfigLimits::kHeadDim);
    if (layer.head_dim % 2 != 0) {
      fail("{}: the head dimension of layer {} is {}, RoPE needs an even number", origin, i, layer.head_dim);
    }
    check_range(origin, fmt::format("the number of key/value heads of layer {}", i), layer.kv_heads, 1,
                ConfigLimits::kHeads);
    if (config.heads % layer.kv_heads != 0) {
      fail("{}: layer {} has {} key/value heads, which do not divide the {} query heads", origin, i, layer.kv_heads,
           config.heads);
    }
    check_range(origin, fmt::format("the MLP width of layer {}", i), config.mlp_width[i], 1, ConfigLimits::kWidth);
  }
  if (sliding) check_range(origin, "the sliding window", config.window, 1, ConfigLimits::kPositions);
}

void check_sharing(const ModelConfig& config, std::string_view origin) {
  const int layers = config.layer_count();
  if (config.kv_shared_layers == layers) {
    fail(
        "{}: all {} layers share the keys and values of others, so this is a drafter for another model and cannot run "
        "by "
        "itself",
        origin, layers);
  }
  check_range(origin, "the number of layers that share keys and values", config.kv_shared_layers, 0, layers);
  for (int i = layers - config.kv_shared_layers; i < layers; ++i) {
    const AttentionConfig& layer = config.layers[i];
    const int donor = kv_donor(config, i);
    if (donor < 0) {
      fail("{}: layer {} shares keys and values, but no layer below {} is of its kind ({})", origin, i,
           layers - config.kv_shared_layers, name_of(layer.kind));
    }
    const AttentionConfig& source = config.layers[donor];
    if (source.head_dim != layer.head_dim || source.kv_heads != layer.kv_heads) {
      fail("{}: layer {} ({} heads of {}) cannot share the keys and values of layer {} ({} heads of {})", origin, i,
           layer.kv_heads, layer.head_dim, donor, source.kv_heads, source.head_dim);
    }
  }
}

}  // namespace

int kv_donor(const ModelConfig& config, int layer) {
  const int own = config.layer_count() - config.kv_shared_layers;
  if (layer < own) return layer;
  for (int i = own - 1; i >= 0; --i) {
    if (config.layers[i].kind == config.layers[layer].kind) return i;
  }
  return -1;
}

void check_config(const ModelConfig& config, std::string_view origin) {
  check_range(origin, "the hidden size", config.hidden, 1, ConfigLimits::kHidden);
  check_range(origin, "the number of layers", config.layer_count(), 1, ConfigLimits::kLayers);
  check_range(origin, "the number of query heads", config.heads, 1, ConfigLimits::kHeads);
  check_range(origin, "the vocabulary size", config.vocab, 1, ConfigLimits::kVocab);
  check_range(origin, "the number of positions", config.max_positions, 1, ConfigLimits::kPositions);
  if (config.mlp_width.size() != config.layers.size()) {
    fail("{}: {} MLP widths for {} layers", origin, config.mlp_width.size(), config.layers.size());
  }
  check_attention(config, origin);
  check_sharing(config, origin);
  check_rope(origin, "sliding", config.rope_sliding);
  check_rope(origin, "full", config.rope_full);
  check_number(origin, "the epsilon of the norms", config.norm_eps, ConfigLimits::kLeastEps, 1);
  check_number(origin, "the attention scale", config.attention_scale, ConfigLimits::kTiny, ConfigLimits::kHuge);
  if (config.final_softcap) {
    check_number(origin, "the final softcap", *config.final_softcap, ConfigLimits::kTiny, ConfigLimits::kHuge);
  }
  if (config.pli_width != 0) {
    check_range(origin, "the width of the per-layer inputs", config.pli_width, 1, ConfigLimits::kHidden);
    check_range(origin, "the vocabulary of the per-layer inputs", config.pli_vocab, 1, ConfigLimits::kVocab);
  }
  if (config.experts != 0) {
    check_range(origin, "the number of experts", config.experts, 1, ConfigLimits::kExperts);
    check_range(origin, "the number of experts per token", config.experts_per_token, 1, config.experts);
    check_range(origin, "the width of an expert", config.expert_width, 1, ConfigLimits::kWidth);
  }
}

}  // namespace carat

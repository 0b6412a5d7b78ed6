#include "checkpoint/config_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "checkpoint/config_checks.h"

namespace carat {

namespace {

using Limits = ConfigLimits;

constexpr std::string_view kSupported = "gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, gemma3, gemma3_text";

/// Values that transformers' Gemma3TextConfig fills in. Google's multimodal Gemma 3 files (4B, 12B, 27B) leave out of
/// text_config whatever equals them, so for those files, and only for those, a missing field means this value.
namespace gemma3_defaults {
constexpr int64_t kHeads = 8;
constexpr int64_t kKvHeads = 4;
constexpr int64_t kHeadDim = 256;
constexpr int64_t kVocab = 262208;
constexpr int64_t kPositions = 131072;
constexpr int64_t kPattern = 6;
constexpr double kEps = 1e-6;
constexpr double kQueryScalar = 256;
constexpr double kTheta = 1e6;
constexpr double kLocalTheta = 1e4;
}  // namespace gemma3_defaults

/// The two objects that a field may be in: text_config when the file nests, else the file itself.
struct Source {
  JsonObject top;
  JsonObject text;
  bool nested;
};

int narrow(int64_t value) {
  return static_cast<int>(value);
}

int required(const JsonObject& fields, std::string_view key, int64_t most) {
  return narrow(fields.integer(key, 1, most));
}

/// A count that files state as 0 or null when they do without.
int count_or_zero(const JsonObject& fields, std::string_view key, int64_t most) {
  if (!fields.stated(key)) fail("{} is missing (null or 0 would mean none)", fields.where(key));
  return narrow(fields.maybe_integer(key, 0, most).value_or(0));
}

/// A switch that Gemma 4 files always state: transformers and mlx-lm disagree about what its absence would mean.
bool stated_switch(const JsonObject& fields, std::string_view key) {
  if (!fields.stated(key)) fail("{} is missing", fields.where(key));
  return fields.maybe_boolean(key).value_or(false);
}

Family family_of(const JsonObject& fields) {
  const std::string_view type = fields.string("model_type");
  if (type == "gemma4" || type == "gemma4_text" || type == "gemma4_unified" || type == "gemma4_unified_text") {
    return Family::kGemma4;
  }
  if (type == "gemma3" || type == "gemma3_text") return Family::kGemma3;
  if (type.ends_with("_assistant")) {
    fail("{} is '{}': a drafter for another model, which cannot run by itself", fields.where("model_type"), type);
  }
  fail("{} is '{}', supported are {}", fields.where("model_type"), type, kSupported);
}

/// Appends the ids that are not there yet.
void append_ids(const JsonObject& fields, std::vector<int>& ids) {
  for (const int id : fields.token_ids("eos_token_id")) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

/// Things that would change the arithmetic and that neither family has.
void refuse_unsupported(const JsonObject& text) {
  if (const auto activation = text.maybe_string("hidden_activation");
      activation && *activation != "gelu_pytorch_tanh") {
    fail("{} is '{}', expected gelu_pytorch_tanh", text.where("hidden_activation"), *activation);
  }
  if (text.maybe_boolean("attention_bias").value_or(false)) {
    fail("{} is true: biases in attention are not supported", text.where("attention_bias"));
  }
  if (text.find("attn_logit_softcapping")) {
    fail("{} is set: softcapped attention (Gemma 2) is not supported", text.where("attn_logit_softcapping"));
  }
  if (const auto mode = text.find("use_bidirectional_attention")) {
    // "vision" lets the tokens of one image see each other; text stays causal. false is what the 270M file says.
    std::string_view name;
    bool on = true;
    const bool causal =
        (mode->get(on) == simdjson::SUCCESS && !on) || (mode->get(name) == simdjson::SUCCESS && name == "vision");
    if (!causal) {
      fail("{} is {}: models with bidirectional attention (embedding models) are not supported",
           text.where("use_bidirectional_attention"), describe(*mode));
    }
  }
}

std::vector<LayerKind> read_layer_types(const JsonObject& text, simdjson::dom::array list, size_t layers) {
  if (list.size() != layers) {
    fail("{} has {} entries for {} layers", text.where("layer_types"), list.size(), layers);
  }
  std::vector<LayerKind> kinds;
  kinds.reserve(layers);
  for (const auto item : list) {
    std::string_view name;
    if (item.get(name) != simdjson::SUCCESS || (name != "sliding_attention" && name != "full_attention")) {
      fail("{} holds {}, expected sliding_attention or full_attention", text.where("layer_types"), describe(item));
    }
    kinds.push_back(name == "full_attention" ? LayerKind::kFull : LayerKind::kSliding);
  }
  return kinds;
}

std::vector<LayerKind> layer_kinds(const Source& source, Family family, int layers) {
  const JsonObject& text = source.text;
  if (const auto list = text.maybe_array("layer_types")) return read_layer_types(text, *list, layers);
  if (family == Family::kGemma4) fail("{} is missing", text.where("layer_types"));
  auto pattern = text.maybe_integer("sliding_window_pattern", 1, Limits::kLayers);
  if (!pattern) pattern = text.maybe_integer("_sliding_window_pattern", 1, Limits::kLayers);
  if (!pattern && source.nested) pattern = gemma3_defaults::kPattern;
  if (!pattern) {
    fail("{} is missing, and there is no sliding_window_pattern either", text.where("layer_types"));
  }
  std::vector<LayerKind> kinds(layers);
  for (int i = 0; i < layers; ++i) {
    kinds[i] = (i + 1) % *pattern == 0 ? LayerKind::kFull : LayerKind::kSliding;
  }
  return kinds;
}

/// One entry of rope_parameters.
RopeConfig read_rope(const JsonObject& fields) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", Limits::kTiny, Limits::kHuge);
  const std::string_view type = fields.string("rope_type");
  if (type == "proportional") {
    rope.type = RopeConfig::Type::kProportional;
    rope.partial = fields.number("partial_rotary_factor", 0, 1);
  } else if (type == "default" || type == "linear") {
    // transformers ignores the factor for these types; a file that states one other than 1 expects something else.
    if (fields.maybe_number("partial_rotary_factor", 0, 1).value_or(1.0) != 1.0) {
      fail("{} is not 1, which rope_type '{}' does not support", fields.where("partial_rotary_factor"), type);
    }
  } else {
    fail("{} is '{}', supported are default, linear and proportional", fields.where("rope_type"), type);
  }
  if (type == "default") {
    if (fields.maybe_number("factor", 0, Limits::kHuge).value_or(1.0) != 1.0) {
      fail("{} is not 1, which rope_type 'default' does not support", fields.where("factor"));
    }
  } else if (type == "linear") {
    rope.factor = fields.number("factor", Limits::kTiny, Limits::kHuge);
  } else {
    rope.factor = fields.maybe_number("factor", Limits::kTiny, Limits::kHuge).value_or(1.0);
  }
  return rope;
}

void read_rope_parameters(const JsonObject& parameters, ModelConfig& config) {
  const auto uses = [&](LayerKind kind) {
    return std::any_of(config.layers.begin(), config.layers.end(), [&](const auto& l) { return l.kind == kind; });
  };
  if (uses(LayerKind::kSliding)) config.rope_sliding = read_rope(parameters.object("sliding_attention"));
  if (uses(LayerKind::kFull)) config.rope_full = read_rope(parameters.object("full_attention"));
}

/// Gemma 3 before transformers 5: two bases, and rope_scaling, which concerns the global layers alone.
void read_gemma3_rope(const Source& source, ModelConfig& config) {
  const JsonObject& text = source.text;
  const auto base = [&](std::string_view key, double missing) {
    return source.nested ? text.maybe_number(key, Limits::kTiny, Limits::kHuge).value_or(missing)
                         : text.number(key, Limits::kTiny, Limits::kHuge);
  };
  config.rope_full.theta = base("rope_theta", gemma3_defaults::kTheta);
  config.rope_sliding.theta = base("rope_local_base_freq", gemma3_defaults::kLocalTheta);
  const auto scaling = text.maybe_object("rope_scaling");
  if (!scaling) return;
  auto type = scaling->maybe_string("rope_type");
  if (!type) type = scaling->string("type");
  if (*type == "default") return;
  if (*type != "linear") fail("{} is '{}', supported are default and linear", scaling->where("rope_type"), *type);
  config.rope_full.factor = scaling->number("factor", Limits::kTiny, Limits::kHuge);
}

void read_common(const Source& source, ModelConfig& config) {
  const JsonObject& text = source.text;
  config.model_type = source.top.string("model_type");
  config.hidden = required(text, "hidden_size", Limits::kHidden);
  const auto softcap = text.maybe_number("final_logit_softcapping", 0, Limits::kHuge);
  if (softcap && *softcap > 0) config.final_softcap = softcap;
  // Every published Gemma is tied, and older Gemma 3 files do not say so; an untied one always states it.
  auto tied = text.maybe_boolean("tie_word_embeddings");
  if (source.nested && !tied) tied = source.top.maybe_boolean("tie_word_embeddings");
  config.tied_head = tied.value_or(true);
  append_ids(source.top, config.eos_ids);
  if (source.nested) append_ids(text, config.eos_ids);
  // Nested Gemma 3 files leave it out; it is 2 in every Gemma.
  auto bos = text.maybe_integer("bos_token_id", 0, Limits::kTokenId);
  if (source.nested && !bos) bos = source.top.maybe_integer("bos_token_id", 0, Limits::kTokenId);
  config.bos_id = narrow(bos.value_or(2));
}

void parse_gemma3(const Source& source, ModelConfig& config) {
  namespace defaults = gemma3_defaults;
  const JsonObject& text = source.text;
  const auto integer = [&](std::string_view key, int64_t most, int64_t missing) {
    return narrow(source.nested ? text.maybe_integer(key, 1, most).value_or(missing) : text.integer(key, 1, most));
  };
  const auto number = [&](std::string_view key, double least, double most, double missing) {
    return source.nested ? text.maybe_number(key, least, most).value_or(missing) : text.number(key, least, most);
  };
  const int layers = required(text, "num_hidden_layers", Limits::kLayers);
  const int width = required(text, "intermediate_size", Limits::kWidth);
  config.heads = integer("num_attention_heads", Limits::kHeads, defaults::kHeads);
  config.vocab = integer("vocab_size", Limits::kVocab, defaults::kVocab);
  config.max_positions = integer("max_position_embeddings", Limits::kPositions, defaults::kPositions);
  config.norm_eps = number("rms_norm_eps", Limits::kLeastEps, 1, defaults::kEps);
  config.attention_scale =
      1 / std::sqrt(number("query_pre_attn_scalar", Limits::kTiny, Limits::kHuge, defaults::kQueryScalar));
  config.norm_plus_one = true;
  config.mlp_width.assign(layers, width);

  AttentionConfig attention;
  attention.head_dim = integer("head_dim", Limits::kHeadDim, defaults::kHeadDim);
  attention.kv_heads = integer("num_key_value_heads", Limits::kHeads, defaults::kKvHeads);
  for (const LayerKind kind : layer_kinds(source, Family::kGemma3, layers)) {
    attention.kind = kind;
    config.layers.push_back(attention);
  }
  config.window = narrow(text.maybe_integer("sliding_window", 0, Limits::kPositions).value_or(0));
  if (const auto parameters = text.maybe_object("rope_parameters")) {
    read_rope_parameters(*parameters, config);
  } else {
    read_gemma3_rope(source, config);
  }
}

/// `per_layer_config`: what transformers writes since 5.24 in place of global_head_dim and num_global_key_value_heads.
/// Keys are layer numbers; a field that a layer does not override is absent.
void read_per_layer(const JsonObject& text, const JsonObject& overrides, ModelConfig& config) {
  const bool had_head_dim = text.find("global_head_dim").has_value();
  const bool had_kv_heads = text.find("num_global_key_value_heads").has_value();
  for (const auto field : overrides.fields()) {
    int index = -1;
    const char* end = field.key.data() + field.key.size();
    const auto parsed = std::from_chars(field.key.data(), end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end || index < 0 || index >= config.layer_count()) {
      fail("{} is not the number of one of the {} layers", overrides.where(field.key), config.layer_count());
    }
    AttentionConfig& layer = config.layers[index];
    const JsonObject entry = overrides.child(field.value, field.key);
    const auto apply = [&](std::string_view key, int64_t most, bool stated_elsewhere, int& value) {
      const auto found = entry.maybe_integer(key, 1, most);
      if (!found) return;
      if (stated_elsewhere && layer.kind == LayerKind::kFull && *found != value) {
        fail("{} is {}, which contradicts the {} that the config states for full-attention layers", entry.where(key),
             *found, value);
      }
      value = narrow(*found);
    };
    for (const auto inner : entry.fields()) {
      if (inner.key == "head_dim") {
        apply(inner.key, Limits::kHeadDim, had_head_dim, layer.head_dim);
      } else if (inner.key == "num_key_value_heads") {
        apply(inner.key, Limits::kHeads, had_kv_heads && layer.k_eq_v, layer.kv_heads);
      } else {
        fail("{} overrides something that carat does not know per layer", entry.where(inner.key));
      }
    }
  }
}

void parse_gemma4_attention(const Source& source, ModelConfig& config, int layers) {
  const JsonObject& text = source.text;
  const int head_dim = required(text, "head_dim", Limits::kHeadDim);
  const int kv_heads = required(text, "num_key_value_heads", Limits::kHeads);
  const bool k_eq_v = stated_switch(text, "attention_k_eq_v");
  const auto overrides = text.maybe_object("per_layer_config");
  const auto global_dim = text.maybe_integer("global_head_dim", 0, Limits::kHeadDim).value_or(0);
  const auto global_kv = text.maybe_integer("num_global_key_value_heads", 0, Limits::kHeads).value_or(0);
  for (const LayerKind kind : layer_kinds(source, Family::kGemma4, layers)) {
    AttentionConfig layer{kind, head_dim, kv_heads, false};
    if (kind == LayerKind::kFull) {
      if (global_dim == 0 && !overrides) {
        fail("{} is missing, and there is no per_layer_config either", text.where("global_head_dim"));
      }
      layer.k_eq_v = k_eq_v;
      if (global_dim != 0) layer.head_dim = narrow(global_dim);
      // E-series files could state it too, but it only ever applies where keys are values.
      if (k_eq_v && global_kv != 0) layer.kv_heads = narrow(global_kv);
    }
    config.layers.push_back(layer);
  }
  if (overrides) read_per_layer(text, *overrides, config);
}

void parse_gemma4(const Source& source, ModelConfig& config) {
  const JsonObject& text = source.text;
  const int layers = required(text, "num_hidden_layers", Limits::kLayers);
  config.heads = required(text, "num_attention_heads", Limits::kHeads);
  config.vocab = required(text, "vocab_size", Limits::kVocab);
  config.max_positions = required(text, "max_position_embeddings", Limits::kPositions);
  config.norm_eps = text.number("rms_norm_eps", Limits::kLeastEps, 1);
  if (!text.stated("final_logit_softcapping")) {
    fail("{} is missing (null would mean none)", text.where("final_logit_softcapping"));
  }
  config.window = narrow(text.maybe_integer("sliding_window", 0, Limits::kPositions).value_or(0));
  parse_gemma4_attention(source, config, layers);
  read_rope_parameters(text.object("rope_parameters"), config);

  config.kv_shared_layers = count_or_zero(text, "num_kv_shared_layers", layers);
  const int width = required(text, "intermediate_size", Limits::kWidth / 2);
  config.mlp_width.assign(layers, width);
  if (config.kv_shared_layers > 0 && stated_switch(text, "use_double_wide_mlp")) {
    for (int i = layers - config.kv_shared_layers; i < layers; ++i) config.mlp_width[i] = 2 * width;
  }

  config.pli_width = count_or_zero(text, "hidden_size_per_layer_input", Limits::kHidden);
  if (config.pli_width > 0) config.pli_vocab = required(text, "vocab_size_per_layer_input", Limits::kVocab);

  if (stated_switch(text, "enable_moe_block")) {
    config.experts = required(text, "num_experts", Limits::kExperts);
    config.experts_per_token = required(text, "top_k_experts", Limits::kExperts);
    config.expert_width = required(text, "moe_intermediate_size", Limits::kWidth);
  }
}

}  // namespace

ModelConfig read_config(const JsonObject& top) {
  ModelConfig config;
  config.family = family_of(top);
  const auto nested = top.maybe_object("text_config");
  const Source source{top, nested.value_or(top), nested.has_value()};
  if (nested && nested->find("model_type") && family_of(*nested) != config.family) {
    fail("{} contradicts the model_type of the file", nested->where("model_type"));
  }
  refuse_unsupported(source.text);
  read_common(source, config);
  if (config.family == Family::kGemma4) {
    parse_gemma4(source, config);
  } else {
    parse_gemma3(source, config);
  }
  check_config(config, top.origin());
  return config;
}

ModelConfig parse_config_json(std::string_view json, std::string_view origin) {
  const JsonDocument document(json, origin);
  return read_config(document.root());
}

}  // namespace carat

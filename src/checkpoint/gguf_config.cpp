#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "checkpoint/config_checks.h"

namespace carat {

namespace {

using Limits = ConfigLimits;

/// A factor of rope_freqs divides the frequency of its lane; converters write 1 for live lanes and 1e30 for dead ones.
constexpr float kDeadLane = 1e20f;
/// What llama.cpp assumes for sliding layers when the file does not say: the base of every Gemma.
constexpr double kSlidingBase = 1e4;
/// Period of full layers in Gemma 3 files that do not state it (the converter of the time left it out).
constexpr int64_t kGemma3Pattern = 6;
/// Layers of Gemma 3 27B, the one size whose query scale is not head_dim^-0.5; GGUF has no key for the scale.
constexpr int kGemma3LayersOf27B = 62;

/// Metadata of one architecture: keys are prefixed with its name.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  std::optional<int64_t> maybe_integer(std::string_view key, int64_t least, int64_t most) const {
    const auto value = file_.integer(full(key));
    if (value) check(key, *value, least, most);
    return value;
  }

  int integer(std::string_view key, int64_t most) const {
    const auto value = maybe_integer(key, 1, most);
    if (!value) missing(key);
    return static_cast<int>(*value);
  }

  /// Counts that dense or plain models state as 0 or leave out.
  int count(std::string_view key, int64_t most) const {
    return static_cast<int>(maybe_integer(key, 0, most).value_or(0));
  }

  double real(std::string_view key) const {
    const auto value = file_.real(full(key));
    if (!value) missing(key);
    return *value;
  }

  /// One value for all layers, or an array with one for each.
  std::vector<int64_t> per_layer(std::string_view key, int layers, int64_t most) const {
    if (!has(key)) missing(key);
    const bool array = file_.values().at(full(key)).type == GgufValue::Type::kArray;
    std::vector<int64_t> values =
        array ? *file_.integers(full(key)) : std::vector<int64_t>(layers, *file_.integer(full(key)));
    check_length(key, values.size(), layers);
    for (const int64_t value : values) check(key, value, 0, most);
    return values;
  }

  void check_length(std::string_view key, size_t found, int layers) const {
    if (found != static_cast<size_t>(layers)) {
      fail("{}: {} has {} entries for {} layers", file_.origin(), full(key), found, layers);
    }
  }

  [[noreturn]] void missing(std::string_view key) const { fail("{}: {} is missing", file_.origin(), full(key)); }

 private:
  void check(std::string_view key, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most) {
      fail("{}: {} is {}, expected {} to {}", file_.origin(), full(key), value, least, most);
    }
  }

  const GgufFile& file_;
  std::string prefix_;
};

std::vector<LayerKind> periodic(int layers, int64_t period) {
  std::vector<LayerKind> kinds(layers, LayerKind::kSliding);
  if (period == 0) return kinds;
  for (int i = 0; i < layers; ++i) {
    if ((i + 1) % period == 0) kinds[i] = LayerKind::kFull;
  }
  return kinds;
}

/// sliding_window_pattern: an array with true for sliding layers, or the period of full ones.
std::vector<LayerKind> layer_kinds(const Keys& keys, Family family, int layers) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  if (!keys.has(kKey)) {
    if (family == Family::kGemma4) keys.missing(kKey);
    return periodic(layers, kGemma3Pattern);
  }
  if (keys.file().values().at(keys.full(kKey)).type != GgufValue::Type::kArray) {
    return periodic(layers, *keys.maybe_integer(kKey, 0, Limits::kLayers));
  }
  const auto flags = *keys.file().integers(keys.full(kKey));
  keys.check_length(kKey, flags.size(), layers);
  std::vector<LayerKind> kinds(layers);
  for (int i = 0; i < layers; ++i) kinds[i] = flags[i] != 0 ? LayerKind::kSliding : LayerKind::kFull;
  return kinds;
}

/// Keys and values must have the same width; `suffix` is "" or "_swa".
int head_dim(const Keys& keys, std::string_view suffix) {
  const std::string key = fmt::format("attention.key_length{}", suffix);
  const std::string value = fmt::format("attention.value_length{}", suffix);
  const int width = keys.integer(key, Limits::kHeadDim);
  const auto values = keys.maybe_integer(value, 1, Limits::kHeadDim);
  if (values && *values != width) {
    fail("{}: {} is {} and {} is {}, expected the same", keys.file().origin(), keys.full(key), width, keys.full(value),
         *values);
  }
  const std::string rotated = fmt::format("rope.dimension_count{}", suffix);
  const auto dims = keys.maybe_integer(rotated, 1, Limits::kHeadDim);
  if (dims && *dims != width) {
    fail("{}: {} is {}, expected the whole head dimension {}", keys.file().origin(), keys.full(rotated), *dims, width);
  }
  return width;
}

void refuse_unsupported(const Keys& keys) {
  const std::string& origin = keys.file().origin();
  if (!keys.file().boolean(keys.full("attention.causal")).value_or(true)) {
    fail("{}: {} is false: embedding models are not supported", origin, keys.full("attention.causal"));
  }
  if (keys.file().real(keys.full("attn_logit_softcapping")).value_or(0) != 0) {
    fail("{}: {} is set: softcapped attention (Gemma 2) is not supported", origin, keys.full("attn_logit_softcapping"));
  }
}

/// Linear scaling concerns the full layers alone.
double rope_factor(const Keys& keys) {
  const auto type = keys.file().string(keys.full("rope.scaling.type"));
  const auto factor = keys.file().real(keys.full("rope.scaling.factor"));
  if (type && *type != "linear" && *type != "none") {
    fail("{}: {} is '{}', supported are none and linear", keys.file().origin(), keys.full("rope.scaling.type"), *type);
  }
  if (!factor || *factor == 0 || (type && *type == "none")) return 1.0;
  return *factor;
}

const GgufTensor& required_tensor(const GgufFile& file, const GgufTensors& tensors, std::string_view name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) fail("{}: tensor '{}' is missing", file.origin(), name);
  return *found->second;
}

/// Gemma 4 keeps the halves layout of its full layers' heads and switches lanes off with a factor so large that their
/// angle is zero. That is proportional RoPE if the live lanes come first and share one factor; nothing else is
/// supported.
void read_rope_freqs(const GgufFile& file, const GgufTensor& tensor, int head_dim, RopeConfig& rope) {
  if (tensor.type != 0 || tensor.shape.size() != 1 || tensor.shape[0] != head_dim / 2) {
    fail("{}: tensor '{}' is not a vector of {} F32 values", file.origin(), tensor.name, head_dim / 2);
  }
  std::vector<float> factors(static_cast<size_t>(tensor.shape[0]));
  std::memcpy(factors.data(), tensor.bytes.data(), factors.size() * sizeof(float));
  const auto dead = [](float factor) { return factor >= kDeadLane; };
  const auto first_dead = std::find_if(factors.begin(), factors.end(), dead);
  const auto live = static_cast<int>(first_dead - factors.begin());
  const bool same = std::all_of(factors.begin(), first_dead, [&](float f) { return f == factors[0]; });
  if (live == 0 || !same || !(factors[0] > 0) || !std::all_of(first_dead, factors.end(), dead)) {
    fail(
        "{}: tensor '{}' does not describe proportional RoPE: expected equal factors for the first lanes and factors "
        "beyond {} for the rest",
        file.origin(), tensor.name, kDeadLane);
  }
  rope.type = RopeConfig::Type::kProportional;
  rope.factor *= factors[0];
  rope.partial = 2.0 * live / head_dim;
  // partial * head_dim must not fall below the number of lanes through rounding.
  if (std::floor(rope.partial * head_dim) < 2.0 * live) rope.partial = std::nextafter(rope.partial, 2.0);
}

/// GGUF stores float32, in which 1e-6 is 9.99999997e-7; config.json means the decimal number. What from_chars cannot
/// represent stays as it is and meets the checks.
double decimal(double value) {
  const std::string text = fmt::format("{:.7g}", value);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void read_common(const Keys& keys, const GgufTensors& tensors, ModelConfig& config) {
  const GgufFile& file = keys.file();
  config.hidden = keys.integer("embedding_length", Limits::kHidden);
  config.max_positions = keys.integer("context_length", Limits::kPositions);
  config.norm_eps = decimal(keys.real("attention.layer_norm_rms_epsilon"));
  const GgufTensor& embeddings = required_tensor(file, tensors, "token_embd.weight");
  if (embeddings.shape.size() != 2 || embeddings.shape[0] > Limits::kVocab) {
    fail("{}: tensor 'token_embd.weight' is not a table of tokens", file.origin());
  }
  config.vocab = static_cast<int>(embeddings.shape[0]);
  config.tied_head = !tensors.contains("output.weight");
  config.window = keys.count("attention.sliding_window", Limits::kPositions);
  const auto softcap = file.real(keys.full("final_logit_softcapping"));
  if (softcap && *softcap != 0) config.final_softcap = softcap;
  config.rope_full.theta = keys.real("rope.freq_base");
  config.rope_full.factor = rope_factor(keys);
  config.rope_sliding.theta = file.real(keys.full("rope.freq_base_swa")).value_or(kSlidingBase);
  const auto bos = file.integer("tokenizer.ggml.bos_token_id");
  if (bos && *bos >= 0 && *bos <= Limits::kTokenId) config.bos_id = static_cast<int>(*bos);
}

/// Query heads do not vary from layer to layer in any Gemma, though GGUF could say so.
void read_heads(const Keys& keys, ModelConfig& config, int layers) {
  const auto heads = keys.per_layer("attention.head_count", layers, Limits::kHeads);
  if (std::any_of(heads.begin(), heads.end(), [&](int64_t h) { return h != heads[0]; })) {
    fail("{}: {} differs between layers, which is not supported", keys.file().origin(),
         keys.full("attention.head_count"));
  }
  config.heads = static_cast<int>(heads[0]);
}

void read_gemma3(const Keys& keys, ModelConfig& config, int layers) {
  const int width = head_dim(keys, "");
  const auto kv_heads = keys.per_layer("attention.head_count_kv", layers, Limits::kHeads);
  auto kinds = layer_kinds(keys, Family::kGemma3, layers);
  // Without a window every layer is full; the converter leaves it out when the pattern is 1.
  if (config.window == 0) kinds.assign(layers, LayerKind::kFull);
  for (int i = 0; i < layers; ++i) {
    config.layers.push_back({kinds[i], width, static_cast<int>(kv_heads[i]), false});
  }
  const auto scale = keys.file().real(keys.full("attention.scale"));
  const int per_query = layers == kGemma3LayersOf27B && config.heads > 0 ? config.hidden / config.heads : width;
  config.attention_scale = scale.value_or(1 / std::sqrt(static_cast<double>(per_query)));
}

void read_gemma4(const Keys& keys, const GgufTensors& tensors, ModelConfig& config, int layers) {
  const GgufFile& file = keys.file();
  const int full = head_dim(keys, "");
  const int sliding = head_dim(keys, "_swa");
  const auto kv_heads = keys.per_layer("attention.head_count_kv", layers, Limits::kHeads);
  const auto kinds = layer_kinds(keys, Family::kGemma4, layers);
  config.kv_shared_layers = keys.count("attention.shared_kv_layers", layers);
  for (int i = 0; i < layers; ++i) {
    const bool is_full = kinds[i] == LayerKind::kFull;
    AttentionConfig layer{kinds[i], is_full ? full : sliding, static_cast<int>(kv_heads[i]), false};
    layer.k_eq_v = is_full && !tensors.contains(fmt::format("blk.{}.attn_v.weight", i)) &&
                   !tensors.contains(fmt::format("blk.{}.attn_qkv.weight", i));
    config.layers.push_back(layer);
  }
  // Sharers have no value projection in any case: what holds for their donor holds for them.
  for (int i = layers - config.kv_shared_layers; i < layers; ++i) {
    const int donor = kv_donor(config, i);
    if (donor >= 0) config.layers[i].k_eq_v = config.layers[donor].k_eq_v;
  }
  if (std::find(kinds.begin(), kinds.end(), LayerKind::kFull) != kinds.end()) {
    read_rope_freqs(file, required_tensor(file, tensors, "rope_freqs.weight"), full, config.rope_full);
  }
  // Every Gemma 4 has one (30). Readers disagree about what a missing key means, and greedy text would not show it.
  if (!keys.has("final_logit_softcapping")) keys.missing("final_logit_softcapping");

  config.pli_width = keys.count("embedding_length_per_layer_input", Limits::kHidden);
  if (config.pli_width > 0) {
    const GgufTensor& table = required_tensor(file, tensors, "per_layer_token_embd.weight");
    if (table.shape.size() != 2 || table.shape[0] > Limits::kVocab) {
      fail("{}: tensor '{}' is not a table of tokens", file.origin(), table.name);
    }
    config.pli_vocab = static_cast<int>(table.shape[0]);
  }
  config.experts = keys.count("expert_count", Limits::kExperts);
  if (config.experts > 0) {
    config.experts_per_token = keys.integer("expert_used_count", Limits::kExperts);
    const auto widths = keys.per_layer("expert_feed_forward_length", layers, Limits::kWidth);
    if (std::any_of(widths.begin(), widths.end(), [&](int64_t w) { return w != widths[0]; })) {
      fail("{}: {} differs between layers, which is not supported", file.origin(),
           keys.full("expert_feed_forward_length"));
    }
    config.expert_width = static_cast<int>(widths[0]);
  }
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file, const GgufTensors& tensors) {
  const auto architecture = file.string("general.architecture");
  if (!architecture) fail("{}: general.architecture is missing", file.origin());
  if (*architecture == "gemma4-assistant") {
    fail("{}: general.architecture is '{}': a drafter for another model, which cannot run by itself", file.origin(),
         *architecture);
  }
  if (*architecture != "gemma3" && *architecture != "gemma4") {
    fail("{}: general.architecture is '{}', supported are gemma3 and gemma4", file.origin(), *architecture);
  }
  const Keys keys(file, std::string(*architecture));
  ModelConfig config;
  config.family = *architecture == "gemma4" ? Family::kGemma4 : Family::kGemma3;
  config.model_type = fmt::format("{} (GGUF)", *architecture);
  refuse_unsupported(keys);
  const int layers = keys.integer("block_count", Limits::kLayers);
  read_common(keys, tensors, config);
  read_heads(keys, config, layers);
  for (const int64_t width : keys.per_layer("feed_forward_length", layers, Limits::kWidth)) {
    config.mlp_width.push_back(static_cast<int>(width));
  }
  if (config.family == Family::kGemma4) {
    read_gemma4(keys, tensors, config, layers);
  } else {
    read_gemma3(keys, config, layers);
  }
  if (const auto eos = file.integer("tokenizer.ggml.eos_token_id"); eos && *eos >= 0 && *eos <= Limits::kTokenId) {
    config.eos_ids.push_back(static_cast<int>(*eos));
  }
  check_config(config, file.origin());
  return config;
}

std::vector<int> gguf_stop_ids(const GgufFile& file) {
  std::vector<int> ids;
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto id = file.integer(key);
    // Writers mark absent tokens with -1, which as u32 is beyond the range.
    if (id && *id >= 0 && *id <= Limits::kTokenId) ids.push_back(static_cast<int>(*id));
  }
  return ids;
}

}  // namespace carat

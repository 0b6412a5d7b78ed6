#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace carat {
namespace {

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, Device& device)
      : checkpoint_(checkpoint), config_(checkpoint.config()), device_(device) {}

  Matrix matrix(const std::string& name, int64_t rows, int64_t cols) const {
    const auto found = checkpoint_.matrix(name);
    if (!found) fail("{}: the weight {} is missing", origin(), name);
    if (found->rows != rows || found->cols != cols) {
      fail("{}: the weight {} has the shape [{}, {}]; the configuration asks for [{}, {}]", origin(), name, found->rows,
           found->cols, rows, cols);
    }
    return *found;
  }

  MatrixStack stack(const std::string& name, int64_t experts, int64_t rows, int64_t cols) const {
    const auto found = checkpoint_.stack(name);
    if (!found) fail("{}: the weight {} is missing", origin(), name);
    if (found->experts != experts || found->rows != rows || found->all.cols != cols) {
      fail("{}: the weight {} has the shape [{}, {}, {}]; the configuration asks for [{}, {}, {}]", origin(), name,
           found->experts, found->rows, found->all.cols, experts, rows, cols);
    }
    return *found;
  }

  std::vector<float> values(const std::string& name, int64_t size) const {
    auto found = checkpoint_.vector(name);
    if (!found) fail("{}: the weight {} is missing", origin(), name);
    if (static_cast<int64_t>(found->size()) != size) {
      fail("{}: the weight {} has {} values; the configuration asks for {}", origin(), name, found->size(), size);
    }
    return *std::move(found);
  }

  std::vector<float> norm_values(const std::string& name, int64_t size) const {
    std::vector<float> w = values(name, size);
    if (config_.norm_plus_one) {
      for (float& x : w) x += 1.0f;
    }
    return w;
  }

  DeviceArray<float> norm(const std::string& name, int64_t size) const { return upload(norm_values(name, size)); }

  DeviceArray<float> upload(const std::vector<float>& host) const {
    DeviceArray<float> array(device_, host.size());
    device_.upload(array.data(), host.data(), host.size() * sizeof(float));
    return array;
  }

  std::string origin() const { return checkpoint_.path().string(); }

 private:
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Device& device_;
};

/// Powers of two, alike for both halves of a rotated pair, such that keys over them and queries times them are of the
/// same size: a score is a sum of products key * query, and what it suffers from coded keys is least then. Scores
/// themselves do not change by a bit.
std::vector<float> balance(const std::vector<float>& q_norm, const std::vector<float>& k_norm) {
  constexpr float kMost = 8.0f;  // binary orders of magnitude
  const size_t half = q_norm.size() / 2;
  std::vector<float> factors(q_norm.size(), 1.0f);
  for (size_t i = 0; i < half; ++i) {
    const float ratio = std::hypot(k_norm[i], k_norm[i + half]) / std::hypot(q_norm[i], q_norm[i + half]);
    const float exponent = std::nearbyint(0.5f * std::log2(ratio));
    if (std::isfinite(exponent)) {
      factors[i] = factors[i + half] = std::exp2(std::clamp(exponent, -kMost, kMost));
    }
  }
  return factors;
}

/// `balances` of each layer that owns keys and values, for those that share them.
void load_attention(const Loader& load, const ModelConfig& c, const LayerPlan& plan, const std::string& at,
                    std::vector<std::vector<float>>& balances, LayerWeights& w) {
  w.input_norm = load.norm(at + "input_layernorm", c.hidden);
  w.post_attention_norm = load.norm(at + "post_attention_layernorm", c.hidden);
  w.q = load.matrix(at + "self_attn.q_proj", static_cast<int64_t>(c.heads) * plan.head_dim, c.hidden);
  w.o = load.matrix(at + "self_attn.o_proj", c.hidden, static_cast<int64_t>(c.heads) * plan.head_dim);
  std::vector<float> q_norm = load.norm_values(at + "self_attn.q_norm", plan.head_dim);
  if (plan.owns_kv) {
    std::vector<float> k_norm = load.norm_values(at + "self_attn.k_norm", plan.head_dim);
    balances.push_back(balance(q_norm, k_norm));
    for (size_t i = 0; i < k_norm.size(); ++i) k_norm[i] /= balances.back()[i];
    w.k_norm = load.upload(k_norm);
  }
  const std::vector<float>& factors = balances[static_cast<size_t>(plan.cache)];
  for (size_t i = 0; i < q_norm.size(); ++i) q_norm[i] *= factors[i];
  w.q_norm = load.upload(q_norm);
  if (!plan.owns_kv) return;
  const int64_t kv_width = static_cast<int64_t>(plan.kv_heads) * plan.head_dim;
  w.k = load.matrix(at + "self_attn.k_proj", kv_width, c.hidden);
  if (!plan.k_eq_v) w.v = load.matrix(at + "self_attn.v_proj", kv_width, c.hidden);
}

void load_mlp(const Loader& load, const ModelConfig& c, const LayerPlan& plan, const std::string& at, LayerWeights& w) {
  w.pre_mlp_norm = load.norm(at + "pre_feedforward_layernorm", c.hidden);
  w.post_mlp_norm = load.norm(at + "post_feedforward_layernorm", c.hidden);
  w.mlp.gate = load.matrix(at + "mlp.gate_proj", plan.mlp_width, c.hidden);
  w.mlp.up = load.matrix(at + "mlp.up_proj", plan.mlp_width, c.hidden);
  w.mlp.down = load.matrix(at + "mlp.down_proj", c.hidden, plan.mlp_width);
}

void load_experts(const Loader& load, const ModelConfig& c, const std::string& at, LayerWeights& w) {
  w.router = load.matrix(at + "router.proj", c.experts, c.hidden);
  std::vector<float> scale = load.values(at + "router.scale", c.hidden);
  const double root = 1.0 / std::sqrt(static_cast<double>(c.hidden));
  for (float& x : scale) x = static_cast<float>(x * root);
  w.router_scale = load.upload(scale);
  w.per_expert_scale = load.upload(load.values(at + "router.per_expert_scale", c.experts));
  w.expert_gate = load.stack(at + "experts.gate_proj", c.experts, c.expert_width, c.hidden);
  w.expert_up = load.stack(at + "experts.up_proj", c.experts, c.expert_width, c.hidden);
  w.expert_down = load.stack(at + "experts.down_proj", c.experts, c.hidden, c.expert_width);
  w.pre_expert_norm = load.norm(at + "pre_feedforward_layernorm_2", c.hidden);
  w.post_dense_norm = load.norm(at + "post_feedforward_layernorm_1", c.hidden);
  w.post_expert_norm = load.norm(at + "post_feedforward_layernorm_2", c.hidden);
}

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, const ModelPlan& plan, Device& device) {
  const ModelConfig& c = checkpoint.config();
  const Loader load(checkpoint, device);
  Weights weights;
  weights.embedding = load.matrix("embed_tokens", c.vocab, c.hidden);
  weights.head = c.tied_head ? weights.embedding : load.matrix("lm_head", c.vocab, c.hidden);
  weights.final_norm = load.norm("norm", c.hidden);
  if (c.pli_width > 0) {
    const int64_t total = static_cast<int64_t>(c.layer_count()) * c.pli_width;
    weights.pli_table = load.matrix("embed_tokens_per_layer", c.pli_vocab, total);
    weights.pli_model_projection = load.matrix("per_layer_model_projection", total, c.hidden);
    weights.pli_norm = load.norm("per_layer_projection_norm", c.pli_width);
  }
  std::vector<std::vector<float>> balances;
  for (int i = 0; i < c.layer_count(); ++i) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    const std::string at = fmt::format("layers.{}.", i);
    LayerWeights w;
    load_attention(load, c, layer, at, balances, w);
    load_mlp(load, c, layer, at, w);
    if (c.has_moe()) load_experts(load, c, at, w);
    if (c.pli_width > 0) {
      w.pli_gate = load.matrix(at + "per_layer_input_gate", c.pli_width, c.hidden);
      w.pli_projection = load.matrix(at + "per_layer_projection", c.hidden, c.pli_width);
      w.post_pli_norm = load.norm(at + "post_per_layer_input_norm", c.hidden);
    }
    if (checkpoint.vector(at + "layer_scalar")) w.scalar = load.values(at + "layer_scalar", 1)[0];
    weights.layers.push_back(std::move(w));
  }
  return weights;
}

size_t bytes_per_token(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  size_t bytes = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.canonical.empty() || tensor.shape.empty() || tensor.shape.front() < 1) continue;
    const size_t row = tensor.bytes / static_cast<size_t>(tensor.shape.front());  // of a stack: one expert
    if (tensor.canonical == "embed_tokens") {
      bytes += row + (c.tied_head ? tensor.bytes : 0);
    } else if (tensor.canonical == "embed_tokens_per_layer") {
      bytes += row;
    } else if (tensor.canonical.find(".experts.") != std::string::npos) {
      bytes += row * static_cast<size_t>(c.experts_per_token);
    } else {
      bytes += tensor.bytes;
    }
  }
  return bytes;
}

}  // namespace carat

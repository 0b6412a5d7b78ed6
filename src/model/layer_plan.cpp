#include "model/layer_plan.h"

#include "base/error.h"
#include "checkpoint/config_checks.h"

namespace carat {

ModelPlan make_plan(const ModelConfig& config) {
  ModelPlan plan;
  const int owners = config.layer_count() - config.kv_shared_layers;
  if (owners < 1)
    fail("num_kv_shared_layers is {} but the model has only {} layers", config.kv_shared_layers, config.layer_count());
  plan.last_owner = owners - 1;
  for (int i = 0; i < config.layer_count(); ++i) {
    const AttentionConfig& attention = config.layers[static_cast<size_t>(i)];
    LayerPlan layer{.kind = attention.kind,
                    .head_dim = attention.head_dim,
                    .kv_heads = attention.kv_heads,
                    .k_eq_v = attention.k_eq_v,
                    .cache = i,
                    .owns_kv = i < owners,
                    .mlp_width = config.mlp_width[static_cast<size_t>(i)]};
    if (layer.owns_kv) {
      plan.owners.push_back(i);
    } else {
      const int donor = kv_donor(config, i);
      if (donor < 0) {
        fail("layer {} shares the keys of a {} layer, but no layer before layer {} is one", i,
             layer.kind == LayerKind::kFull ? "full" : "sliding", owners);
      }
      const AttentionConfig& owner = config.layers[static_cast<size_t>(donor)];
      if (owner.head_dim != layer.head_dim || owner.kv_heads != layer.kv_heads) {
        fail("layer {} has {} key heads of width {} but shares those of layer {}, which has {} of width {}", i,
             layer.kv_heads, layer.head_dim, donor, owner.kv_heads, owner.head_dim);
      }
      layer.cache = donor;
    }
    plan.layers.push_back(layer);
  }
  return plan;
}

}  // namespace carat

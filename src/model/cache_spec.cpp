#include "model/cache_spec.h"

#include <algorithm>

#include "model/kv_choice.h"

namespace carat {

KvCacheSpec make_cache_spec(const ModelConfig& config, const ModelPlan& plan, const KvChoice& choice,
                            int64_t max_rows) {
  check_layers(choice, plan);
  KvCacheSpec spec{.layers = {}, .max_rows = max_rows};
  for (const int owner : plan.owners) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(owner)];
    const KvFormats formats = layer_formats(choice, plan, owner);
    spec.layers.push_back({.kv_heads = layer.kv_heads,
                           .head_dim = layer.head_dim,
                           .window = layer.kind == LayerKind::kSliding ? int64_t{config.window} : 0,
                           .k_format = formats.k,
                           .v_format = formats.v});
  }
  for (size_t i = 0; i < plan.owners.size(); ++i) {
    const KvFormats formats = layer_formats(choice, plan, plan.owners[i]);
    if (formats.recent == 0) continue;
    const KvFormats floats = recent_formats(formats);
    KvLayerSpec ring = spec.layers[i];
    ring.window = std::min<int64_t>(formats.recent, config.max_positions);
    ring.window_step = kRecentStep;
    ring.k_format = floats.k;
    ring.v_format = floats.v;
    spec.layers[i].recent = static_cast<int>(spec.layers.size());
    spec.layers.push_back(ring);
  }
  return spec;
}

}  // namespace carat

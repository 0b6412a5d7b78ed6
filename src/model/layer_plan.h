// What each layer does, derived once from the configuration.
#pragma once

#include <vector>

#include "checkpoint/model_config.h"

namespace carat {

struct LayerPlan {
  LayerKind kind = LayerKind::kSliding;
  int head_dim = 0;
  int kv_heads = 0;
  bool k_eq_v = false;
  int cache = 0;        // index of the KV cache layer that it reads; owners are numbered in layer order
  bool owns_kv = true;  // computes K and V and writes them there
  int mlp_width = 0;
};

struct ModelPlan {
  std::vector<LayerPlan> layers;
  std::vector<int> owners;  // layer index of each KV cache layer
  int last_owner = 0;       // later layers only read caches: tokens that nobody asks anything of stop here
};

/// Layers before num_kv_shared_layers from the end own their cache; each later layer reads that of the last owner of
/// its own kind. Throws Error when there is none.
ModelPlan make_plan(const ModelConfig& config);

}  // namespace carat

// How the keys and values of a model are laid out in a cache.
#pragma once

#include "cache/kv_cache.h"
#include "carat/kv_format.h"
#include "checkpoint/model_config.h"
#include "model/layer_plan.h"

namespace carat {

/// A layer of the cache for each layer that owns keys and values, for batches of up to `max_rows` rows of one sequence;
/// after them the rings of the layers that keep their latest positions as floats.
/// Groups of coded formats are narrowed where heads need it. Throws Error when a format cannot hold the heads of its
/// layer, or when the choice names a layer that the model lacks.
KvCacheSpec make_cache_spec(const ModelConfig& config, const ModelPlan& plan, const KvChoice& choice, int64_t max_rows);

}  // namespace carat

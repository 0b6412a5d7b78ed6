// Which formats the layers of a model cache their keys and values in.
#pragma once

#include "carat/options.h"
#include "checkpoint/checkpoint.h"
#include "model/layer_plan.h"

namespace carat {

/// What the options ask for: their choice; else float32 in exact mode; else kv_config.json in the model's directory,
/// when there is one; else f16. Their kv_recent changes any of these. Throws Error when that file is damaged.
KvChoice kv_choice_for(const EngineOptions& options, const Checkpoint& checkpoint);

/// Throws Error when the choice names layers that the model lacks. Those that read another layer's keys and values may
/// be named; there is nothing to choose for them.
void check_layers(const KvChoice& choice, const ModelPlan& plan);

/// The formats of layer `owner`, fitted to its heads (fit_kv_format); `recent` is 0 unless the layer heeds it. Throws
/// Error for what cannot be stored so.
KvFormats layer_formats(const KvChoice& choice, const ModelPlan& plan, int owner);

/// What a layer of these formats keeps its latest positions as: f16 instead of codes.
KvFormats recent_formats(const KvFormats& formats);

/// Bytes of keys and values that one more position takes in layer `owner`, those of the latest positions aside.
size_t kv_bytes_per_position(const KvChoice& choice, const ModelPlan& plan, int owner);
/// Bytes of one of the latest positions in layer `owner`, kept beside its codes.
size_t kv_bytes_per_recent(const KvChoice& choice, const ModelPlan& plan, int owner);

}  // namespace carat

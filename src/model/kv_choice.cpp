#include "model/kv_choice.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/kv_config.h"
#include "compute/kv_rows.h"

namespace carat {

KvChoice kv_choice_for(const EngineOptions& options, const Checkpoint& checkpoint) {
  if (options.kv) return *options.kv;
  if (options.precision == Precision::kExact) return KvFormat::kF32;
  if (std::filesystem::is_directory(checkpoint.path())) {
    const std::filesystem::path file = checkpoint.path() / kKvConfigName;
    if (std::filesystem::exists(file)) return read_kv_config(file);
  }
  return KvFormat::kF16;
}

void check_layers(const KvChoice& choice, const ModelPlan& plan) {
  for (const KvChoice::Layer& layer : choice.layers) {
    if (layer.index < 0 || static_cast<size_t>(layer.index) >= plan.layers.size()) {
      fail("formats are chosen for keys and values of layer {}; the model has layers 0 to {}", layer.index,
           plan.layers.size() - 1);
    }
  }
}

KvFormats layer_formats(const KvChoice& choice, const ModelPlan& plan, int owner) {
  const LayerPlan& layer = plan.layers[static_cast<size_t>(owner)];
  const KvFormats formats = choice.of(owner, layer.kind == LayerKind::kSliding);
  if (formats.k.kind == KvFormat::Kind::kRotated) {
    fail("keys of layer {} cannot be stored as {}: only values are rotated", owner, kv_format_name(formats.k));
  }
  return {fit_kv_format(formats.k, layer.head_dim), fit_kv_format(formats.v, layer.head_dim)};
}

size_t kv_bytes_per_position(const KvChoice& choice, const ModelPlan& plan, int owner) {
  const LayerPlan& layer = plan.layers[static_cast<size_t>(owner)];
  const KvFormats formats = layer_formats(choice, plan, owner);
  return static_cast<size_t>(layer.kv_heads) *
         (kv_row_bytes(formats.k, layer.head_dim) + kv_row_bytes(formats.v, layer.head_dim));
}

}  // namespace carat

#include "model/kv_choice.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/kv_config.h"
#include "compute/kv_rows.h"

namespace carat {
namespace {

KvChoice choice_without_recent(const EngineOptions& options, const Checkpoint& checkpoint) {
  if (options.kv) return *options.kv;
  if (options.precision == Precision::kExact) return KvFormat::kF32;
  if (std::filesystem::is_directory(checkpoint.path())) {
    const std::filesystem::path file = checkpoint.path() / kKvConfigName;
    if (std::filesystem::exists(file)) return read_kv_config(file);
  }
  return KvFormat::kF16;
}

size_t bytes_of(const KvFormats& formats, const LayerPlan& layer) {
  return static_cast<size_t>(layer.kv_heads) *
         (kv_row_bytes(formats.k, layer.head_dim) + kv_row_bytes(formats.v, layer.head_dim));
}

}  // namespace

KvChoice kv_choice_for(const EngineOptions& options, const Checkpoint& checkpoint) {
  KvChoice choice = choice_without_recent(options, checkpoint);
  if (options.kv_recent) choice.keep_recent(*options.kv_recent);
  return choice;
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
  const bool sliding = layer.kind == LayerKind::kSliding;
  const KvFormats formats = choice.of(owner, sliding);
  if (formats.k.kind == KvFormat::Kind::kRotated) {
    fail("keys of layer {} cannot be stored as {}: only values are rotated", owner, kv_format_name(formats.k));
  }
  if (formats.recent < 0 || formats.recent > kMostRecentKv) {
    fail("layer {} is to keep the latest {} positions; expected 0 to {}", owner, formats.recent, kMostRecentKv);
  }
  return {fit_kv_format(formats.k, layer.head_dim), fit_kv_format(formats.v, layer.head_dim),
          formats.is_coded() && !sliding ? formats.recent : 0};
}

KvFormats recent_formats(const KvFormats& formats) {
  return {formats.k.is_coded() ? KvFormat::kF16 : formats.k, formats.v.is_coded() ? KvFormat::kF16 : formats.v};
}

size_t kv_bytes_per_position(const KvChoice& choice, const ModelPlan& plan, int owner) {
  return bytes_of(layer_formats(choice, plan, owner), plan.layers[static_cast<size_t>(owner)]);
}

size_t kv_bytes_per_recent(const KvChoice& choice, const ModelPlan& plan, int owner) {
  return bytes_of(recent_formats(layer_formats(choice, plan, owner)), plan.layers[static_cast<size_t>(owner)]);
}

}  // namespace carat

// Construction and accounting; the forward pass is in forward.cpp.
#include "model/model.h"

#include <algorithm>

#include "base/error.h"
#include "model/cache_spec.h"

namespace carat {
namespace {

RopeTable make_rope(const RopeConfig& rope, int head_dim) {
  const int half = head_dim / 2;
  const int pairs = rope.type == RopeConfig::Type::kProportional ? static_cast<int>(rope.partial * half) : half;
  return {head_dim, pairs, rope.theta, rope.factor};
}

}  // namespace

Model::Model(std::shared_ptr<const Checkpoint> checkpoint, std::shared_ptr<Device> device, int64_t max_rows)
    : checkpoint_(std::move(checkpoint)), device_(std::move(device)), max_rows_(max_rows) {
  const ModelConfig& c = config();
  if (max_rows < 1) fail("a model needs batches of at least one row");
  plan_ = make_plan(c);
  weights_ = load_weights(*checkpoint_, plan_, *device_);

  size_t head_width = 0;
  size_t kv_width = 0;
  for (const LayerPlan& layer : plan_.layers) {
    head_width = std::max(head_width, static_cast<size_t>(c.heads) * static_cast<size_t>(layer.head_dim));
    kv_width = std::max(kv_width, static_cast<size_t>(layer.kv_heads) * static_cast<size_t>(layer.head_dim));
    RopeTable& table = layer.kind == LayerKind::kFull ? rope_full_ : rope_sliding_;
    if (table.head_dim() == 0) {
      table = make_rope(layer.kind == LayerKind::kFull ? c.rope_full : c.rope_sliding, layer.head_dim);
    } else if (table.head_dim() != layer.head_dim) {
      fail("layers of one kind with heads of width {} and {} are not supported", table.head_dim(), layer.head_dim);
    }
  }
  const auto rows = static_cast<size_t>(max_rows);
  const auto hidden = static_cast<size_t>(c.hidden);
  x_ = DeviceArray<float>(*device_, rows * hidden);
  gathered_ = DeviceArray<float>(*device_, rows * hidden);
  q_ = DeviceArray<float>(*device_, rows * head_width);
  attended_ = DeviceArray<float>(*device_, rows * head_width);
  k_ = DeviceArray<float>(*device_, rows * kv_width);
  v_ = DeviceArray<float>(*device_, rows * kv_width);
  if (c.pli_width > 0) {
    const size_t all = static_cast<size_t>(c.layer_count()) * static_cast<size_t>(c.pli_width);
    early_.values = DeviceArray<float>(*device_, rows * all);
    late_.values = DeviceArray<float>(*device_, rows * all);
  }
  device_->reserve(max_rows);
}

KvCacheSpec Model::cache_spec(const KvChoice& choice) const {
  return make_cache_spec(config(), plan_, choice, max_rows_);
}

size_t Model::bytes_per_token() const {
  return carat::bytes_per_token(*checkpoint_);
}

}  // namespace carat

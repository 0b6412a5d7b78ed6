// What there is to say about a checkpoint without reading its weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "carat/options.h"
#include "checkpoint/checkpoint.h"
#include "model/layer_plan.h"

namespace carat {

/// Consecutive layers that do the same.
struct LayerRange {
  int first = 0;
  int last = 0;
  LayerPlan plan;  // of the first; `cache` is the layer itself where it owns its keys and values
};

/// Tensors of one role ("self_attn.q_proj") and one format.
struct TensorGroup {
  std::string role;  // canonical name without the layer; "not used" for those that the text model does without
  std::string format;
  int count = 0;
  size_t bytes = 0;
};

struct FormatShare {
  std::string format;
  int tensors = 0;
  size_t bytes = 0;
};

/// With `fold` false every layer is a range of its own.
std::vector<LayerRange> layer_ranges(const ModelPlan& plan, bool fold);

/// In the order of their first tensor, unused ones last. Norms and other vectors of all layers together are one role.
std::vector<TensorGroup> tensor_groups(const std::vector<TensorInfo>& tensors);

/// The largest first. Unused tensors are left out.
std::vector<FormatShare> format_shares(const std::vector<TensorInfo>& tensors);

/// Weights of the text model, as numbers.
uint64_t parameter_count(const std::vector<TensorInfo>& tensors);

/// Bytes of keys and values that one more position takes in all layers of that kind which own theirs.
size_t kv_bytes_per_token(const ModelPlan& plan, LayerKind kind, const KvChoice& choice);

/// Bytes of keys and values of a context: layers with a window hold no more than that. Of the latest positions that
/// layers keep beside codes, as many as are ever read.
size_t kv_bytes(const ModelPlan& plan, int64_t window, int64_t tokens, const KvChoice& choice);

}  // namespace carat

#include "cli/model_report.h"

#include <algorithm>

#include "compute/device.h"
#include "model/kv_choice.h"

namespace carat {
namespace {

bool same(const LayerPlan& a, const LayerPlan& b) {
  return a.kind == b.kind && a.head_dim == b.head_dim && a.kv_heads == b.kv_heads && a.k_eq_v == b.k_eq_v &&
         a.owns_kv == b.owns_kv && (a.owns_kv || a.cache == b.cache) && a.mlp_width == b.mlp_width;
}

std::string role_of(const TensorInfo& tensor) {
  if (tensor.canonical.empty()) return "not used";
  if (tensor.shape.size() < 2) return "norms and scales";
  if (!tensor.canonical.starts_with("layers.")) return tensor.canonical;
  return tensor.canonical.substr(tensor.canonical.find('.', std::string_view("layers.").size()) + 1);
}

}  // namespace

std::vector<LayerRange> layer_ranges(const ModelPlan& plan, bool fold) {
  std::vector<LayerRange> ranges;
  for (int i = 0; i < static_cast<int>(plan.layers.size()); ++i) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    if (fold && !ranges.empty() && same(ranges.back().plan, layer)) {
      ranges.back().last = i;
    } else {
      ranges.push_back({i, i, layer});
    }
  }
  return ranges;
}

std::vector<TensorGroup> tensor_groups(const std::vector<TensorInfo>& tensors) {
  std::vector<TensorGroup> groups;
  for (const TensorInfo& tensor : tensors) {
    const std::string role = role_of(tensor);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const TensorGroup& g) { return g.role == role && g.format == tensor.format; });
    if (group == groups.end()) group = groups.insert(groups.end(), {role, tensor.format, 0, 0});
    ++group->count;
    group->bytes += tensor.bytes;
  }
  // Formats of one role stand together, where the role was met first.
  const auto rank = [first = groups](const TensorGroup& g) {
    if (g.role == "not used") return first.size() + 1;
    if (g.role == "norms and scales") return first.size();
    return static_cast<size_t>(
        std::find_if(first.begin(), first.end(), [&](const TensorGroup& other) { return other.role == g.role; }) -
        first.begin());
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return groups;
}

std::vector<FormatShare> format_shares(const std::vector<TensorInfo>& tensors) {
  std::vector<FormatShare> shares;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.canonical.empty()) continue;
    auto share = std::find_if(shares.begin(), shares.end(), [&](const auto& s) { return s.format == tensor.format; });
    if (share == shares.end()) share = shares.insert(shares.end(), {tensor.format, 0, 0});
    ++share->tensors;
    share->bytes += tensor.bytes;
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return shares;
}

uint64_t parameter_count(const std::vector<TensorInfo>& tensors) {
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.canonical.empty()) continue;
    uint64_t count = 1;
    for (const int64_t size : tensor.shape) count *= static_cast<uint64_t>(size);
    total += count;
  }
  return total;
}

size_t kv_bytes_per_token(const ModelPlan& plan, LayerKind kind, const KvChoice& choice) {
  size_t bytes = 0;
  for (const int owner : plan.owners) {
    if (plan.layers[static_cast<size_t>(owner)].kind == kind) bytes += kv_bytes_per_position(choice, plan, owner);
  }
  return bytes;
}

size_t kv_bytes(const ModelPlan& plan, int64_t window, int64_t tokens, const KvChoice& choice) {
  size_t bytes = kv_bytes_per_token(plan, LayerKind::kFull, choice) * static_cast<size_t>(tokens) +
                 kv_bytes_per_token(plan, LayerKind::kSliding, choice) * static_cast<size_t>(std::min(tokens, window));
  for (const int owner : plan.owners) {
    const int recent = layer_formats(choice, plan, owner).recent;
    if (recent == 0) continue;
    const int64_t kept = std::min<int64_t>(tokens, recent + kRecentStep - 1);
    bytes += kv_bytes_per_recent(choice, plan, owner) * static_cast<size_t>(kept);
  }
  return bytes;
}

}  // namespace carat

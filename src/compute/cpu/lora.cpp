#include "compute/cpu/lora.h"

#include <algorithm>

namespace carat {
namespace {

// What one task computes of a x: few enough ranks that a single token's are shared between threads.
constexpr int64_t kTaskRanks = 8;
constexpr int64_t kTaskTokens = 32;

/// The correction of a token; null where it has none.
const LoraPair* pair_of(const CpuLora::Target& target, int64_t t) {
  const int index = target.lora->row_pair[static_cast<size_t>(target.tokens[static_cast<size_t>(t)])];
  if (index < 0) return nullptr;
  const LoraPair& pair = target.lora->pairs[static_cast<size_t>(index)];
  return pair.rank > 0 ? &pair : nullptr;
}

}  // namespace

void CpuLora::reduce(const float* x, int64_t cols, std::span<const Target> targets) {
  inner_.clear();
  tasks_.clear();
  int64_t size = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    const auto tokens = static_cast<int64_t>(target.tokens.size());
    int64_t stride = 0;
    for (const LoraPair& pair : target.lora->pairs) stride = std::max<int64_t>(stride, pair.rank);
    inner_.push_back({target, size, stride});
    size += tokens * stride;
    if (stride == 0) continue;
    for (int64_t t = 0; t < tokens;) {
      const LoraPair* pair = pair_of(target, t);
      int64_t end = t + 1;
      while (end < tokens && end - t < kTaskTokens && pair_of(target, end) == pair &&
             target.tokens[static_cast<size_t>(end)] == target.tokens[static_cast<size_t>(t)] + end - t) {
        ++end;
      }
      for (int64_t j = 0; pair != nullptr && j < pair->rank; j += kTaskRanks) {
        tasks_.push_back({i, t, end - t, j, std::min(kTaskRanks, pair->rank - j)});
      }
      t = end;
    }
  }
  values_.resize(static_cast<size_t>(size));
  pool_.run(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    const Inner& inner = inner_[task.target];
    const float* rows = x + inner.target.tokens[static_cast<size_t>(task.first)] * cols;
    kernels_.float_dot(pair_of(inner.target, task.first)->a + task.rank_begin * cols, cols, task.ranks, rows, cols,
                       task.count, cols, values_.data() + inner.begin + task.first * inner.stride + task.rank_begin,
                       inner.stride);
  });
}

void CpuLora::add(size_t target, int64_t width, int64_t first, int64_t count, float* out, int64_t stride) const {
  const Inner& inner = inner_[target];
  if (inner.stride == 0) return;
  for (int64_t t = 0; t < static_cast<int64_t>(inner.target.tokens.size()); ++t) {
    const LoraPair* pair = pair_of(inner.target, t);
    if (pair == nullptr) continue;
    kernels_.add_ranks(values_.data() + inner.begin + t * inner.stride, pair->b + first, width, pair->rank, count,
                       out + t * stride);
  }
}

}  // namespace carat

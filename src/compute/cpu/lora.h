// What adapters add to matrix products of the CPU backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "compute/cpu/kernels.h"

namespace carat {

/// y += b (a x), in two steps around the product that it corrects: a x for all rows first, then b times that, where
/// and when a task has made its piece of y. A row's sums have one order whatever else is in the batch: a x is a float
/// dot product (kernels.h), b (a x) adds the ranks in ascending order.
class CpuLora {
 public:
  CpuLora(ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

  /// One weight and the rows that are multiplied by it. Both must stay valid until the last add().
  struct Target {
    const Lora* lora;
    std::span<const int64_t> tokens;  // rows of x
  };

  /// Computes a x, x [rows, cols], for every target.
  void reduce(const float* x, int64_t cols, std::span<const Target> targets);

  /// out[t * stride + i] += the correction of output first + i, i < count, for every token t of a target whose weight
  /// has `width` outputs. Several threads may call it at once.
  void add(size_t target, int64_t width, int64_t first, int64_t count, float* out, int64_t stride) const;

 private:
  struct Inner {
    Target target;
    int64_t begin = 0;   // in values_: [tokens, stride]
    int64_t stride = 0;  // the largest rank
  };
  struct Task {
    size_t target;
    int64_t first, count;  // tokens, consecutive rows of x with the same pair
    int64_t rank_begin, ranks;
  };

  ThreadPool& pool_;
  const Kernels& kernels_;
  std::vector<Inner> inner_;
  std::vector<Task> tasks_;
  Buffer<float> values_;
};

}  // namespace carat

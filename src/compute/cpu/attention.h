// Attention of the CPU backend: how queries and segments of keys are cut into tasks.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "compute/cpu/kernels.h"
#include "compute/device.h"

namespace carat {

class CpuAttention {
 public:
  CpuAttention(ThreadPool& pool, const Kernels& kernels);

  void finish_qkv(const QkvArgs& args);
  void attend(const AttentionArgs& args);

 private:
  /// Consecutive rows of one sequence whose queries share each reading of the keys.
  struct Tile {
    int64_t first_row;
    int64_t rows;
    int64_t first_segment;  // segments [first, end) hold all keys that the rows see
    int64_t end_segment;
  };
  struct Task {
    int64_t tile;
    int kv_head;
    int64_t first_segment;
    int64_t end_segment;
    int64_t result;  // index of its first partial result, or -1: it covers all segments and writes the output itself
  };
  struct Scratch {
    Buffer<float> scores;  // [kMaxQueries, kSegment]
    Buffer<float> out;     // [2, kMaxQueries, head_dim]: of a segment, running
    Buffer<float> row;     // one head, or a rotation
  };

  void attend_task(const AttentionArgs& args, const Task& task, Scratch& scratch);
  /// out = running / sum, rotated or spread back where values are stored so: attention is linear in them, so once a
  /// head does for all keys.
  void finish(const AttentionArgs& args, const float* running, float sum, float* out) const;
  void merge_partials(const AttentionArgs& args, const Tile& tile, int kv_head, int64_t result);

  CodedRows k_rows_, v_rows_;  // of the call in progress
  ThreadPool& pool_;
  const Kernels& kernels_;
  std::vector<Scratch> scratch_;
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  Buffer<float> partial_;  // [results, queries of a tile, head_dim + 2]: out, max, sum of one segment
};

}  // namespace carat

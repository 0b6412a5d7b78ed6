// Attention of the CPU backend: how queries and segments of keys are cut into tasks.
#pragma once

#include <limits>
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
    int64_t floats;  // from this segment on they are read as KvLayer::recent has them
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
    Buffer<float> spread;  // [kMaxQueries, head_dim]: queries, spread like keys
    Buffer<float> row;     // one head, or a rotation
  };
  /// One of the storages of a layer.
  struct Storage {
    CodedRows k, v;
    std::span<const KvSequence> sequences;
  };
  /// What a query has added up of the segments so far.
  struct Running {
    float max = -std::numeric_limits<float>::infinity();
    float sum = 0.0f;
    float* out = nullptr;  // [head_dim]
  };

  void attend_task(const AttentionArgs& args, const Task& task, Scratch& scratch);
  void merge_partials(const AttentionArgs& args, const Tile& tile, int kv_head, int64_t result);
  /// Adds a segment's result. Codes come before floats. Values that are stored rotated or spread are added up like that
  /// (attention is linear in them) and turned back once a head: before the first floats, or by finish().
  void fold(const AttentionArgs& args, const Tile& tile, int64_t segment, float max, float sum, const float* out,
            Running& running) const;
  void finish(const AttentionArgs& args, const Tile& tile, const Running& running, float* out) const;
  void restore(const AttentionArgs& args, float* x) const;

  Storage main_, recent_;  // of the call in progress
  ThreadPool& pool_;
  const Kernels& kernels_;
  std::vector<Scratch> scratch_;
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  Buffer<float> partial_;  // [results, queries of a tile, head_dim + 2]: out, max, sum of one segment
};

}  // namespace carat

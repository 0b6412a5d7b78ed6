#include "compute/cpu/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace carat {
namespace {

// Rows of a tile: enough to share each conversion of a key, few enough that causal ranges stay alike.
constexpr int64_t kTileRows = 8;
// Below this many floats a loop over heads is done before other threads wake up.
constexpr int64_t kParallelFloats = 16384;

static_assert(kRecentStep % kSegment == 0, "a segment is read from one storage");

/// Rows of a full tile whose key heads serve `group` query heads each.
int64_t tile_rows(int group) {
  return std::clamp<int64_t>(kMaxQueries / group, 1, kTileRows);
}

/// Floats of one partial result: for each query of a full tile its output, maximum and sum over one segment.
int64_t partial_floats(int group, int head_dim) {
  return tile_rows(group) * group * (head_dim + 2);
}

/// Where the output of query `i` of a tile goes; queries are counted row by row, head by head.
float* output_of(const AttentionArgs& args, int64_t first_row, int kv_head, int group, int i) {
  return args.out + ((first_row + i / group) * args.heads + kv_head * group + i % group) * args.cache.head_dim;
}

/// The block of the token's position.
std::byte* block_of(const KvLayer& cache, const TokenRow& token) {
  const KvSequence& sequence = cache.sequences[static_cast<size_t>(token.sequence)];
  return sequence.blocks[(token.position / kKvBlock) % sequence.ring];
}

/// The first segment that the token reads as floats.
int64_t first_floats(const KvLayer& cache, const TokenRow& token) {
  return cache.floats_begin(token.position) / kSegment;
}

}  // namespace

CodedRows coded_rows(KvFormat format, int head_dim) {
  CodedRows rows{.format = format, .row_bytes = static_cast<int64_t>(kv_row_bytes(format, head_dim))};
  if (format.group == 0) return rows;
  rows.code_bytes = int64_t{head_dim} * format.bits / 8;
  rows.bits = format.bits;
  rows.groups = head_dim / format.group;
  rows.group_shift = std::countr_zero(unsigned{format.group});
  rows.halves = format.kind == KvFormat::Kind::kRotated ? rows.groups : 2 * rows.groups;
  rows.table = kv_codebook(format);
  for (int lane = 0; lane < 16; ++lane) {
    rows.shifts[lane] = lane < 8 ? format.bits * lane : format.bits * (lane - 8) + 8 * (4 - format.bits);
  }
  return rows;
}

CpuAttention::CpuAttention(ThreadPool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(static_cast<size_t>(pool.threads())) {}

void CpuAttention::finish_qkv(const QkvArgs& args) {
  const int head_dim = args.cache.head_dim;
  const int pairs = args.rope->pairs();
  const int kv_heads = args.k != nullptr ? args.cache.kv_heads : 0;
  std::array<KvLayer, 2> storages{args.cache};
  size_t storage_count = 1;
  if (args.cache.recent.positions > 0) storages[storage_count++] = args.cache.recent_layer();
  const std::span<const KvLayer> written = std::span(storages).first(storage_count);
  for (Scratch& scratch : scratch_) scratch.row.resize(3 * static_cast<size_t>(head_dim));
  const auto one_row = [&](int64_t r, int thread) {
    float* cos = scratch_[static_cast<size_t>(thread)].row.data();
    float* sin = cos + head_dim;
    float* head = sin + head_dim;
    const TokenRow& token = args.tokens[static_cast<size_t>(r)];
    args.rope->rotation(token.position, cos, sin);
    for (int h = 0; h < args.heads; ++h) {
      float* q = args.q + (r * args.heads + h) * head_dim;
      kernels_.rms_norm(q, args.q_norm.weight, args.q_norm.eps, head_dim, q);
      kernels_.rotate(q, cos, sin, head_dim, pairs);
    }
    for (int h = 0; h < kv_heads; ++h) {
      const float* k = args.k + (r * kv_heads + h) * head_dim;
      const float* v = args.v + (r * kv_heads + h) * head_dim;
      kernels_.rms_norm(k, args.k_norm.weight, args.k_norm.eps, head_dim, head);
      kernels_.rotate(head, cos, sin, head_dim, pairs);
      for (const KvLayer& cache : written) {
        kernels_.store_kv(head, head_dim, cache.k_format, block_of(cache, token) + cache.k_offset(h, token.position));
      }
      if (args.v_norm) {
        kernels_.rms_norm(v, args.v_norm->weight, args.v_norm->eps, head_dim, head);
        v = head;
      }
      for (const KvLayer& cache : written) {
        kernels_.store_kv(v, head_dim, cache.v_format, block_of(cache, token) + cache.v_offset(h, token.position));
      }
    }
  };
  if (args.rows * (args.heads + 2 * kv_heads) * head_dim < kParallelFloats) {
    for (int64_t r = 0; r < args.rows; ++r) one_row(r, 0);
  } else {
    pool_.run(args.rows, one_row);
  }
}

void CpuAttention::attend(const AttentionArgs& args) {
  const int head_dim = args.cache.head_dim;
  const int kv_heads = args.cache.kv_heads;
  const int group = args.heads / kv_heads;
  if (head_dim % 16 != 0) fail("head_dim is {}; the CPU backend needs a multiple of 16", head_dim);
  if (group > kMaxQueries) fail("{} query heads share a key head; the CPU backend supports {}", group, kMaxQueries);
  for (Scratch& scratch : scratch_) {
    scratch.scores.resize(static_cast<size_t>(kMaxQueries * kSegment));
    scratch.out.resize(2 * static_cast<size_t>(kMaxQueries) * static_cast<size_t>(head_dim));
    scratch.spread.resize(static_cast<size_t>(kMaxQueries) * static_cast<size_t>(head_dim));
  }

  const KvRecent& recent = args.cache.recent;
  main_ = {coded_rows(args.cache.k_format, head_dim), coded_rows(args.cache.v_format, head_dim), args.cache.sequences};
  recent_ = {coded_rows(recent.k_format, head_dim), coded_rows(recent.v_format, head_dim), recent.sequences};
  tiles_.clear();
  const int64_t full_tile = tile_rows(group);
  for (int64_t r = 0; r < args.rows;) {
    const TokenRow& first = args.tokens[static_cast<size_t>(r)];
    Tile tile{r, 0, first.key_begin / kSegment, 0, first_floats(args.cache, first)};
    for (; r < args.rows && tile.rows < full_tile; ++r, ++tile.rows) {
      const TokenRow& token = args.tokens[static_cast<size_t>(r)];
      if (token.sequence != first.sequence || first_floats(args.cache, token) != tile.floats) break;
      tile.first_segment = std::min(tile.first_segment, token.key_begin / kSegment);
      tile.end_segment = std::max(tile.end_segment, (token.key_end + kSegment - 1) / kSegment);
    }
    tiles_.push_back(tile);
  }

  // Many tiles: a task does all segments of a tile. Few (decode): a task does some of them, and the results are folded
  // afterwards, segment by segment, in the same order.
  const auto pairs = static_cast<int64_t>(tiles_.size()) * kv_heads;
  const bool split = pairs < 2 * pool_.threads() && pool_.threads() > 1;
  tasks_.clear();
  int64_t results = 0;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const Tile& tile = tiles_[t];
    const int64_t segments = tile.end_segment - tile.first_segment;
    const int64_t parts = std::max<int64_t>(1, 2 * pool_.threads() / pairs);
    const int64_t step = std::max<int64_t>(1, (segments + parts - 1) / parts);
    for (int h = 0; h < kv_heads; ++h) {
      if (!split || segments < 2) {
        tasks_.push_back({static_cast<int64_t>(t), h, tile.first_segment, tile.end_segment, -1});
        continue;
      }
      for (int64_t s = tile.first_segment; s < tile.end_segment; s += step) {
        const int64_t end = std::min(s + step, tile.end_segment);
        tasks_.push_back({static_cast<int64_t>(t), h, s, end, results});
        results += end - s;
      }
    }
  }
  partial_.resize(static_cast<size_t>(results * partial_floats(group, head_dim)));
  pool_.run(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int thread) {
    attend_task(args, tasks_[static_cast<size_t>(i)], scratch_[static_cast<size_t>(thread)]);
  });
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const Task& task = tasks_[i];
    const Tile& tile = tiles_[static_cast<size_t>(task.tile)];
    if (task.result >= 0 && task.first_segment == tile.first_segment) {
      merge_partials(args, tile, task.kv_head, task.result);
    }
  }
}

void CpuAttention::attend_task(const AttentionArgs& args, const Task& task, Scratch& scratch) {
  const int head_dim = args.cache.head_dim;
  const int kv_heads = args.cache.kv_heads;
  const int group = args.heads / kv_heads;
  const Tile& tile = tiles_[static_cast<size_t>(task.tile)];
  const int queries = static_cast<int>(tile.rows) * group;

  std::array<const float*, kMaxQueries> q;
  std::array<const float*, kMaxQueries> key_q;  // as they meet keys of main_
  const KvFormat k_format = args.cache.k_format;
  const bool spreads = k_format.kind == KvFormat::Kind::kSpread && task.first_segment < tile.floats;
  std::array<int64_t, kMaxQueries> key_begin;
  std::array<int64_t, kMaxQueries> key_end;
  for (int i = 0; i < queries; ++i) {
    const int64_t row = tile.first_row + i / group;
    const auto at = static_cast<size_t>(i);
    q[at] = args.q + (row * args.heads + task.kv_head * group + i % group) * head_dim;
    key_q[at] = q[at];
    if (spreads) {
      float* copy = scratch.spread.data() + static_cast<int64_t>(i) * head_dim;
      std::memcpy(copy, q[at], static_cast<size_t>(head_dim) * 4);
      kernels_.spread_kv(copy, head_dim, k_format.group);
      key_q[at] = copy;
    }
    key_begin[at] = args.tokens[static_cast<size_t>(row)].key_begin;
    key_end[at] = args.tokens[static_cast<size_t>(row)].key_end;
  }
  std::array<float, kMaxQueries> segment_max;
  std::array<float, kMaxQueries> segment_sum;
  SegmentArgs segment{.k = main_.k,
                      .v = main_.v,
                      .head_dim = head_dim,
                      .kv_heads = kv_heads,
                      .kv_head = task.kv_head,
                      .sequence = {},
                      .queries = queries,
                      .key_begin = key_begin.data(),
                      .key_end = key_end.data(),
                      .scale = args.scale,
                      .scores = scratch.scores.data(),
                      .max = segment_max.data(),
                      .sum = segment_sum.data(),
                      .out = scratch.out.data()};
  const auto sequence = static_cast<size_t>(args.tokens[static_cast<size_t>(tile.first_row)].sequence);
  const auto attend = [&](int64_t s) {
    segment.segment = s;
    segment.next = s + 1 < task.end_segment && s + 1 != tile.floats;
    if (s == task.first_segment || s == tile.floats) {
      const Storage& storage = s < tile.floats ? main_ : recent_;
      segment.k = storage.k;
      segment.v = storage.v;
      segment.sequence = storage.sequences[sequence];
      segment.q = s < tile.floats ? key_q.data() : q.data();
    }
    kernels_.attend_segment(segment);
  };
  if (task.result >= 0) {
    float* result = partial_.data() + task.result * partial_floats(group, head_dim);
    for (int64_t s = task.first_segment; s < task.end_segment; ++s, result += partial_floats(group, head_dim)) {
      attend(s);
      for (int i = 0; i < queries; ++i) {
        float* one = result + static_cast<int64_t>(i) * (head_dim + 2);
        std::memcpy(one, scratch.out.data() + static_cast<int64_t>(i) * head_dim, static_cast<size_t>(head_dim) * 4);
        one[head_dim] = segment_max[static_cast<size_t>(i)];
        one[head_dim + 1] = segment_sum[static_cast<size_t>(i)];
      }
    }
    return;
  }

  std::array<Running, kMaxQueries> running;
  for (int i = 0; i < queries; ++i) {
    running[static_cast<size_t>(i)].out = scratch.out.data() + int64_t{kMaxQueries + i} * head_dim;
  }
  for (int64_t s = task.first_segment; s < task.end_segment; ++s) {
    attend(s);
    for (int i = 0; i < queries; ++i) {
      const auto at = static_cast<size_t>(i);
      fold(args, tile, s, segment_max[at], segment_sum[at], scratch.out.data() + static_cast<int64_t>(i) * head_dim,
           running[at]);
    }
  }
  for (int i = 0; i < queries; ++i) {
    finish(args, tile, running[static_cast<size_t>(i)], output_of(args, tile.first_row, task.kv_head, group, i));
  }
}

void CpuAttention::fold(const AttentionArgs& args, const Tile& tile, int64_t segment, float max, float sum,
                        const float* out, Running& running) const {
  const bool any = running.max > -std::numeric_limits<float>::infinity();
  if (segment == tile.floats && any) restore(args, running.out);
  kernels_.merge_segment(max, sum, out, args.cache.head_dim, &running.max, &running.sum, running.out);
}

void CpuAttention::finish(const AttentionArgs& args, const Tile& tile, const Running& running, float* out) const {
  for (int d = 0; d < args.cache.head_dim; ++d) out[d] = running.out[d] / running.sum;
  if (tile.floats >= tile.end_segment) restore(args, out);
}

/// Undoes what was done to values before they were stored.
void CpuAttention::restore(const AttentionArgs& args, float* x) const {
  const KvFormat format = args.cache.v_format;
  if (format.kind == KvFormat::Kind::kRotated) kernels_.rotate_kv(x, args.cache.head_dim, true);
  if (format.kind == KvFormat::Kind::kSpread) kernels_.spread_kv(x, args.cache.head_dim, format.group);
}

void CpuAttention::merge_partials(const AttentionArgs& args, const Tile& tile, int kv_head, int64_t result) {
  const int head_dim = args.cache.head_dim;
  const int group = args.heads / args.cache.kv_heads;
  const int queries = static_cast<int>(tile.rows) * group;
  const int64_t result_floats = partial_floats(group, head_dim);
  for (int i = 0; i < queries; ++i) {
    Running running{.out = scratch_[0].out.data()};
    for (int64_t s = tile.first_segment; s < tile.end_segment; ++s) {
      const float* partial = partial_.data() + (result + s - tile.first_segment) * result_floats +
                             static_cast<int64_t>(i) * (head_dim + 2);
      fold(args, tile, s, partial[head_dim], partial[head_dim + 1], partial, running);
    }
    finish(args, tile, running, output_of(args, tile.first_row, kv_head, group, i));
  }
}

}  // namespace carat

// The table of kernels that each instruction set fills in, and the layouts that they share.
//
// One source (the .inc files beside this one) is compiled once per instruction set; a build of carat holds them all and
// picks at run time. All of them compute the same bits: vectors have 16 lanes everywhere, multiply-adds are fused
// everywhere, and every sum has one order:
//
//   - float dot products: lane c % 16 accumulates its columns in ascending order by fused multiply-add; then the lanes
//     are folded in halves (8, 4, 2, 1).
//   - integer dot products: columns form groups of 32. The sum of (code - zero) * q over a group (or half a group, for
//     formats with a scale per 16 columns) is an exact integer I. Chain g % 8 accumulates, for its groups in ascending
//     order, fma(float(I), scale, chain) and, for formats with minima, fma(bias, float(sum of q), chain). The row's
//     result is x_scale times the chains' sum, 0 to 7.
#pragma once

#include <cstdint>

#include "compute/device.h"
#include "quant/matrix.h"

namespace carat {

/// Columns per scale of quantised activations.
constexpr int64_t kGroup = 32;
/// Independent accumulation chains of integer dot products.
constexpr int64_t kChains = 8;
/// Quantised activations are integers of magnitude <= kMaxActivation, split in two signed bytes: q = kRadix * hi + lo.
constexpr int kRadixBits = 8;
constexpr int kRadix = 1 << kRadixBits;
constexpr int kMaxActivation = 127 * kRadix + 127;

/// Orders of columns within each 128 (four groups). Where a byte holds two codes, taking all low nibbles and then all
/// high nibbles of 64 bytes is cheapest, and the activations can be put in that order once for all rows.
enum class Order {
  kPlain,
  kHalves,     // columns 0-15 of the four groups, then columns 16-31
  kEvenOdd,    // even columns, then odd ones
  kAlternate,  // groups 0, 2, 1, 3
};

/// Quantised activations [rows, cols]: x ~ scale[row] * (256 * hi[c] + lo[c]). One scale a row suffices: half of the
/// last of its 15 bits is finer than bfloat16 even beside the largest outlier, and measured no worse than a scale a
/// group. Arrays are padded with zeros to a multiple of 8 groups; a row's arrays follow each other at fixed strides.
struct QuantizedRows {
  int64_t rows = 0;
  int64_t groups = 0;         // ceil(cols / 32)
  int64_t padded_groups = 0;  // rounded up to a multiple of 8
  int8_t* hi = nullptr;       // [rows, padded_groups * 32]
  int8_t* lo = nullptr;
  int8_t* ordered_hi = nullptr;  // hi and lo once more, in the order `order`
  int8_t* ordered_lo = nullptr;
  Order order = Order::kPlain;
  int16_t* q = nullptr;     // 256 * hi + lo; null where Kernels::reads_whole says that nobody reads it
  float* scale = nullptr;   // [rows]
  int32_t* sum0 = nullptr;  // [rows, padded_groups]: sum of q over columns 0-15 of each group
  int32_t* sum1 = nullptr;  // over columns 16-31
};

/// Activations of a GEMM in the order in which the micro-kernel reads them, for a tile of `width` tokens:
/// per group in visiting order (chain by chain), `tile_group_bytes` bytes.
/// Weights likewise: per panel of `panel_rows` rows.
struct GemmShape {
  int64_t panel_rows = 0;
  int64_t tile_tokens = 0;
  size_t panel_group_bytes = 0;
  size_t tile_group_bytes = 0;
  size_t tile_tail_bytes = 0;  // after all groups of a tile
};

/// How attention reads rows of keys or of values; what kv_rows.h says, worked out once.
struct CodedRows {
  KvFormat format;
  int64_t row_bytes = 0;
  // Of coded formats only:
  int64_t code_bytes = 0;
  int bits = 0;
  int groups = 0;
  int group_shift = 0;                  // log2 of the group
  int halves = 0;                       // scales and biases of a row
  const float* table = nullptr;         // kv_codebook
  alignas(64) int32_t shifts[16] = {};  // where lanes' codes of up to 4 bits begin, see NibbleLoader
};
CodedRows coded_rows(KvFormat format, int head_dim);

/// A block of queries of one kv head against the keys and values of one segment; see attention.inc.
struct SegmentArgs {
  CodedRows k, v;
  int head_dim = 0;
  int kv_heads = 0;
  int kv_head = 0;
  KvSequence sequence;
  int64_t segment = 0;                 // keys [segment, segment + 1) * kSegment
  bool next = false;                   // the segment after this one comes next: its keys may be fetched
  int queries = 0;                     // <= kMaxQueries
  const float* const* q = nullptr;     // [queries] -> [head_dim]
  const int64_t* key_begin = nullptr;  // [queries], absolute
  const int64_t* key_end = nullptr;
  float scale = 1.0f;
  float* scores = nullptr;  // scratch [queries, kSegment]
  float* max = nullptr;     // out [queries]; -infinity when the query sees no key of the segment
  float* sum = nullptr;     // out [queries]
  float* out = nullptr;     // out [queries, head_dim], not divided by sum
};
constexpr int64_t kSegment = 256;
constexpr int kMaxQueries = 32;

struct Kernels {
  const char* name;

  /// y = x * rsqrt(mean(x^2) + eps) * weight, over n values; weight may be null. y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  /// y[i] = (y[i] + x[i] * rsqrt(mean(x^2) + eps) * weight[i]) * scale.
  void (*add_rms_norm)(const float* x, const float* weight, float eps, int64_t n, float scale, float* y);
  /// y[i] = gelu_tanh(gate[i]) * up[i].
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* y);
  /// x[i] = c * tanh(x[i] / c).
  void (*softcap)(float* x, int64_t n, float c);
  /// y[i] = (x[i] * a + y[i]) * b.
  void (*axpby)(const float* x, float a, float b, int64_t n, float* y);
  /// y[i] += sum of u[j] * b[j * b_stride + i], j ascending from 0 to rank.
  void (*add_ranks)(const float* u, const float* b, int64_t b_stride, int64_t rank, int64_t n, float* y);
  /// Rotates pairs (i, i + head_dim / 2), i < pairs, in place.
  void (*rotate)(float* x, const float* cos, const float* sin, int head_dim, int pairs);
  /// store_kv_row, rotate_kv_head and spread_kv_groups of kv_rows.h.
  void (*store_kv)(const float* x, int64_t n, KvFormat format, std::byte* out);
  void (*rotate_kv)(float* x, int64_t n, bool back);
  void (*spread_kv)(float* x, int64_t n, int64_t group);

  /// Whether these kernels read QuantizedRows::q.
  bool reads_whole;
  /// Quantises one row of `cols` floats into row `row` of x (all strides from x).
  void (*quantize)(const float* values, int64_t cols, const QuantizedRows& x, int64_t row);
  /// The order of activations that integer_dot wants for w; null where that is always kPlain.
  Order (*order)(const Matrix& w);
  /// Fills in row `row` of x.ordered_hi and x.ordered_lo, in x.order.
  void (*reorder)(const QuantizedRows& x, int64_t row);
  /// out[t * stride + r - first] = dot(w[r], x[first_token + t]) for `count` rows and `tokens` tokens. `next` is where
  /// this thread will read weights then, which may be fetched meanwhile; null: behind these rows.
  void (*integer_dot)(const Matrix& w, int64_t first, int64_t count, const QuantizedRows& x, int64_t first_token,
                      int64_t tokens, float* out, int64_t stride, const std::byte* next);

  /// GEMM for integer formats; null where integer_dot is all there is.
  GemmShape gemm;
  void (*pack_weights)(const Matrix& w, int64_t first, int64_t count, std::byte* panel);
  void (*pack_tokens)(const QuantizedRows& x, const int64_t* rows, int64_t count, std::byte* tile);
  void (*gemm_tile)(const Matrix& w, const std::byte* panel, const std::byte* tile, int64_t groups, int64_t rows,
                    int64_t tokens, float* out, int64_t stride);
  /// gemm_tile for any number of rows, whose panels follow each other: one of the two is null. `next` is the tile that
  /// comes after this one: it may be fetched meanwhile.
  void (*gemm_strip)(const Matrix& w, const std::byte* panels, const std::byte* tile, const std::byte* next,
                     int64_t groups, int64_t rows, int64_t tokens, float* out, int64_t stride);

  /// Dequantises `count` rows to float32, out [count, stride].
  void (*decode_rows)(const Matrix& w, int64_t first, int64_t count, float* out, int64_t stride);
  /// out[t * out_stride + r] = dot(w[r], x[t]) over `cols`; w [rows, w_stride], x [tokens, x_stride].
  void (*float_dot)(const float* w, int64_t w_stride, int64_t rows, const float* x, int64_t x_stride, int64_t tokens,
                    int64_t cols, float* out, int64_t out_stride);

  /// out[t * out_stride + r - first] = dot(w[r], x[t]) for `count` rows of F16, BF16 or MXFP8 as they lie in the file:
  /// converted in registers, for few tokens. The same sums as float_dot of what decode_rows gives.
  void (*narrow_dot)(const Matrix& w, int64_t first, int64_t count, const float* x, int64_t x_stride, int64_t tokens,
                     float* out, int64_t out_stride);

  void (*attend_segment)(const SegmentArgs& args);
  /// Folds a segment's (max, sum, out) into a running one: online softmax over segments in ascending order.
  void (*merge_segment)(float segment_max, float segment_sum, const float* segment_out, int head_dim, float* max,
                        float* sum, float* out);
};

/// True for formats whose dot products run on integers (when rows are a whole number of groups).
bool has_integer_kernel(const Matrix& matrix);

const Kernels& portable_kernels();
/// Null where this build or machine lacks the instruction set.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels* neon_kernels();

}  // namespace carat

// A weight: its number format, its shape, and where its bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace carat {

/// The number formats of weights. docs/formats.md describes each; quant/<family>.h reads it.
enum class WeightFormat : uint8_t {
  // Plain floats.
  kF32,
  kF16,
  kBF16,
  // MLX: codes in `data`, one scale (and for affine one bias) per group in arrays of their own.
  kAffine,  // w = scale * q + bias, q of `bits` bits as one little-endian bit stream per row
  kMxFp4,   // e2m1 nibbles, groups of 32, E8M0 scales
  kMxFp8,   // e4m3 bytes, groups of 32, E8M0 scales
  kNvFp4,   // e2m1 nibbles, groups of 16, E4M3 scales
  // GGUF: blocks that hold their own scales.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kGgufMxFp4,
};

/// Type of the scale and bias arrays of the MLX formats.
enum class ScaleType : uint8_t { kNone, kF32, kF16, kBF16, kE8M0, kE4M3 };

/// A matrix [rows, cols] in row-major order, read in place: y = W x contracts over `cols`.
/// A view: it does not own the bytes (the Checkpoint that made it does). Knows nothing of layers.
struct Matrix {
  WeightFormat format = WeightFormat::kF32;
  uint8_t bits = 32;   // code width of kAffine: 2, 3, 4, 5, 6 or 8
  uint16_t group = 0;  // columns per scale of the MLX formats: 16, 32, 64 or 128
  ScaleType scale_type = ScaleType::kNone;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // [rows, cols / group] of scale_type
  const std::byte* biases = nullptr;  // likewise, kAffine only
  size_t row_bytes = 0;               // distance between rows in `data`
  size_t scale_row_bytes = 0;         // distance between rows in `scales` and in `biases`

  explicit operator bool() const { return data != nullptr; }

  /// Rows [first, first + count) as a matrix of their own.
  Matrix slice(int64_t first, int64_t count) const {
    Matrix part = *this;
    part.rows = count;
    part.data += static_cast<size_t>(first) * row_bytes;
    if (scales != nullptr) part.scales += static_cast<size_t>(first) * scale_row_bytes;
    if (biases != nullptr) part.biases += static_cast<size_t>(first) * scale_row_bytes;
    return part;
  }

  /// Bytes that one pass over the whole matrix reads.
  size_t bytes() const {
    const size_t side_arrays = (scales != nullptr ? 1u : 0u) + (biases != nullptr ? 1u : 0u);
    return static_cast<size_t>(rows) * (row_bytes + scale_row_bytes * side_arrays);
  }
};

/// The same-shaped matrices of the experts of one layer: expert e is rows [e * stride, e * stride + rows) of `all`.
/// In a fused gate_up tensor gate and up are two such stacks over the same bytes.
struct MatrixStack {
  Matrix all;  // [experts * stride, cols]
  int64_t experts = 0;
  int64_t stride = 0;  // rows from one expert to the next
  int64_t offset = 0;  // first row inside an expert
  int64_t rows = 0;    // rows of one expert's matrix

  explicit operator bool() const { return static_cast<bool>(all); }
  Matrix at(int64_t expert) const { return all.slice(expert * stride + offset, rows); }
};

/// Columns and bytes of one block of a GGUF format, or {1, element size} of a float format.
struct BlockShape {
  int cols;
  int bytes;
};
BlockShape block_shape(WeightFormat format);  // not for the MLX formats

/// A matrix over contiguous rows of a GGUF or float format starting at `data`.
/// Throws Error when `cols` is not a multiple of the block.
Matrix make_matrix(WeightFormat format, int64_t rows, int64_t cols, const std::byte* data);

/// Columns [first, first + count) as a matrix of their own; nullopt when the format's blocks or groups do not begin and
/// end there.
std::optional<Matrix> columns(const Matrix& matrix, int64_t first, int64_t count);

/// "Q4_K", "BF16", "affine 4-bit g64" …: for inspect and error messages.
std::string format_name(const Matrix& matrix);
std::string_view format_name(WeightFormat format);

/// Average stored bits per weight, scales included.
double bits_per_weight(const Matrix& matrix);

/// Writes the dequantised `row` as float32 to out[0, cols). This scalar path defines what each format means:
/// float32 arithmetic in the order that docs/formats.md gives for the format.
void decode_row(const Matrix& matrix, int64_t row, float* out);

}  // namespace carat

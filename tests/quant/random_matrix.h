// Random weights of any format, with their bytes.
#pragma once

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "base/half.h"
#include "quant/matrix.h"

namespace carat::test {

inline constexpr std::array kAllFormats = {
    WeightFormat::kF32,   WeightFormat::kF16,   WeightFormat::kBF16,   WeightFormat::kAffine, WeightFormat::kMxFp4,
    WeightFormat::kMxFp8, WeightFormat::kNvFp4, WeightFormat::kQ4_0,   WeightFormat::kQ4_1,   WeightFormat::kQ5_0,
    WeightFormat::kQ5_1,  WeightFormat::kQ8_0,  WeightFormat::kQ2_K,   WeightFormat::kQ3_K,   WeightFormat::kQ4_K,
    WeightFormat::kQ5_K,  WeightFormat::kQ6_K,  WeightFormat::kIQ4_NL, WeightFormat::kIQ4_XS, WeightFormat::kGgufMxFp4};

inline bool is_mlx(WeightFormat format) {
  return format == WeightFormat::kAffine || format == WeightFormat::kMxFp4 || format == WeightFormat::kMxFp8 ||
         format == WeightFormat::kNvFp4;
}

/// Owns the bytes that its matrix views.
struct StoredMatrix {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<std::byte> biases;
  Matrix matrix;
};

/// A matrix of an MLX format over buffers of zeros.
inline StoredMatrix make_mlx_matrix(WeightFormat format, int64_t rows, int64_t cols, int bits, int group,
                                    ScaleType scale_type) {
  const size_t scale_size = scale_type == ScaleType::kF32                                     ? 4
                            : scale_type == ScaleType::kF16 || scale_type == ScaleType::kBF16 ? 2
                                                                                              : 1;
  StoredMatrix stored;
  Matrix& matrix = stored.matrix;
  matrix.format = format;
  matrix.bits = static_cast<uint8_t>(bits);
  matrix.group = static_cast<uint16_t>(group);
  matrix.scale_type = scale_type;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_bytes = static_cast<size_t>(cols * bits / 8);
  matrix.scale_row_bytes = static_cast<size_t>(cols / group) * scale_size;
  stored.data.resize(static_cast<size_t>(rows) * matrix.row_bytes);
  stored.scales.resize(static_cast<size_t>(rows) * matrix.scale_row_bytes);
  if (format == WeightFormat::kAffine) stored.biases.resize(stored.scales.size());
  matrix.data = stored.data.data();
  matrix.scales = stored.scales.data();
  matrix.biases = stored.biases.empty() ? nullptr : stored.biases.data();
  return stored;
}

/// Random bytes: any bit pattern is a valid code, and scales are whatever the bytes say (NaN and infinity included).
inline void fill_random(std::vector<std::byte>& bytes, std::mt19937_64& random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
}

inline StoredMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, std::mt19937_64& random,
                                  int bits = 4, int group = 32, ScaleType scale_type = ScaleType::kBF16) {
  StoredMatrix stored;
  if (is_mlx(format)) {
    stored = make_mlx_matrix(format, rows, cols, bits, group, scale_type);
    fill_random(stored.scales, random);
    fill_random(stored.biases, random);
  } else {
    const BlockShape block = block_shape(format);
    stored.data.resize(static_cast<size_t>(rows * (cols / block.cols) * block.bytes));
    stored.matrix = make_matrix(format, rows, cols, stored.data.data());
  }
  fill_random(stored.data, random);
  return stored;
}

}  // namespace carat::test

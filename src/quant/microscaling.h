// MLX's microscaling formats with e2m1 elements: mxfp4 (E8M0 scale per 32) and nvfp4 (E4M3 scale per 16).
// mxfp8 is float-coded: it has no integer reader, decode_row in matrix.cpp reads it.
#pragma once

#include <array>

#include "base/half.h"
#include "quant/reader.h"

namespace carat {

/// Twice the e2m1 values (0 .5 1 1.5 2 3 4 6 and their negatives), offset by 128.
/// Twice, so that they are integers: the scale is halved in exchange, which is exact.
inline constexpr std::array<uint8_t, 16> kE2m1Codes = {128, 129, 130, 131, 132, 134, 136, 140,
                                                       128, 127, 126, 125, 124, 122, 120, 116};

template <>
struct Reader<WeightFormat::kMxFp4> : SymmetricReader<128, 140> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const size_t group = static_cast<size_t>(group32);
    const std::byte* nibbles = matrix.data + static_cast<size_t>(row) * matrix.row_bytes + group * 16;
    for (int i = 0; i < 16; ++i) {
      const auto pair = load<uint8_t>(nibbles + i);
      codes[2 * i] = kE2m1Codes[pair & 15u];
      codes[2 * i + 1] = kE2m1Codes[pair >> 4];
    }
    const auto exponent = load<uint8_t>(matrix.scales + static_cast<size_t>(row) * matrix.scale_row_bytes + group);
    scale[0] = scale[1] = 0.5f * e8m0_to_f32(exponent);
    bias[0] = bias[1] = 0.0f;
  }
};

template <>
struct Reader<WeightFormat::kNvFp4> : SymmetricReader<128, 140, 2> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const size_t group = static_cast<size_t>(group32);
    const std::byte* nibbles = matrix.data + static_cast<size_t>(row) * matrix.row_bytes + group * 16;
    const std::byte* scales = matrix.scales + static_cast<size_t>(row) * matrix.scale_row_bytes + group * 2;
    const int halves = matrix.cols - group32 * kReadColumns >= kReadColumns ? 2 : 1;
    for (int half = 0; half < 2; ++half) {
      bias[half] = 0.0f;
      scale[half] = half < halves ? 0.5f * e4m3_to_f32(load<uint8_t>(scales + half)) : 0.0f;
      for (int i = 0; i < 8; ++i) {
        const auto pair = half < halves ? load<uint8_t>(nibbles + 8 * half + i) : uint8_t{0};
        codes[16 * half + 2 * i] = kE2m1Codes[pair & 15u];
        codes[16 * half + 2 * i + 1] = kE2m1Codes[pair >> 4];
      }
    }
  }
};

}  // namespace carat

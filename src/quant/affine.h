// MLX's affine groups: w = scale * q + bias, q unsigned of 2, 3, 4, 5, 6 or 8 bits.
#pragma once

#include "base/half.h"
#include "quant/reader.h"

namespace carat {

/// Element `index` of an array of floats of `type`; E8M0 and E4M3 included.
inline float read_scale(const std::byte* array, int64_t index, ScaleType type) {
  const auto i = static_cast<size_t>(index);
  switch (type) {
    case ScaleType::kF32:
      return load<float>(array + 4 * i);
    case ScaleType::kF16:
      return f16_to_f32(load<uint16_t>(array + 2 * i));
    case ScaleType::kBF16:
      return bf16_to_f32(load<uint16_t>(array + 2 * i));
    case ScaleType::kE8M0:
      return e8m0_to_f32(load<uint8_t>(array + i));
    case ScaleType::kE4M3:
      return e4m3_to_f32(load<uint8_t>(array + i));
    case ScaleType::kNone:
      break;
  }
  return 1.0f;
}

/// Takes 32 codes of `kBits` bits from 4 * kBits bytes: one little-endian bit stream, code i in bits [i * kBits,
/// +kBits).
template <int kBits>
void unpack_bit_stream(const std::byte* stream, uint8_t codes[kReadColumns]) {
  // Eight codes fill exactly kBits bytes, so no code straddles two such pieces.
  for (int piece = 0; piece < 4; ++piece) {
    uint64_t word = 0;
    std::memcpy(&word, stream + piece * kBits, kBits);
    for (int i = 0; i < 8; ++i)
      codes[8 * piece + i] = static_cast<uint8_t>((word >> (i * kBits)) & ((1u << kBits) - 1));
  }
}

template <>
struct Reader<WeightFormat::kAffine> : BiasedReader<255> {  // one half: groups are 32 columns or more
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const size_t row_index = static_cast<size_t>(row);
    const std::byte* stream =
        matrix.data + row_index * matrix.row_bytes + static_cast<size_t>(group32) * 4 * matrix.bits;
    switch (matrix.bits) {
      case 2:
        unpack_bit_stream<2>(stream, codes);
        break;
      case 3:
        unpack_bit_stream<3>(stream, codes);
        break;
      case 4:
        unpack_bit_stream<4>(stream, codes);
        break;
      case 5:
        unpack_bit_stream<5>(stream, codes);
        break;
      case 6:
        unpack_bit_stream<6>(stream, codes);
        break;
      default:
        unpack_bit_stream<8>(stream, codes);
        break;
    }
    const int64_t group = group32 * kReadColumns / matrix.group;
    const size_t offset = row_index * matrix.scale_row_bytes;
    scale[0] = scale[1] = read_scale(matrix.scales + offset, group, matrix.scale_type);
    bias[0] = bias[1] = read_scale(matrix.biases + offset, group, matrix.scale_type);
  }
};

}  // namespace carat

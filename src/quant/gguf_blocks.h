// GGUF's blocks: 32 columns, or 256 in eight groups of 32 (the K family), each with its scales inside.
// Layouts and formulas: docs/formats.md.
#pragma once

#include <array>

#include "base/half.h"
#include "quant/microscaling.h"
#include "quant/reader.h"

namespace carat {

namespace gguf {

inline float load_f16(const std::byte* address) {
  return f16_to_f32(load<uint16_t>(address));
}

inline uint8_t load_u8(const std::byte* address) {
  return load<uint8_t>(address);
}

/// The block of `bytes` bytes that holds columns [32 * group32, +32), when blocks are `groups` groups wide.
inline const std::byte* block_at(const Matrix& matrix, int64_t row, int64_t group32, size_t bytes, int64_t groups) {
  return matrix.data + static_cast<size_t>(row) * matrix.row_bytes + static_cast<size_t>(group32 / groups) * bytes;
}

/// 16 bytes: the low nibbles are columns 0..15, the high nibbles columns 16..31.
inline void split_nibbles(const std::byte* bytes, uint8_t codes[kReadColumns]) {
  for (int i = 0; i < 16; ++i) {
    const uint8_t pair = load_u8(bytes + i);
    codes[i] = pair & 15u;
    codes[i + 16] = pair >> 4;
  }
}

/// Bit i of the word is bit 4 of code i.
inline void add_fifth_bits(const std::byte* word, uint8_t codes[kReadColumns]) {
  const auto high = load<uint32_t>(word);
  for (int i = 0; i < kReadColumns; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (((high >> i) & 1u) << 4));
}

inline void set_both(float pair[2], float value) {
  pair[0] = pair[1] = value;
}

/// Scale and minimum of group `g` of Q4_K and Q5_K: eight pairs of 6 bits in 12 bytes.
struct ScaleMin {
  int scale;
  int min;
};
inline ScaleMin scale_min(const std::byte* packed, int g) {
  if (g < 4) return {load_u8(packed + g) & 63, load_u8(packed + g + 4) & 63};
  const int low = load_u8(packed + g + 4);
  return {(low & 15) | ((load_u8(packed + g - 4) >> 6) << 4), (low >> 4) | ((load_u8(packed + g) >> 6) << 4)};
}

/// Scale `i` of Q3_K's sixteen: 6 bits in 12 bytes, low nibbles first, then the high pairs; still offset by 32.
inline int q3_k_scale(const std::byte* packed, int i) {
  const int low = i < 8 ? load_u8(packed + i) & 15 : load_u8(packed + i - 8) >> 4;
  const int high = (load_u8(packed + 8 + i % 4) >> (2 * (i / 4))) & 3;
  return low | (high << 4);
}

/// The IQ4 codebook, offset by 128: a fixed curve that is denser around zero than a uniform one.
inline constexpr std::array<uint8_t, 16> kIq4Codes = {1,   24,  45,  63,  79,  93,  106, 118,
                                                      129, 141, 153, 166, 181, 197, 217, 241};

template <size_t n>
void through_codebook(const std::array<uint8_t, n>& book, uint8_t codes[kReadColumns]) {
  for (int i = 0; i < kReadColumns; ++i) codes[i] = book[codes[i]];
}

}  // namespace gguf

/// { f16 d; u8 nibbles[16] }: d * (q - 8)
template <>
struct Reader<WeightFormat::kQ4_0> : SymmetricReader<8, 15> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 18, 1);
    gguf::split_nibbles(block + 2, codes);
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, 0.0f);
  }
};

/// { f16 d, m; u8 nibbles[16] }: d * q + m
template <>
struct Reader<WeightFormat::kQ4_1> : BiasedReader<15> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 20, 1);
    gguf::split_nibbles(block + 4, codes);
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, gguf::load_f16(block + 2));
  }
};

/// { f16 d; u32 fifth_bits; u8 nibbles[16] }: d * (q - 16)
template <>
struct Reader<WeightFormat::kQ5_0> : SymmetricReader<16, 31> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 22, 1);
    gguf::split_nibbles(block + 6, codes);
    gguf::add_fifth_bits(block + 2, codes);
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, 0.0f);
  }
};

/// { f16 d, m; u32 fifth_bits; u8 nibbles[16] }: d * q + m
template <>
struct Reader<WeightFormat::kQ5_1> : BiasedReader<31> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 24, 1);
    gguf::split_nibbles(block + 8, codes);
    gguf::add_fifth_bits(block + 4, codes);
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, gguf::load_f16(block + 2));
  }
};

/// { f16 d; i8 q[32] }: d * q
template <>
struct Reader<WeightFormat::kQ8_0> : SymmetricReader<128, 255> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 34, 1);
    for (int i = 0; i < kReadColumns; ++i) codes[i] = gguf::load_u8(block + 2 + i) ^ 0x80u;  // two's complement + 128
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, 0.0f);
  }
};

/// { u8 scale_min[16]; u8 pairs[64]; f16 d, dmin }: (d * s) * q - dmin * m, s and m per 16 columns
template <>
struct Reader<WeightFormat::kQ2_K> : BiasedReader<3, 2> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 84, 8);
    const int g = static_cast<int>(group32 % 8);
    const std::byte* pairs = block + 16 + 32 * (g / 4);
    for (int i = 0; i < kReadColumns; ++i) codes[i] = (gguf::load_u8(pairs + i) >> (2 * (g % 4))) & 3u;
    const float d = gguf::load_f16(block + 80);
    const float dmin = gguf::load_f16(block + 82);
    for (int half = 0; half < 2; ++half) {
      const uint8_t packed = gguf::load_u8(block + 2 * g + half);
      scale[half] = d * static_cast<float>(packed & 15);
      bias[half] = -(dmin * static_cast<float>(packed >> 4));
    }
  }
};

/// { u8 third_bits[32]; u8 pairs[64]; u8 scales[12]; f16 d }: (d * (s - 32)) * (q - 4), s per 16 columns
template <>
struct Reader<WeightFormat::kQ3_K> : SymmetricReader<4, 7, 2> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 110, 8);
    const int g = static_cast<int>(group32 % 8);
    const std::byte* pairs = block + 32 + 32 * (g / 4);
    for (int i = 0; i < kReadColumns; ++i) {
      const uint32_t low = (gguf::load_u8(pairs + i) >> (2 * (g % 4))) & 3u;
      codes[i] = static_cast<uint8_t>(low | (((gguf::load_u8(block + i) >> g) & 1u) << 2));
    }
    const float d = gguf::load_f16(block + 108);
    for (int half = 0; half < 2; ++half) {
      scale[half] = d * static_cast<float>(gguf::q3_k_scale(block + 96, 2 * g + half) - 32);
      bias[half] = 0.0f;
    }
  }
};

/// { f16 d, dmin; u8 scale_min[12]; u8 nibbles[128] }: (d * s) * q - dmin * m
template <>
struct Reader<WeightFormat::kQ4_K> : BiasedReader<15> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 144, 8);
    const int g = static_cast<int>(group32 % 8);
    const std::byte* nibbles = block + 16 + 32 * (g / 2);
    for (int i = 0; i < kReadColumns; ++i) codes[i] = (gguf::load_u8(nibbles + i) >> (4 * (g % 2))) & 15u;
    const gguf::ScaleMin packed = gguf::scale_min(block + 4, g);
    gguf::set_both(scale, gguf::load_f16(block) * static_cast<float>(packed.scale));
    gguf::set_both(bias, -(gguf::load_f16(block + 2) * static_cast<float>(packed.min)));
  }
};

/// { f16 d, dmin; u8 scale_min[12]; u8 fifth_bits[32]; u8 nibbles[128] }: (d * s) * q - dmin * m
template <>
struct Reader<WeightFormat::kQ5_K> : BiasedReader<31> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 176, 8);
    const int g = static_cast<int>(group32 % 8);
    const std::byte* nibbles = block + 48 + 32 * (g / 2);
    for (int i = 0; i < kReadColumns; ++i) {
      const uint32_t low = (gguf::load_u8(nibbles + i) >> (4 * (g % 2))) & 15u;
      codes[i] = static_cast<uint8_t>(low | (((gguf::load_u8(block + 16 + i) >> g) & 1u) << 4));
    }
    const gguf::ScaleMin packed = gguf::scale_min(block + 4, g);
    gguf::set_both(scale, gguf::load_f16(block) * static_cast<float>(packed.scale));
    gguf::set_both(bias, -(gguf::load_f16(block + 2) * static_cast<float>(packed.min)));
  }
};

/// { u8 nibbles[128]; u8 high_pairs[64]; i8 scales[16]; f16 d }: (d * s) * (q - 32), s per 16 columns
template <>
struct Reader<WeightFormat::kQ6_K> : SymmetricReader<32, 63, 2> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 210, 8);
    const int g = static_cast<int>(group32 % 8);
    const int quarter = g % 4;  // of the 128 columns that share nibbles and high pairs
    const std::byte* nibbles = block + 64 * (g / 4) + 32 * (quarter % 2);
    const std::byte* high_pairs = block + 128 + 32 * (g / 4);
    for (int i = 0; i < kReadColumns; ++i) {
      const uint32_t low = (gguf::load_u8(nibbles + i) >> (4 * (quarter / 2))) & 15u;
      const uint32_t high = (gguf::load_u8(high_pairs + i) >> (2 * quarter)) & 3u;
      codes[i] = static_cast<uint8_t>(low | (high << 4));
    }
    const float d = gguf::load_f16(block + 208);
    for (int half = 0; half < 2; ++half) {
      scale[half] = d * static_cast<float>(load<int8_t>(block + 192 + 2 * g + half));
      bias[half] = 0.0f;
    }
  }
};

/// { f16 d; u8 nibbles[16] }: d * codebook[q]
template <>
struct Reader<WeightFormat::kIQ4_NL> : SymmetricReader<128, 241> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 18, 1);
    gguf::split_nibbles(block + 2, codes);
    gguf::through_codebook(gguf::kIq4Codes, codes);
    gguf::set_both(scale, gguf::load_f16(block));
    gguf::set_both(bias, 0.0f);
  }
};

/// { f16 d; u16 scales_high; u8 scales_low[4]; u8 nibbles[128] }: (d * (s - 32)) * codebook[q]
template <>
struct Reader<WeightFormat::kIQ4_XS> : SymmetricReader<128, 241> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 136, 8);
    const int g = static_cast<int>(group32 % 8);
    gguf::split_nibbles(block + 8 + 16 * g, codes);
    gguf::through_codebook(gguf::kIq4Codes, codes);
    const int low = (gguf::load_u8(block + 4 + g / 2) >> (4 * (g % 2))) & 15;
    const int high = (load<uint16_t>(block + 2) >> (2 * g)) & 3;
    gguf::set_both(scale, gguf::load_f16(block) * static_cast<float>((low | (high << 4)) - 32));
    gguf::set_both(bias, 0.0f);
  }
};

/// { u8 exponent; u8 nibbles[16] }: 2^(exponent - 127) * e2m1[q]
template <>
struct Reader<WeightFormat::kGgufMxFp4> : SymmetricReader<128, 140> {
  static void read(const Matrix& matrix, int64_t row, int64_t group32, uint8_t codes[kReadColumns], float scale[2],
                   float bias[2]) {
    const std::byte* block = gguf::block_at(matrix, row, group32, 17, 1);
    gguf::split_nibbles(block + 1, codes);
    gguf::through_codebook(kE2m1Codes, codes);
    // Exponent 255 is NaN in OCP's E8M0; GGUF knows no NaN here and means 2^128, whose half is finite.
    const uint8_t exponent = gguf::load_u8(block);
    gguf::set_both(scale, exponent == 255 ? 0x1p127f : 0.5f * e8m0_to_f32(exponent));
    gguf::set_both(bias, 0.0f);
  }
};

}  // namespace carat

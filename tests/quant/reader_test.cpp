// The readers' own contract, on random bytes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "quant/random_matrix.h"
#include "quant/readers.h"

namespace carat {
namespace {

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

/// Rebuilds each row from codes, scales and biases and compares with decode_row.
void expect_reader_agrees(const Matrix& matrix) {
  with_reader(matrix.format, [&](auto reader) {
    using R = decltype(reader);
    std::vector<float> decoded(static_cast<size_t>(matrix.cols));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      decode_row(matrix, row, decoded.data());
      for (int64_t group = 0; group * 32 < matrix.cols; ++group) {
        uint8_t codes[32];
        float scale[2] = {-7, -7};
        float bias[2] = {-7, -7};
        R::read(matrix, row, group, codes, scale, bias);
        if (R::kHalves == 1) {
          ASSERT_TRUE(same_bits(scale[0], scale[1]));
          ASSERT_TRUE(same_bits(bias[0], bias[1]));
        }
        for (int c = 0; c < 32; ++c) {
          ASSERT_LE(codes[c], R::kMaxCode) << format_name(matrix);
          const int half = c / 16;
          float value = scale[half] * static_cast<float>(codes[c] - R::kZero);
          if (R::kHasBias) {
            value = value + bias[half];
          } else {
            ASSERT_EQ(bias[half], 0.0f);
          }
          if (group * 32 + c < matrix.cols) {
            ASSERT_TRUE(same_bits(value, decoded[static_cast<size_t>(group * 32 + c)]))
                << format_name(matrix) << " row " << row << " column " << group * 32 + c;
          } else {
            ASSERT_EQ(codes[c], R::kZero) << "absent columns weigh nothing";
            ASSERT_EQ(scale[half], 0.0f);
          }
        }
      }
    }
  });
}

TEST(Readers, CodesScalesAndBiasesAreTheDecodedRow) {
  std::mt19937_64 random(1);
  for (WeightFormat format : test::kAllFormats) {
    if (!has_reader(format) || format == WeightFormat::kAffine) continue;
    const int group = format == WeightFormat::kNvFp4 ? 16 : 32;
    const ScaleType scales = group == 16 ? ScaleType::kE4M3 : ScaleType::kE8M0;
    expect_reader_agrees(test::random_matrix(format, 5, 768, random, 4, group, scales).matrix);
  }
}

TEST(Readers, AffineInEveryWidthGroupAndScaleType) {
  std::mt19937_64 random(2);
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      for (ScaleType scales : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
        const auto stored = test::random_matrix(WeightFormat::kAffine, 3, 384, random, bits, group, scales);
        expect_reader_agrees(stored.matrix);
      }
    }
  }
}

/// Code i of a row is bits [i * bits, +bits) of its bytes, for every width, read one bit at a time.
TEST(Readers, AffineCodesAreOneBitStream) {
  std::mt19937_64 random(3);
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    const auto stored = test::random_matrix(WeightFormat::kAffine, 2, 128, random, bits, 64);
    const Matrix& matrix = stored.matrix;
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t c = 0; c < 128; ++c) {
        unsigned expected = 0;
        for (int b = 0; b < bits; ++b) {
          const size_t bit = static_cast<size_t>(c * bits + b);
          const auto byte =
              std::to_integer<unsigned>(matrix.data[static_cast<size_t>(row) * matrix.row_bytes + bit / 8]);
          expected |= ((byte >> (bit % 8)) & 1u) << b;
        }
        uint8_t codes[32];
        float scale[2], bias[2];
        Reader<WeightFormat::kAffine>::read(matrix, row, c / 32, codes, scale, bias);
        ASSERT_EQ(codes[c % 32], expected) << bits << " bits, column " << c;
      }
    }
  }
}

TEST(Readers, PartialLastGroupOfNvFp4) {
  std::mt19937_64 random(4);
  for (int64_t cols : {16, 48, 80}) {
    expect_reader_agrees(test::random_matrix(WeightFormat::kNvFp4, 4, cols, random, 4, 16, ScaleType::kE4M3).matrix);
  }
}

/// Tensors of a file start at any byte: the same bytes one further on decode to the same values.
TEST(Readers, NeedNoAlignment) {
  std::mt19937_64 random(5);
  for (WeightFormat format : test::kAllFormats) {
    const int bits = format == WeightFormat::kMxFp8 ? 8 : 4;
    const auto stored =
        test::random_matrix(format, 2, 256, random, bits, format == WeightFormat::kNvFp4 ? 16 : 32, ScaleType::kF16);
    const auto moved = [](const std::vector<std::byte>& bytes) {
      std::vector<std::byte> copy(1);
      copy.insert(copy.end(), bytes.begin(), bytes.end());
      return copy;
    };
    const auto data = moved(stored.data), scales = moved(stored.scales), biases = moved(stored.biases);
    Matrix odd = stored.matrix;
    odd.data = data.data() + 1;
    if (odd.scales != nullptr) odd.scales = scales.data() + 1;
    if (odd.biases != nullptr) odd.biases = biases.data() + 1;
    std::vector<float> even_row(256), odd_row(256);
    for (int64_t row = 0; row < 2; ++row) {
      decode_row(stored.matrix, row, even_row.data());
      decode_row(odd, row, odd_row.data());
      for (size_t c = 0; c < 256; ++c) ASSERT_TRUE(same_bits(even_row[c], odd_row[c])) << format_name(format);
    }
  }
}

TEST(Readers, FormatsWithoutIntegerCodesAreNamedInTheError) {
  for (WeightFormat format : test::kAllFormats) {
    if (has_reader(format)) {
      EXPECT_NO_THROW(with_reader(format, [](auto) {}));
      continue;
    }
    try {
      with_reader(format, [](auto) {});
      ADD_FAILURE() << format_name(format);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(format_name(format)), std::string::npos) << error.what();
    }
  }
}

TEST(Readers, NotANumberScalesStayNotANumber) {
  auto mxfp4 = test::make_mlx_matrix(WeightFormat::kMxFp4, 1, 32, 4, 32, ScaleType::kE8M0);
  mxfp4.scales[0] = std::byte{255};
  std::vector<float> row(32);
  decode_row(mxfp4.matrix, 0, row.data());
  for (float value : row) EXPECT_TRUE(std::isnan(value));
  auto mxfp8 = test::make_mlx_matrix(WeightFormat::kMxFp8, 1, 32, 8, 32, ScaleType::kE8M0);
  mxfp8.scales[0] = std::byte{127};
  mxfp8.data[3] = std::byte{0x7f};
  decode_row(mxfp8.matrix, 0, row.data());
  for (size_t c = 0; c < 32; ++c) EXPECT_EQ(std::isnan(row[c]), c == 3);
}

}  // namespace
}  // namespace carat

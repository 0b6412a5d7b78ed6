// Shapes, sizes and names.
#include "quant/matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "quant/random_matrix.h"

namespace carat {
namespace {

TEST(Matrix, RowsFollowEachOtherInWholeBlocks) {
  std::byte byte{};
  for (WeightFormat format : test::kAllFormats) {
    if (test::is_mlx(format)) {
      EXPECT_THROW(block_shape(format), Error);
      EXPECT_THROW(make_matrix(format, 1, 256, &byte), Error);
      continue;
    }
    const BlockShape block = block_shape(format);
    const Matrix matrix = make_matrix(format, 3, 4 * block.cols, &byte);
    EXPECT_EQ(matrix.row_bytes, static_cast<size_t>(4 * block.bytes));
    EXPECT_EQ(matrix.bytes(), static_cast<size_t>(12 * block.bytes));
    EXPECT_EQ(matrix.slice(2, 1).data, &byte + 8 * block.bytes);
    if (block.cols > 1) {
      try {
        make_matrix(format, 1, 3 * block.cols + 1, &byte);
        ADD_FAILURE() << format_name(format);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(format_name(format)), std::string::npos);
      }
    }
  }
}

TEST(Matrix, ShapesBeyondTheAddressSpaceAreErrors) {
  std::byte byte{};
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ6_K}) {
    const int64_t cols = most / 256 * 256;
    EXPECT_THROW(make_matrix(format, 2, cols, &byte), Error);
    EXPECT_THROW(make_matrix(format, most, 256, &byte), Error);
    EXPECT_THROW(make_matrix(format, most / 128, 256, &byte), Error);
    EXPECT_THROW(make_matrix(format, -1, 256, &byte), Error);
    EXPECT_THROW(make_matrix(format, 1, -256, &byte), Error);
    // Large but possible: offsets are computed in 64 bits.
    const Matrix large = make_matrix(format, int64_t{1} << 33, 256, &byte);
    EXPECT_EQ(large.bytes(), (size_t{1} << 33) * large.row_bytes);
  }
}

TEST(Matrix, BytesAndBitsCountTheScales) {
  const auto affine = test::make_mlx_matrix(WeightFormat::kAffine, 3, 128, 4, 64, ScaleType::kBF16);
  EXPECT_EQ(affine.matrix.bytes(), 3u * (64 + 2 * 2 + 2 * 2));
  EXPECT_DOUBLE_EQ(bits_per_weight(affine.matrix), 4.5);
  const auto mxfp4 = test::make_mlx_matrix(WeightFormat::kMxFp4, 3, 128, 4, 32, ScaleType::kE8M0);
  EXPECT_EQ(mxfp4.matrix.bytes(), 3u * (64 + 4));
  EXPECT_DOUBLE_EQ(bits_per_weight(mxfp4.matrix), 4.25);
  const auto nvfp4 = test::make_mlx_matrix(WeightFormat::kNvFp4, 3, 128, 4, 16, ScaleType::kE4M3);
  EXPECT_DOUBLE_EQ(bits_per_weight(nvfp4.matrix), 4.5);
  std::byte byte{};
  EXPECT_DOUBLE_EQ(bits_per_weight(make_matrix(WeightFormat::kQ4_K, 0, 256, &byte)), 4.5);
  EXPECT_DOUBLE_EQ(bits_per_weight(make_matrix(WeightFormat::kQ6_K, 2, 512, &byte)), 6.5625);
  EXPECT_DOUBLE_EQ(bits_per_weight(make_matrix(WeightFormat::kBF16, 2, 5, &byte)), 16.0);
}

TEST(Matrix, ColumnsAreThoseOfTheWholeRow) {
  std::mt19937_64 random(8);
  for (WeightFormat format : test::kAllFormats) {
    const int bits = format == WeightFormat::kMxFp8 ? 8 : format == WeightFormat::kAffine ? 5 : 4;
    const int group = format == WeightFormat::kNvFp4 ? 16 : 32;
    const ScaleType scales = format == WeightFormat::kAffine ? ScaleType::kF16
                             : group == 16                   ? ScaleType::kE4M3
                                                             : ScaleType::kE8M0;
    const auto stored = test::random_matrix(format, 3, 1024, random, bits, group, scales);
    std::vector<float> whole(1024), part(1024);
    const int unit = test::is_mlx(format) ? group : block_shape(format).cols;
    for (int64_t first : {0, unit, 512 + unit}) {
      const int64_t count = unit == 1 ? 7 : unit;
      const std::optional<Matrix> some = columns(stored.matrix, first, count);
      ASSERT_TRUE(some.has_value()) << format_name(format);
      for (int64_t row = 0; row < 3; ++row) {
        decode_row(stored.matrix, row, whole.data());
        decode_row(*some, row, part.data());
        const auto bytes = static_cast<size_t>(count) * sizeof(float);
        EXPECT_EQ(std::memcmp(&whole[static_cast<size_t>(first)], part.data(), bytes), 0) << format_name(format);
      }
    }
    if (unit > 1) {
      EXPECT_FALSE(columns(stored.matrix, unit / 2, unit).has_value()) << format_name(format);
      EXPECT_FALSE(columns(stored.matrix, 0, unit / 2).has_value()) << format_name(format);
    }
  }
}

TEST(Matrix, NamesDiffer) {
  std::set<std::string_view> names;
  for (WeightFormat format : test::kAllFormats) names.insert(format_name(format));
  EXPECT_EQ(names.size(), test::kAllFormats.size());
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(format_name(test::make_mlx_matrix(WeightFormat::kAffine, 1, 64, 3, 64, ScaleType::kF16).matrix),
            "affine 3-bit g64");
}

TEST(Matrix, PlainFloatsDecodeExactly) {
  std::mt19937_64 random(7);
  const auto f16 = test::random_matrix(WeightFormat::kF16, 3, 33, random);
  const auto bf16 = test::random_matrix(WeightFormat::kBF16, 3, 33, random);
  const auto f32 = test::random_matrix(WeightFormat::kF32, 3, 33, random);
  std::vector<float> row(33);
  for (int64_t r = 0; r < 3; ++r) {
    const auto bits_of = [&](const test::StoredMatrix& stored, size_t c, auto zero) {
      std::memcpy(&zero, stored.matrix.data + static_cast<size_t>(r) * stored.matrix.row_bytes + c * sizeof zero,
                  sizeof zero);
      return zero;
    };
    const auto expect = [&](size_t c, float value) {
      EXPECT_EQ(std::memcmp(&row[c], &value, sizeof value), 0) << row[c] << " " << value;
    };
    decode_row(f16.matrix, r, row.data());
    for (size_t c = 0; c < 33; ++c) expect(c, f16_to_f32(bits_of(f16, c, uint16_t{})));
    decode_row(bf16.matrix, r, row.data());
    for (size_t c = 0; c < 33; ++c) expect(c, bf16_to_f32(bits_of(bf16, c, uint16_t{})));
    decode_row(f32.matrix, r, row.data());
    for (size_t c = 0; c < 33; ++c) expect(c, bits_of(f32, c, float{}));
  }
}

}  // namespace
}  // namespace carat

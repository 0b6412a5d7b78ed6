// Decoded weights against gguf.quants and MLX, bit by bit (tools/make_quant_goldens.py).
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <sstream>
#include <string>

#include "quant/random_matrix.h"

namespace carat {
namespace {

struct Golden {
  test::StoredMatrix stored;
  std::vector<float> expected;
};

WeightFormat format_named(const std::string& name) {
  // "MXFP4" is GGUF's, "mxfp4" is MLX's.
  for (WeightFormat format : test::kAllFormats) {
    if (format_name(format) == name) return format;
  }
  throw std::runtime_error("no format is called " + name);
}

ScaleType scale_type_named(const std::string& name) {
  if (name == "f32") return ScaleType::kF32;
  if (name == "f16") return ScaleType::kF16;
  if (name == "bf16") return ScaleType::kBF16;
  if (name == "e8m0") return ScaleType::kE8M0;
  if (name == "e4m3") return ScaleType::kE4M3;
  return ScaleType::kNone;
}

void read_bytes(std::istream& in, void* to, size_t size) {
  in.read(static_cast<char*>(to), std::streamsize(size));
}

std::vector<Golden> read_goldens() {
  std::ifstream in(CARAT_TEST_DATA "/quant/goldens/weights.bin", std::ios::binary);
  std::vector<Golden> goldens;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string format, scale_type;
    int64_t rows = 0, cols = 0;
    int bits = 0, group = 0, has_biases = 0;
    size_t row_bytes = 0, scale_row_bytes = 0;
    fields >> format >> rows >> cols >> bits >> group >> scale_type >> row_bytes >> scale_row_bytes >> has_biases;
    Golden golden;
    const WeightFormat kind = format_named(format);
    if (test::is_mlx(kind)) {
      golden.stored = test::make_mlx_matrix(kind, rows, cols, bits, group, scale_type_named(scale_type));
    } else {
      golden.stored.data.resize(static_cast<size_t>(rows) * row_bytes);
      golden.stored.matrix = make_matrix(kind, rows, cols, golden.stored.data.data());
    }
    EXPECT_EQ(golden.stored.matrix.row_bytes, row_bytes) << line;
    EXPECT_EQ(golden.stored.matrix.scale_row_bytes, scale_row_bytes) << line;
    EXPECT_EQ(!golden.stored.biases.empty(), has_biases != 0) << line;
    golden.expected.resize(static_cast<size_t>(rows * cols));
    read_bytes(in, golden.stored.data.data(), golden.stored.data.size());
    read_bytes(in, golden.stored.scales.data(), golden.stored.scales.size());
    read_bytes(in, golden.stored.biases.data(), golden.stored.biases.size());
    read_bytes(in, golden.expected.data(), golden.expected.size() * sizeof(float));
    if (!in) throw std::runtime_error("weights.bin ends inside " + line);
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

/// Equal bits, except that +0 equals -0: codebook formats hold e2m1's -0 as the integer 0.
bool same(float a, float b) {
  return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(QuantGoldens, EveryFormatDecodesBitForBit) {
  const std::vector<Golden> goldens = read_goldens();
  // 13 of GGUF, affine in 6 widths x 3 groups, and the three microscaling formats.
  ASSERT_EQ(goldens.size(), 13u + 18u + 3u);
  for (const Golden& golden : goldens) {
    const Matrix& matrix = golden.stored.matrix;
    std::vector<float> row(static_cast<size_t>(matrix.cols));
    for (int64_t r = 0; r < matrix.rows; ++r) {
      decode_row(matrix, r, row.data());
      for (int64_t c = 0; c < matrix.cols; ++c) {
        const float expected = golden.expected[static_cast<size_t>(r * matrix.cols + c)];
        ASSERT_TRUE(same(row[static_cast<size_t>(c)], expected))
            << format_name(matrix) << " row " << r << " column " << c << ": " << row[static_cast<size_t>(c)]
            << ", expected " << expected;
      }
    }
  }
}

}  // namespace
}  // namespace carat

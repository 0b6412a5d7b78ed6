#include "quant/matrix.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "quant/readers.h"

namespace carat {

namespace {

/// The order of float operations here is the definition of each format (docs/formats.md).
template <typename R>
void decode_coded_row(const Matrix& matrix, int64_t row, float* out) {
  uint8_t codes[kReadColumns];
  float scale[2];
  float bias[2];
  constexpr int kPerScale = kReadColumns / R::kHalves;
  for (int64_t first = 0; first < matrix.cols; first += kReadColumns) {
    R::read(matrix, row, first / kReadColumns, codes, scale, bias);
    const int count = static_cast<int>(std::min<int64_t>(kReadColumns, matrix.cols - first));
    for (int c = 0; c < count; ++c) {
      const float product = scale[c / kPerScale] * static_cast<float>(codes[c] - R::kZero);
      out[first + c] = R::kHasBias ? product + bias[c / kPerScale] : product;
    }
  }
}

void decode_mxfp8_row(const Matrix& matrix, int64_t row, float* out) {
  const std::byte* bytes = matrix.data + static_cast<size_t>(row) * matrix.row_bytes;
  const std::byte* scales = matrix.scales + static_cast<size_t>(row) * matrix.scale_row_bytes;
  for (int64_t c = 0; c < matrix.cols; ++c) {
    out[c] = e8m0_to_f32(load<uint8_t>(scales + c / 32)) * e4m3_to_f32(load<uint8_t>(bytes + c));
  }
}

bool is_gguf_or_float(WeightFormat format) {
  return format != WeightFormat::kAffine && format != WeightFormat::kMxFp4 && format != WeightFormat::kMxFp8 &&
         format != WeightFormat::kNvFp4;
}

}  // namespace

BlockShape block_shape(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {1, 2};
    case WeightFormat::kQ4_0:
    case WeightFormat::kIQ4_NL:
      return {32, 18};
    case WeightFormat::kQ4_1:
      return {32, 20};
    case WeightFormat::kQ5_0:
      return {32, 22};
    case WeightFormat::kQ5_1:
      return {32, 24};
    case WeightFormat::kQ8_0:
      return {32, 34};
    case WeightFormat::kGgufMxFp4:
      return {32, 17};
    case WeightFormat::kQ2_K:
      return {256, 84};
    case WeightFormat::kQ3_K:
      return {256, 110};
    case WeightFormat::kQ4_K:
      return {256, 144};
    case WeightFormat::kQ5_K:
      return {256, 176};
    case WeightFormat::kQ6_K:
      return {256, 210};
    case WeightFormat::kIQ4_XS:
      return {256, 136};
    case WeightFormat::kAffine:
    case WeightFormat::kMxFp4:
    case WeightFormat::kMxFp8:
    case WeightFormat::kNvFp4:
      break;
  }
  fail("the weight format {} keeps its scales in arrays of their own and has no blocks", format_name(format));
}

Matrix make_matrix(WeightFormat format, int64_t rows, int64_t cols, const std::byte* data) {
  const BlockShape block = block_shape(format);
  if (rows < 0 || cols < 0) fail("a {} matrix has the shape [{}, {}]", format_name(format), rows, cols);
  if (cols % block.cols != 0) {
    fail("a {} matrix has {} columns, expected a multiple of {}", format_name(format), cols, block.cols);
  }
  const auto blocks = static_cast<uint64_t>(cols / block.cols);
  // Half the address space: what fits is safe in size_t and in pointer differences.
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const auto block_bytes = static_cast<uint64_t>(block.bytes);
  if (blocks > kMost / block_bytes || (rows > 0 && blocks * block_bytes > kMost / static_cast<uint64_t>(rows))) {
    fail("a {} matrix of shape [{}, {}] is larger than the address space", format_name(format), rows, cols);
  }
  Matrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = data;
  matrix.row_bytes = static_cast<size_t>(blocks * block_bytes);
  return matrix;
}

std::optional<Matrix> columns(const Matrix& matrix, int64_t first, int64_t count) {
  Matrix part = matrix;
  part.cols = count;
  if (is_gguf_or_float(matrix.format)) {
    const BlockShape block = block_shape(matrix.format);
    if (first % block.cols != 0 || count % block.cols != 0) return std::nullopt;
    part.data += static_cast<size_t>(first / block.cols * block.bytes);
    return part;
  }
  if (first % matrix.group != 0 || count % matrix.group != 0) return std::nullopt;
  const int bits = matrix.format == WeightFormat::kAffine ? matrix.bits : matrix.format == WeightFormat::kMxFp8 ? 8 : 4;
  const int scale_bytes = matrix.scale_type == ScaleType::kF32                                            ? 4
                          : matrix.scale_type == ScaleType::kF16 || matrix.scale_type == ScaleType::kBF16 ? 2
                                                                                                          : 1;
  part.data += static_cast<size_t>(first * bits / 8);
  part.scales += static_cast<size_t>(first / matrix.group * scale_bytes);
  if (part.biases != nullptr) part.biases += static_cast<size_t>(first / matrix.group * scale_bytes);
  return part;
}

std::string format_name(const Matrix& matrix) {
  if (matrix.format == WeightFormat::kAffine) return fmt::format("affine {}-bit g{}", matrix.bits, matrix.group);
  return std::string(format_name(matrix.format));
}

std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kAffine:
      return "affine";
    case WeightFormat::kMxFp4:
      return "mxfp4";
    case WeightFormat::kMxFp8:
      return "mxfp8";
    case WeightFormat::kNvFp4:
      return "nvfp4";
    case WeightFormat::kQ4_0:
      return "Q4_0";
    case WeightFormat::kQ4_1:
      return "Q4_1";
    case WeightFormat::kQ5_0:
      return "Q5_0";
    case WeightFormat::kQ5_1:
      return "Q5_1";
    case WeightFormat::kQ8_0:
      return "Q8_0";
    case WeightFormat::kQ2_K:
      return "Q2_K";
    case WeightFormat::kQ3_K:
      return "Q3_K";
    case WeightFormat::kQ4_K:
      return "Q4_K";
    case WeightFormat::kQ5_K:
      return "Q5_K";
    case WeightFormat::kQ6_K:
      return "Q6_K";
    case WeightFormat::kIQ4_NL:
      return "IQ4_NL";
    case WeightFormat::kIQ4_XS:
      return "IQ4_XS";
    case WeightFormat::kGgufMxFp4:
      return "MXFP4";
  }
  return "unknown";
}

double bits_per_weight(const Matrix& matrix) {
  if (matrix.cols == 0) return 0.0;
  if (is_gguf_or_float(matrix.format)) {
    const BlockShape block = block_shape(matrix.format);
    return 8.0 * block.bytes / block.cols;
  }
  // One row counts for all, so that a slice, an empty matrix and one without a known end have the same figure.
  Matrix row = matrix;
  row.rows = 1;
  return 8.0 * static_cast<double>(row.bytes()) / static_cast<double>(matrix.cols);
}

void decode_row(const Matrix& matrix, int64_t row, float* out) {
  const std::byte* bytes = matrix.data + static_cast<size_t>(row) * matrix.row_bytes;
  switch (matrix.format) {
    case WeightFormat::kF32:
      std::memcpy(out, bytes, static_cast<size_t>(matrix.cols) * sizeof(float));
      return;
    case WeightFormat::kF16:
      for (int64_t c = 0; c < matrix.cols; ++c) out[c] = f16_to_f32(load<uint16_t>(bytes + 2 * c));
      return;
    case WeightFormat::kBF16:
      for (int64_t c = 0; c < matrix.cols; ++c) out[c] = bf16_to_f32(load<uint16_t>(bytes + 2 * c));
      return;
    case WeightFormat::kMxFp8:
      decode_mxfp8_row(matrix, row, out);
      return;
    default:
      with_reader(matrix.format, [&](auto reader) { decode_coded_row<decltype(reader)>(matrix, row, out); });
  }
}

}  // namespace carat

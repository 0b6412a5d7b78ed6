// Whatever bytes a file holds, every instruction set reads them as quant/reader.h says: extreme scales, subnormal ones,
// infinities and NaNs included, which the random weights of the other tests avoid.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "test_devices.h"
#include "test_weights.h"

namespace carat {
namespace {

class AnyBytes : public testing::TestWithParam<WeightCase> {};

TEST_P(AnyBytes, DecodeToTheSameOnEveryInstructionSet) {
  constexpr int kRows = 256;
  const int64_t cols = GetParam().width(11 * 32);  // a block of eight groups and a part of one
  const TestMatrix shape(GetParam(), kRows, cols, 1);
  Matrix matrix = shape;
  Random random(2000);
  const auto random_bytes = [&](size_t row_bytes) {
    std::vector<std::byte> bytes(kRows * row_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits() & 0xff);
    return bytes;
  };
  const std::vector<std::byte> data = random_bytes(matrix.row_bytes);
  const std::vector<std::byte> scales = random_bytes(matrix.scale_row_bytes);
  const std::vector<std::byte> biases = random_bytes(matrix.scale_row_bytes);
  matrix.data = data.data();
  if (matrix.scales != nullptr) matrix.scales = scales.data();
  if (matrix.biases != nullptr) matrix.biases = biases.data();

  std::vector<int> ids;
  for (int i = 0; i < kRows; ++i) ids.push_back(i);
  std::vector<float> want(static_cast<size_t>(kRows * cols));
  for (int i = 0; i < kRows; ++i) decode_row(matrix, i, want.data() + i * cols);
  for (const Isa isa : supported_isas()) {
    std::vector<float> got(want.size());
    cpu_device(isa, Precision::kFast, 1).device->embed(matrix, ids, 1.0f, got.data());
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i]) && std::isnan(got[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << isa_name(isa) << ", row " << i / static_cast<size_t>(cols) << ", column " << i % static_cast<size_t>(cols)
          << ": " << got[i] << " instead of " << want[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyBytes, testing::ValuesIn(all_weight_cases()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace carat

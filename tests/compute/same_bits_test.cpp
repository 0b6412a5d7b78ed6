// Law 2: a row's bits depend on that row alone: not on the other rows, on how many there are, on the number of threads,
// nor on the instruction set.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "test_devices.h"
#include "test_operations.h"

namespace carat {
namespace {

/// Every size up to 40 covers all remainders of register tiles and cache tiles; the others cross larger blocks.
std::vector<int> every_count() {
  std::vector<int> counts = {kPool, 64};
  for (int count = 40; count >= 1; --count) counts.push_back(count);
  return counts;
}
std::vector<int> few_counts() {
  return {1, 2, 7, 33, kPool};
}

/// `count` rows of the pool, a different choice and order for every count, with repetitions where count is odd.
std::vector<int> choose_rows(int count) {
  std::vector<int> rows;
  for (int i = 0; i < count; ++i) rows.push_back((count * 11 + i * (count % 2 == 1 ? 3 : 7)) % kPool);
  if (count > 2 && count % 2 == 1) rows[1] = rows[0];
  return rows;
}

/// Every row on its own, on one thread.
std::vector<float> alone(const Operation& operation, Precision precision) {
  const TestDevice test = cpu_device(supported_isas().back(), precision, 1);
  std::vector<float> result;
  for (int row = 0; row < kPool; ++row) {
    const std::vector<float> got = operation.run(*test.device, {&row, 1});
    result.insert(result.end(), got.begin(), got.end());
  }
  return result;
}

/// Tiles depend on the count, threads on how tiles are shared out: every count on one thread, a few on more. The
/// portable kernels are slow and get one count for each number of threads.
std::vector<int> counts_for(Isa isa, int threads, const std::vector<int>& counts) {
  if (isa == Isa::kPortable && supported_isas().size() > 1) return {few_counts()[static_cast<size_t>(threads)]};
  return threads == 1 ? counts : few_counts();
}

void expect_same_bits(const Operation& operation, Precision precision, const std::vector<int>& counts) {
  SCOPED_TRACE(operation.name());
  const std::vector<float> expected = alone(operation, precision);
  const auto width = static_cast<size_t>(operation.width());
  for (const Isa isa : supported_isas()) {
    for (int threads = 1; threads <= 3; ++threads) {
      const TestDevice test = cpu_device(isa, precision, threads);
      for (const int count : counts_for(isa, threads, counts)) {
        const std::vector<int> rows = choose_rows(count);
        const std::vector<float> got = operation.run(*test.device, rows);
        for (size_t r = 0; r < rows.size(); ++r) {
          const float* want = expected.data() + static_cast<size_t>(rows[r]) * width;
          ASSERT_EQ(std::memcmp(got.data() + r * width, want, width * sizeof(float)), 0)
              << test.name << ", row " << r << " of " << count;
        }
      }
    }
  }
}

using Parameters = std::tuple<WeightCase, Precision>;

class SameBits : public testing::TestWithParam<Parameters> {
 protected:
  const WeightCase& weight() const { return std::get<0>(GetParam()); }
  Precision precision() const { return std::get<1>(GetParam()); }
  int64_t width(int64_t wish) const { return weight().width(wish); }
};
class SameBitsInEveryFormat : public SameBits {};

TEST_P(SameBitsInEveryFormat, NormProject) {
  expect_same_bits(NormProject(weight(), width(96), {1, 29}, 1000), precision(), every_count());
}
TEST_P(SameBitsInEveryFormat, NormProjectOfABlockAndAPart) {
  expect_same_bits(NormProject(weight(), width(11 * 32), {1, 29}, 1005), precision(), few_counts());
}
TEST_P(SameBitsInEveryFormat, Embed) {
  const TestMatrix table(weight(), 9, width(96), 1010);
  std::vector<int> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 5 % 9);
  std::vector<float> first;
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 3}) {
      std::vector<float> out(ids.size() * static_cast<size_t>(table->cols));
      cpu_device(isa, precision(), threads).device->embed(table, ids, 1.5f, out.data());
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << isa_name(isa);
    }
  }
}

TEST_P(SameBits, NormProjectOfManyOutputs) {
  expect_same_bits(NormProject(weight(), width(704), {300, 70}, 1020), precision(), few_counts());
}
TEST_P(SameBits, ProjectNormResidual) {
  expect_same_bits(ProjectNormResidual(weight(), {70, width(96)}, 1030), precision(), every_count());
}
TEST_P(SameBits, GatedMlp) {
  expect_same_bits(GatedMlp(weight(), {width(64), width(17)}, 1040), precision(), every_count());
}
TEST_P(SameBits, GatedMlpWide) {
  expect_same_bits(GatedMlp(weight(), {width(96), width(640)}, 1045), precision(), few_counts());
}
TEST_P(SameBits, PerLayerGate) {
  expect_same_bits(PerLayerGate(weight(), {width(64), width(17)}, 1050), precision(), every_count());
}
TEST_P(SameBits, PerLayerInputs) {
  expect_same_bits(PerLayerInputs(weight(), {width(96), width(17)}, 1060), precision(), every_count());
}
TEST_P(SameBits, Moe) {
  const Moe operation(weight(), {width(64), width(17)}, 1070);
  expect_same_bits(operation, precision(), every_count());
}
TEST_P(SameBits, Head) {
  expect_same_bits(Head(weight(), width(64), 513, 30, 1080), precision(), few_counts());
}

std::string test_name(const testing::TestParamInfo<Parameters>& info) {
  const auto& [weight, precision] = info.param;
  return weight.name() + (precision == Precision::kExact ? "_exact" : "_fast");
}

INSTANTIATE_TEST_SUITE_P(All, SameBitsInEveryFormat,
                         testing::Combine(testing::ValuesIn(all_weight_cases()),
                                          testing::Values(Precision::kExact, Precision::kFast)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Some, SameBits,
                         testing::Combine(testing::ValuesIn(some_weight_cases()),
                                          testing::Values(Precision::kExact, Precision::kFast)),
                         test_name);

TEST(SameBitsOfNorm, InEveryBatch) {
  for (const int64_t width : {17, 640}) {
    const std::vector<float> x = random_activations(kPool, width, 1090);
    const TestNorm weights(width, 1091);
    std::vector<float> first;
    for (const Isa isa : supported_isas()) {
      for (const int threads : {1, 2, 3}) {
        const TestDevice test = cpu_device(isa, Precision::kFast, threads);
        for (const int count : {1, 5, kPool}) {
          std::vector<float> out(x.size());
          for (int row = 0; row < kPool; row += count) {
            test.device->norm(x.data() + row * width, count, width, weights, out.data() + row * width);
          }
          if (first.empty()) first = out;
          ASSERT_EQ(out, first) << test.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace carat

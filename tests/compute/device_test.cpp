// Every backend computes what the formulas of device.h say, in every weight format, up to a bound that is computed
// along with the expected values (bounded.h).
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "test_devices.h"
#include "test_operations.h"

namespace carat {
namespace {

std::vector<int> first_rows(int count) {
  std::vector<int> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

double allowed(const Bounded& expected, bool is_reference) {
  // The reference rounds once; what is left of float64's own errors drowns in the last term.
  return is_reference ? kUnit * std::abs(expected.value) + 1e-12 : kUnit * std::abs(expected.value) + expected.error;
}

/// Compares one row of results; returns the squares of errors and values summed, for the average.
std::pair<double, double> compare_row(const BoundedRow& expected, std::span<const float> got, bool is_reference) {
  double errors = 0;
  double values = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(got[i] - expected[i].value);
    if (!(error <= allowed(expected[i], is_reference))) {
      ADD_FAILURE() << "column " << i << " is " << got[i] << ", expected " << expected[i].value << " +- "
                    << allowed(expected[i], is_reference);
      break;
    }
    errors += error * error;
    values += expected[i].value * expected[i].value;
  }
  return {errors, values};
}

/// The bounds above are for the worst case. Rounding errors are independent, so on average they are far smaller. In
/// fast mode a row's step is its largest value / 32639, which with outliers of 30 makes 3e-4 of the average value a
/// matrix. 8-bit activations, 250 times worse, could pass the worst case but not this.
double average_error(Precision precision) {
  return precision == Precision::kExact ? 1e-6 : 5e-4;
}

/// Runs batches of the first `batches` rows and checks `checked` of them.
void check(const Operation& operation, Precision precision, const std::vector<int>& batches,
           const std::vector<int>& checked) {
  SCOPED_TRACE(operation.name());
  std::map<int, BoundedRow> expected;
  for (const int row : checked) expected[row] = operation.expect(row, precision);
  for (TestDevice& test : all_devices(precision)) {
    SCOPED_TRACE(test.name);
    test.device->reserve(batches.back());
    double errors = 0;
    double values = 0;
    for (const int count : batches) {
      SCOPED_TRACE("batch of " + std::to_string(count));
      const std::vector<int> rows = test.is_slow ? checked : first_rows(count);
      const std::vector<float> got = operation.run(*test.device, rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!expected.contains(rows[i])) continue;
        const auto width = static_cast<size_t>(operation.width());
        const auto [e, v] = compare_row(expected[rows[i]], std::span(got).subspan(i * width, width), test.is_reference);
        errors += e;
        values += v;
      }
      if (test.is_slow) break;
    }
    EXPECT_LE(std::sqrt(errors), average_error(precision) * std::sqrt(values));
  }
}

class Formats : public testing::TestWithParam<std::tuple<WeightCase, Precision>> {
 protected:
  const WeightCase& weight() const { return std::get<0>(GetParam()); }
  Precision precision() const { return std::get<1>(GetParam()); }
  int64_t width(int64_t wish) const { return weight().width(wish); }
};

TEST_P(Formats, NormProject) {
  for (const int64_t hidden : {17, 96, 704}) {
    SCOPED_TRACE(width(hidden));
    const NormProject operation(weight(), width(hidden), {1, 45}, 100);
    check(operation, precision(), {1, 2, 37}, {0, 1, 36});
  }
}

TEST_P(Formats, ProjectNormResidual) {
  check(ProjectNormResidual(weight(), {100, width(17)}, 200), precision(), {1, 3, 33}, {0, 1, 32});
  check(ProjectNormResidual(weight(), {96, width(640)}, 201), precision(), {1, 9}, {0, 8});
}

TEST_P(Formats, GatedMlp) {
  check(GatedMlp(weight(), {width(100), width(17)}, 300), precision(), {1, 3, 33}, {0, 1, 32});
  check(GatedMlp(weight(), {width(96), width(704)}, 301), precision(), {1, 9}, {0, 8});
}

TEST_P(Formats, PerLayerGate) {
  check(PerLayerGate(weight(), {width(100), width(17)}, 400), precision(), {1, 3, 33}, {0, 1, 32});
  check(PerLayerGate(weight(), {width(640), width(32)}, 401), precision(), {1, 9}, {0, 8});
}

TEST_P(Formats, PerLayerInputs) {
  check(PerLayerInputs(weight(), {width(100), width(17)}, 500), precision(), {1, 3, 33}, {0, 1, 32});
}

TEST_P(Formats, Moe) {
  const Moe operation(weight(), {width(96), width(32)}, 600);
  std::vector<int> checked;
  for (const int row : first_rows(40)) {
    if (checked.size() < 8 && operation.routing_is_clear(row, precision())) checked.push_back(row);
  }
  ASSERT_EQ(checked.size(), 8u);
  check(operation, precision(), {1, 3, 40}, checked);
}

TEST_P(Formats, Head) {
  check(Head(weight(), width(96), 513, 0, 700), precision(), {1, 3}, {0, 2});
  check(Head(weight(), width(96), 513, 3, 701), precision(), {1, 3}, {0, 2});
}

TEST_P(Formats, EmbedLooksUpRows) {
  const int64_t cols = width(96);
  const TestMatrix table(weight(), 23, cols, 800);
  const std::vector<int> ids = {22, 0, 5, 5, 13};
  std::vector<float> row(static_cast<size_t>(cols));
  for (const float scale : {1.0f, 25.25f}) {
    for (TestDevice& test : all_devices(precision())) {
      SCOPED_TRACE(test.name);
      std::vector<float> out(ids.size() * row.size());
      test.device->embed(table, ids, scale, out.data());
      for (size_t i = 0; i < ids.size(); ++i) {
        decode_row(table, ids[i], row.data());
        // Dequantising may round differently; weights are at most 0.3 and sums of two terms at most twice that.
        const double slack = weight().is_float() || test.is_reference ? 0 : 2 * kUnit * scale;
        for (size_t c = 0; c < row.size(); ++c) ASSERT_NEAR(out[i * row.size() + c], row[c] * scale, slack) << c;
      }
    }
  }
}

std::string test_name(const testing::TestParamInfo<std::tuple<WeightCase, Precision>>& info) {
  const auto& [weight, precision] = info.param;
  return weight.name() + (precision == Precision::kExact ? "_exact" : "_fast");
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Combine(testing::ValuesIn(all_weight_cases()),
                                          testing::Values(Precision::kExact, Precision::kFast)),
                         test_name);

TEST(Device, NormOfEveryWidth) {
  for (const int64_t width : {1, 2, 15, 16, 17, 100, 640, 1152}) {
    const std::vector<float> x = random_activations(3, width, 900);
    const TestNorm weights(width, 901);
    for (const Norm& norm : {Norm(weights), Norm{nullptr, 1e-6f}}) {
      for (TestDevice& test : all_devices(Precision::kFast)) {
        SCOPED_TRACE(test.name + ", width " + std::to_string(width));
        std::vector<float> out(x.size());
        test.device->norm(x.data(), 3, width, norm, out.data());
        for (int64_t r = 0; r < 3; ++r) {
          const auto row = std::span(x).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
          const auto got = std::span(out).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
          compare_row(normalised(exactly(row), norm), got, test.is_reference);
        }
      }
    }
  }
}

TEST(Device, NormOfZerosIsZero) {
  const std::vector<float> x(64, 0.0f);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    std::vector<float> out(64, 1.0f);
    test.device->norm(x.data(), 1, 64, {nullptr, 1e-6f}, out.data());
    EXPECT_EQ(out, x) << test.name;
  }
}

// gate * up beyond float16's range is ordinary in Gemma (survey: infinities in half-precision engines).
TEST(Device, LargeMlpProductsStayFinite) {
  for (const WeightCase& weight : some_weight_cases()) {
    const auto step = int64_t{weight.column_step()};
    const TestMatrix gate(weight, 256, 256, 910, 50), up(weight, 256, 256, 911, 50), down(weight, 256, 256, 912, 50);
    ASSERT_EQ(256 % step, 0);
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      for (TestDevice& test : all_devices(precision)) {
        std::vector<float> x = random_floats(256, 913, 100);
        test.device->gated_mlp(1, {nullptr, 1e-6f}, {gate, up, down}, {x.data(), {nullptr, 1e-6f}, 1});
        for (const float value : x) ASSERT_LT(std::abs(value), 1000) << test.name << ", " << weight.name();
      }
    }
  }
}

// A row of zeros and a row of zeros but for one value have groups whose scale is zero.
TEST(Device, ZeroActivationsGiveZeros) {
  for (const WeightCase& weight : all_weight_cases()) {
    const TestMatrix head(weight, 5, 256, 920);
    std::vector<float> x(2 * 256, 0.0f);
    x[256 + 40] = 2;
    std::vector<float> column(256);
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      for (TestDevice& test : all_devices(precision)) {
        std::vector<float> logits(10, 1.0f);
        test.device->head(x.data(), 2, head, 0, logits.data());
        for (int64_t r = 0; r < 5; ++r) {
          decode_row(head, r, column.data());
          EXPECT_EQ(logits[static_cast<size_t>(r)], 0) << test.name << ", " << weight.name();
          EXPECT_NEAR(logits[static_cast<size_t>(5 + r)], 2 * column[40], 1e-6) << test.name << ", " << weight.name();
        }
      }
    }
  }
}

TEST(Device, GatherRowsCopies) {
  const std::vector<float> x = random_floats(5 * 7, 930);
  const std::vector<int> source = {4, 0, 0, 3};
  for (TestDevice& test : all_devices(Precision::kFast)) {
    std::vector<float> out(source.size() * 7);
    test.device->gather_rows(x.data(), source, 7, out.data());
    for (size_t i = 0; i < source.size(); ++i) {
      EXPECT_TRUE(
          std::equal(x.begin() + source[i] * 7, x.begin() + source[i] * 7 + 7, out.begin() + static_cast<int>(i) * 7))
          << test.name << " row " << i;
    }
  }
}

TEST(Device, EmptyBatchesAreFine) {
  const TestMatrix weight({WeightFormat::kBF16}, 32, 32, 940);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    float unused = 0;
    const Projection projection{weight, &unused};
    const Residual residual{&unused, {}, 1};
    test.device->embed(weight, {}, 1, &unused);
    test.device->norm_project(&unused, 0, {}, {&projection, 1});
    test.device->project_norm_residual(&unused, 0, weight, residual);
    test.device->gated_mlp(0, {}, {weight, weight, weight}, residual);
    test.device->head(&unused, 0, weight, 30, &unused);
    EXPECT_EQ(unused, 0) << test.name;
  }
}

TEST(Device, MemoryIsAlignedAndKeepsWhatIsUploaded) {
  for (TestDevice& test : all_devices(Precision::kFast)) {
    for (const size_t size : {1, 63, 1000}) {
      const std::vector<float> values = random_floats(size, 950);
      DeviceArray<float> array(*test.device, size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 64, 0u) << test.name;
      test.device->upload(array.data(), values.data(), size * sizeof(float));
      std::vector<float> back(size);
      test.device->download(back.data(), array.data(), size * sizeof(float));
      EXPECT_EQ(back, values) << test.name;
    }
  }
}

}  // namespace
}  // namespace carat

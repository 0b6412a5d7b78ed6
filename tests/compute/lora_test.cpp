// Adapters in the operations of Device: what they mean, on every backend, and that they change their own rows alone.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "test_devices.h"
#include "test_operations.h"

namespace carat {
namespace {

enum class Op { kNormProject, kProject, kMlp, kPerLayerGate };
constexpr std::array kOps = {Op::kNormProject, Op::kProject, Op::kMlp, Op::kPerLayerGate};
constexpr std::array kRanks = {3, 0, 21};  // of the adapters

/// The adapter of a row of the pool.
int adapter_of(int row) {
  return row % 4 - 1;
}

/// One weight, what each adapter adds to it, and the sum of both as a weight of its own.
class AdaptedWeight {
 public:
  AdaptedWeight(const WeightCase& weight, int64_t out, int64_t in, uint64_t seed) : matrix_(weight, out, in, seed) {
    const DenseWeights dense(matrix_);
    for (size_t i = 0; i < kRanks.size(); ++i) {
      const auto rank = static_cast<size_t>(kRanks[i]);
      a_[i] = random_floats(rank * static_cast<size_t>(in), seed + 10 + i, 0.3f);
      b_[i] = random_floats(rank * static_cast<size_t>(out), seed + 20 + i, 0.3f);
      pairs_[i] = {kRanks[i], a_[i].data(), b_[i].data()};
      std::vector<float> sum;
      for (int64_t r = 0; r < out; ++r) {
        for (int64_t c = 0; c < in; ++c) {
          double value = dense.row(r)[static_cast<size_t>(c)];
          for (size_t j = 0; j < rank; ++j) {
            value += double{b_[i][j * static_cast<size_t>(out) + static_cast<size_t>(r)]} *
                     a_[i][j * static_cast<size_t>(in) + static_cast<size_t>(c)];
          }
          sum.push_back(static_cast<float>(value));
        }
      }
      merged_.emplace_back(out, in, sum);
    }
  }

  const Matrix& matrix() const { return matrix_; }
  const Matrix& merged(int adapter) const { return merged_[static_cast<size_t>(adapter)]; }
  Linear with(std::span<const int> row_pair) const { return {matrix_, {pairs_, row_pair}}; }

 private:
  TestMatrix matrix_;
  std::array<std::vector<float>, kRanks.size()> a_, b_;
  std::array<LoraPair, kRanks.size()> pairs_;
  std::vector<TestMatrix> merged_;
};

/// Weights and inputs of all operations.
class Weights {
 public:
  Weights(const WeightCase& weight, int64_t hidden, int64_t width)
      : gate(weight, width, hidden, 1),
        up(weight, width, hidden, 2),
        down(weight, hidden, width, 3),
        hidden_(hidden),
        width_(width),
        norm_(hidden, 4),
        x_(hidden, 5),
        a_(width, 6) {}

  /// [rows, width of the result], with the weights as given.
  std::vector<float> run(Device& device, Op op, std::span<const int> rows, const Linear& g, const Linear& u,
                         const Linear& d) const {
    std::vector<float> x = x_.gather(rows);
    const std::vector<float> a = a_.gather(rows);
    const auto count = static_cast<int64_t>(rows.size());
    const Residual residual{x.data(), norm_, 0.75f};
    switch (op) {
      case Op::kNormProject: {
        std::vector<float> out(rows.size() * static_cast<size_t>(width_));
        std::vector<float> other(out.size());
        const std::array projections = {Projection{g, out.data()}, Projection{u, other.data()}};
        device.norm_project(x.data(), count, norm_, projections);
        for (size_t i = 0; i < out.size(); ++i) out[i] = out[i] - 3 * other[i];  // rows stay rows
        return out;
      }
      case Op::kProject:
        device.project_norm_residual(a.data(), count, d, residual);
        return x;
      case Op::kMlp:
        device.gated_mlp(count, norm_, {g, u, d}, residual);
        return x;
      case Op::kPerLayerGate:
        device.per_layer_gate(count, g, a.data(), width_, d, residual);
        return x;
    }
    return {};
  }

  /// Every row with its adapter.
  std::vector<float> run(Device& device, Op op, std::span<const int> rows) const {
    std::vector<int> row_pair;
    for (const int row : rows) row_pair.push_back(adapter_of(row));
    return run(device, op, rows, gate.with(row_pair), up.with(row_pair), down.with(row_pair));
  }
  std::vector<float> without(Device& device, Op op, std::span<const int> rows) const {
    return run(device, op, rows, gate.matrix(), up.matrix(), down.matrix());
  }
  size_t result_width(Op op) const { return static_cast<size_t>(op == Op::kNormProject ? width_ : hidden_); }

  AdaptedWeight gate, up, down;

 private:
  int64_t hidden_, width_;
  TestNorm norm_;
  Pool x_, a_;
};

std::vector<int> rows_up_to(int count) {
  std::vector<int> rows;
  for (int i = 0; i < count; ++i) rows.push_back((count + i * 7) % kPool);
  return rows;
}

/// Root of the mean square of the differences, beside that of the values.
double relative_error(std::span<const float> want, std::span<const float> got) {
  double errors = 0;
  double values = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    errors += (double{want[i]} - got[i]) * (double{want[i]} - got[i]);
    values += double{want[i]} * want[i];
  }
  return std::sqrt(errors / values);
}

TEST(Lora, MeansTheSumOfBothWeights) {
  const Weights weights({WeightFormat::kF32}, 40, 72);
  const auto reference = make_reference_device();
  for (const Op op : kOps) {
    for (int adapter = 0; adapter < static_cast<int>(kRanks.size()); ++adapter) {
      std::vector<int> rows;
      for (int row = 0; row < 40; ++row) {
        if (adapter_of(row) == adapter) rows.push_back(row);
      }
      const std::vector<float> merged = weights.run(*reference, op, rows, weights.gate.merged(adapter),
                                                    weights.up.merged(adapter), weights.down.merged(adapter));
      EXPECT_LE(relative_error(merged, weights.run(*reference, op, rows)), 1e-6) << static_cast<int>(op);
      const double effect = relative_error(merged, weights.without(*reference, op, rows));
      EXPECT_EQ(effect > 0.05, kRanks[static_cast<size_t>(adapter)] > 0) << effect;
    }
  }
}

class LoraFormats : public testing::TestWithParam<std::tuple<WeightCase, Precision>> {
 protected:
  const WeightCase& weight() const { return std::get<0>(GetParam()); }
  Precision precision() const { return std::get<1>(GetParam()); }
  Weights weights() const { return {weight(), weight().width(64), weight().width(272)}; }
};

TEST_P(LoraFormats, AgreesWithTheReference) {
  const Weights s = weights();
  const auto reference = make_reference_device();
  for (const Op op : kOps) {
    for (const int count : {1, 4, 37}) {
      const std::vector<int> rows = rows_up_to(count);
      const std::vector<float> want = s.run(*reference, op, rows);
      for (const Isa isa : supported_isas()) {
        const TestDevice test = cpu_device(isa, precision(), 2);
        EXPECT_LE(relative_error(want, s.run(*test.device, op, rows)), precision() == Precision::kExact ? 2e-6 : 1e-3)
            << test.name << ", operation " << static_cast<int>(op) << ", " << count << " rows";
      }
    }
  }
}

TEST_P(LoraFormats, ARowsBitsDependOnItAndItsAdapterAlone) {
  const Weights s = weights();
  const TestDevice lone = cpu_device(supported_isas().back(), precision(), 1);
  for (const Op op : kOps) {
    const size_t width = s.result_width(op);
    std::vector<float> alone;
    for (int row = 0; row < kPool; ++row) {
      const std::vector<float> got =
          adapter_of(row) < 0 ? s.without(*lone.device, op, {&row, 1}) : s.run(*lone.device, op, {&row, 1});
      alone.insert(alone.end(), got.begin(), got.end());
    }
    for (const Isa isa : supported_isas()) {
      for (int threads = 1; threads <= 3; ++threads) {
        const TestDevice test = cpu_device(isa, precision(), threads);
        for (const int count : {2, 5, 33, 100}) {
          if (test.is_slow && count > 5) continue;
          const std::vector<int> rows = rows_up_to(count);
          const std::vector<float> got = s.run(*test.device, op, rows);
          for (size_t r = 0; r < rows.size(); ++r) {
            ASSERT_EQ(std::memcmp(got.data() + r * width, alone.data() + static_cast<size_t>(rows[r]) * width,
                                  width * sizeof(float)),
                      0)
                << test.name << ", operation " << static_cast<int>(op) << ", row " << r << " of " << count;
          }
        }
      }
    }
  }
}

std::string test_name(const testing::TestParamInfo<std::tuple<WeightCase, Precision>>& info) {
  const auto& [weight, precision] = info.param;
  return weight.name() + (precision == Precision::kExact ? "_exact" : "_fast");
}
INSTANTIATE_TEST_SUITE_P(Some, LoraFormats,
                         testing::Combine(testing::ValuesIn(some_weight_cases()),
                                          testing::Values(Precision::kExact, Precision::kFast)),
                         test_name);

}  // namespace
}  // namespace carat

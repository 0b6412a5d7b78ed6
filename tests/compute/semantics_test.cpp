// Small cases with known answers: constants and orders that other engines got wrong.
#include <gtest/gtest.h>

#include <cmath>

#include "test_devices.h"
#include "test_operations.h"

namespace carat {
namespace {

TEST(Semantics, NormMultipliesByItsWeight) {
  const float x[] = {3, 4};
  const float gemma4[] = {0.5f, 0.5f};
  const float gemma3[] = {1.5f, 1.5f};  // 1 + weight, added when the model is loaded
  for (TestDevice& test : all_devices(Precision::kExact)) {
    float out[2];
    test.device->norm(x, 1, 2, {gemma4, 0}, out);
    EXPECT_NEAR(out[0], 0.4242641, 1e-7) << test.name;
    EXPECT_NEAR(out[1], 0.5656854, 1e-7) << test.name;
    test.device->norm(x, 1, 2, {gemma3, 0}, out);
    EXPECT_NEAR(out[0], 1.2727922, 2e-7) << test.name;
    EXPECT_NEAR(out[1], 1.6970563, 2e-7) << test.name;
  }
}

TEST(Semantics, EpsilonIsInsideTheRoot) {
  const float x[] = {3, 4};
  for (TestDevice& test : all_devices(Precision::kExact)) {
    float out[2];
    test.device->norm(x, 1, 2, {nullptr, 3.5f}, out);
    EXPECT_NEAR(out[0], 0.75, 1e-7) << test.name;
    EXPECT_NEAR(out[1], 1, 1e-7) << test.name;
  }
}

TEST(Semantics, PerLayerInputsCombineContextAndToken) {
  constexpr int kWidth = 256;
  const TestMatrix table(2, 2 * kWidth, std::vector<float>(2 * 2 * kWidth, 0.125f));
  const TestMatrix projection(2 * kWidth, 4, std::vector<float>(2 * kWidth * 4, 0.7f));  // its norm is one everywhere
  const std::vector<float> x = {1, 2, 3, 4};
  const int ids[] = {1};
  for (TestDevice& test : all_devices(Precision::kExact)) {
    std::vector<float> out(2 * kWidth);
    test.device->per_layer_inputs(x.data(), 1, table, ids, projection, {nullptr, 0}, kWidth, out.data());
    for (const float value : out) ASSERT_NEAR(value, 2.1213203, 1e-6) << test.name;
  }
}

TEST(Semantics, SoftcapIsAppliedOnce) {
  const TestMatrix head(5, 1, {30, 60, 120, -120, 0});
  const float x[] = {1};
  const double expected[] = {22.8478247, 28.9208274, 29.9798790, -29.9798790, 0};
  for (TestDevice& test : all_devices(Precision::kExact)) {
    float logits[5];
    test.device->head(x, 1, head, 30, logits);
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(logits[i], expected[i], 4e-6) << test.name;
    test.device->head(x, 1, head, 0, logits);
    EXPECT_EQ(logits[2], 120) << test.name;
    test.device->head(x, 1, head, 1e-3f, logits);  // tanh of +-1e5 is one
    EXPECT_NEAR(logits[3], -1e-3, 1e-9) << test.name;
  }
}

// gate * up beyond what half floats hold; the norm behind it brings it back.
TEST(Semantics, ProductsOfAnMlpBeyondHalfFloatsStayFinite) {
  const TestMatrix gate(2, 2, {300, 0, 0, 300});
  const TestMatrix up(2, 2, {250, 0, 0, 500});
  const TestMatrix down(2, 2, {1, 0, 0, 1});
  for (TestDevice& test : all_devices(Precision::kExact)) {
    float x[] = {1, 1};  // its norm is itself; gate * up is 75,000 and 150,000
    test.device->gated_mlp(1, {nullptr, 0}, {gate, up, down}, {x, {nullptr, 0}, 1});
    EXPECT_NEAR(x[0], 1 + 1 / std::sqrt(2.5), 1e-6) << test.name;
    EXPECT_NEAR(x[1], 1 + 2 / std::sqrt(2.5), 1e-6) << test.name;
  }
}

TEST(Semantics, ResidualIsScaledAfterTheSum) {
  const TestMatrix weight(2, 2, {1, 0, 0, 1});
  const float a[] = {3, 4};
  for (TestDevice& test : all_devices(Precision::kExact)) {
    float x[] = {10, 20};
    test.device->project_norm_residual(a, 1, weight, {x, {nullptr, 0}, 0.5f});
    EXPECT_NEAR(x[0], (10 + 0.8485281) / 2, 1e-6) << test.name;
    EXPECT_NEAR(x[1], (20 + 1.1313708) / 2, 1e-6) << test.name;
  }
}

/// A layer whose expert e adds its routing weight to column e, and whose dense branch adds nothing.
class Router {
 public:
  Router(const std::vector<double>& probabilities, std::vector<float> per_expert_scale)
      : experts_(static_cast<int>(probabilities.size())),
        scale_(std::move(per_expert_scale)),
        zero_(kHidden, kHidden, std::vector<float>(kHidden * kHidden, 0.0f)),
        router_(experts_, kHidden, router_rows(probabilities)),
        gate_up_(2 * experts_, kHidden,
                 std::vector<float>(static_cast<size_t>(2 * experts_) * kHidden, 2.0f / kHidden)),
        down_(experts_ * kHidden, 1, down_rows()) {}

  /// The layer's output for x = ones, minus x.
  std::vector<double> run(Device& device, int experts_per_token) const {
    std::vector<float> x(kHidden, 1.0f);
    MoeArgs args;
    args.rows = 1;
    args.dense = {zero_, zero_, zero_};
    args.dense_pre_norm = args.router_norm = args.expert_pre_norm = {nullptr, 0};  // of ones: ones
    args.dense_post_norm = args.expert_post_norm = {nullptr, 1};  // an epsilon that lets the scale of the sum through
    args.router = router_;
    args.per_expert_scale = scale_.data();
    args.experts_per_token = experts_per_token;
    args.gate = {gate_up_, experts_, 2, 0, 1};
    args.up = {gate_up_, experts_, 2, 1, 1};
    args.down = {down_, experts_, kHidden, 0, kHidden};
    args.residual = {x.data(), {nullptr, 1}, 1};
    device.moe(args);
    std::vector<double> added;
    for (const float value : x) added.push_back(value - 1.0);
    return added;
  }

  /// What run() gives for these routing weights.
  std::vector<double> expect(std::vector<double> weights) const {
    weights.resize(kHidden);
    for (int norms = 0; norms < 2; ++norms) {
      double sum = 0;
      for (const double w : weights) sum += w * w;
      for (double& w : weights) w /= std::sqrt(sum / kHidden + 1);
    }
    return weights;
  }

 private:
  static constexpr int kHidden = 32;
  static std::vector<float> router_rows(const std::vector<double>& probabilities) {
    std::vector<float> rows;
    for (const double p : probabilities) rows.insert(rows.end(), kHidden, static_cast<float>(std::log(p) / kHidden));
    return rows;
  }
  std::vector<float> down_rows() const {
    const double activation = gelu_tanh({2, 0}).value * 2;  // gate and up of ones are 2
    std::vector<float> rows(static_cast<size_t>(experts_ * kHidden), 0.0f);
    for (int e = 0; e < experts_; ++e) rows[static_cast<size_t>(e * kHidden + e)] = static_cast<float>(1 / activation);
    return rows;
  }

  int experts_;
  std::vector<float> scale_;
  TestMatrix zero_, router_, gate_up_, down_;
};

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST(Semantics, RouterRenormalisesAndScales) {
  const Router router({0.4, 0.3, 0.2, 0.1}, {2, 1, 1, 1});
  for (TestDevice& test : all_devices(Precision::kExact)) {
    SCOPED_TRACE(test.name);
    expect_near(router.run(*test.device, 2), router.expect({1.1428571, 0.4285714}));
    expect_near(router.run(*test.device, 1), router.expect({2}));
    expect_near(router.run(*test.device, 4), router.expect({0.8, 0.3, 0.2, 0.1}));
  }
}

TEST(Semantics, RouterTiesGoToTheLowestIndex) {
  for (TestDevice& test : all_devices(Precision::kExact)) {
    SCOPED_TRACE(test.name);
    const Router even(std::vector<double>(20, 0.05), std::vector<float>(20, 1.0f));
    expect_near(even.run(*test.device, 2), even.expect({0.5, 0.5}));
    const Router tied({0.1, 0.3, 0.3, 0.3}, {1, 1, 1, 1});
    expect_near(tied.run(*test.device, 2), tied.expect({0, 0.5, 0.5}));
    const Router late({0.1, 0.1, 0.6, 0.1, 0.1}, {1, 1, 1, 1, 1});
    expect_near(late.run(*test.device, 2), late.expect({1.0 / 7, 0, 6.0 / 7}));
  }
}

}  // namespace
}  // namespace carat

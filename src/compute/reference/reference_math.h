// The float64 arithmetic that the reference operations are written in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/device.h"

namespace carat::reference {

/// Float64 activations, [count, width].
class Rows {
 public:
  Rows(int64_t count, int64_t width)
      : count_(count), width_(width), values_(static_cast<size_t>(count) * static_cast<size_t>(width)) {}
  Rows(const float* x, int64_t count, int64_t width);

  int64_t count() const { return count_; }
  int64_t width() const { return width_; }
  std::span<double> operator[](int64_t row) { return {values_.data() + row * width_, static_cast<size_t>(width_)}; }
  std::span<const double> operator[](int64_t row) const {
    return {values_.data() + row * width_, static_cast<size_t>(width_)};
  }
  std::span<double> all() { return values_; }
  std::span<const double> all() const { return values_; }

 private:
  int64_t count_;
  int64_t width_;
  std::vector<double> values_;
};

/// Rounds to float32.
void store(std::span<const double> values, float* out);

/// x * rsqrt(mean(x^2) + eps) * weight, in place.
void normalise(std::span<double> x, const Norm& norm);
/// Every row normalised.
Rows normalised(Rows x, const Norm& norm);

/// W x of every row x, and what the rows' adapters add to it.
Rows multiply(const Linear& weight, const Rows& x);

double gelu_tanh(double x);

/// down(gelu_tanh(gate x) * up x) of every row x.
Rows gated_mlp(const MlpWeights& weights, const Rows& x);

/// residual.x = (residual.x + norm(y)) * output_scale.
void add_normalised(Rows y, const Residual& residual);

}  // namespace carat::reference

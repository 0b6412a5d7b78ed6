// Float64 arithmetic that carries a bound of the error of the same computation on a float32 backend.
//
// A dot product of K terms in float32, in any order, is off by at most K u sum |w x|, u = 2^-24. Formats with a zero
// point or a minimum may be summed as (scale sum code x) + (bias sum x), whose terms are up to three times larger than
// the weights (|scale code| <= max - min <= 2 max |w|, |bias| <= max |w|): so 3 max |w| over a group stands for |w|.
// Fast mode first rounds a row's activations for quantised weights to integers |q| <= 32639.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "compute/device.h"

namespace carat {

struct Bounded {
  double value = 0;
  double error = 0;
};
using BoundedRow = std::vector<Bounded>;

constexpr double kUnit = 0x1p-24;  // float32's relative rounding error
constexpr int kWeightGroup = 32;
constexpr double kLargestActivation = 32639;
/// First-order error propagation is taken this much larger to cover the higher orders.
constexpr double kHigherOrders = 1.1;

inline Bounded operator+(const Bounded& a, const Bounded& b) {
  const double value = a.value + b.value;
  return {value, a.error + b.error + kUnit * std::abs(value)};
}
inline Bounded operator*(const Bounded& a, const Bounded& b) {
  const double value = a.value * b.value;
  return {value,
          std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error + kUnit * std::abs(value)};
}

template <typename Float>
BoundedRow exactly(std::span<const Float> values) {
  BoundedRow row;
  for (const Float value : values) row.push_back({value, 0});
  return row;
}

/// A weight matrix dequantised, with what its error bounds need.
class DenseWeights {
 public:
  explicit DenseWeights(const Matrix& matrix)
      : rows_(matrix.rows),
        cols_(matrix.cols),
        quantised_(matrix.format != WeightFormat::kF32 && matrix.format != WeightFormat::kF16 &&
                   matrix.format != WeightFormat::kBF16),
        values_(static_cast<size_t>(rows_ * cols_)) {
    for (int64_t r = 0; r < rows_; ++r) decode_row(matrix, r, values_.data() + r * cols_);
  }

  std::span<const float> row(int64_t r) const { return {values_.data() + r * cols_, static_cast<size_t>(cols_)}; }

  BoundedRow multiply(const BoundedRow& x, Precision precision) const {
    // Per column, the error of x itself and of its rounding to integers.
    std::vector<double> x_error(x.size());
    double largest = 0;
    for (const Bounded& v : x) largest = std::max(largest, std::abs(v.value) + v.error);
    const bool rounds = quantised_ && precision == Precision::kFast;
    // Half a step, and a little for computing the quotient in float32.
    for (size_t c = 0; c < x.size(); ++c) x_error[c] = x[c].error + (rounds ? 0.51 * largest / kLargestActivation : 0);
    BoundedRow y;
    for (int64_t r = 0; r < rows_; ++r) y.push_back(dot(row(r), x, x_error));
    return y;
  }

 private:
  Bounded dot(std::span<const float> w, const BoundedRow& x, std::span<const double> x_error) const {
    Bounded sum;
    double magnitude = 0;
    for (size_t first = 0; first < w.size(); first += kWeightGroup) {
      const size_t end = std::min(first + kWeightGroup, w.size());
      double largest_weight = 0;
      double sum_of_x = 0;
      for (size_t c = first; c < end; ++c) {
        sum.value += double{w[c]} * x[c].value;
        sum.error += std::abs(double{w[c]}) * x_error[c];
        largest_weight = std::max(largest_weight, std::abs(double{w[c]}));
        sum_of_x += std::abs(x[c].value) + x_error[c];
        if (!quantised_) magnitude += std::abs(double{w[c]} * x[c].value);
      }
      if (quantised_) magnitude += 3 * largest_weight * sum_of_x;
    }
    sum.error += (static_cast<double>(w.size()) + 16) * kUnit * magnitude;
    return sum;
  }

  int64_t rows_;
  int64_t cols_;
  bool quantised_;
  std::vector<float> values_;
};

/// RMSNorm of x[0, n).
inline BoundedRow normalised(BoundedRow x, const Norm& norm) {
  const auto n = static_cast<double>(x.size());
  double sum = 0;
  double sum_error = 0;
  for (const Bounded& v : x) {
    sum += v.value * v.value;
    sum_error += 2 * std::abs(v.value) * v.error + v.error * v.error;
  }
  const double mean = sum / n + double{norm.eps};
  const double scale = 1 / std::sqrt(mean);
  const double relative = kHigherOrders * (0.5 * sum_error / (n * mean) + (0.5 * n + 8) * kUnit);
  for (size_t i = 0; i < x.size(); ++i) {
    const double factor = scale * (norm.weight != nullptr ? double{norm.weight[i]} : 1.0);
    x[i].error = kHigherOrders * std::abs(factor) * (x[i].error + std::abs(x[i].value) * relative);
    x[i].value *= factor;
  }
  return x;
}

/// The slope of gelu is at most 1.13. Its own evaluation may be a few ulp of x off: 1 + tanh cancels for negative x.
inline Bounded gelu_tanh(const Bounded& x) {
  const double v = x.value;
  const double inner = std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v);
  return {v / 2 * (1 + std::tanh(inner)), 1.13 * x.error + 8 * kUnit * std::abs(v)};
}

inline BoundedRow gated(const BoundedRow& gate, const BoundedRow& up) {
  BoundedRow product;
  for (size_t i = 0; i < gate.size(); ++i) product.push_back(gelu_tanh(gate[i]) * up[i]);
  return product;
}

/// (x + norm(y)) * scale.
inline BoundedRow residual_sum(std::span<const float> x, const BoundedRow& y, const Norm& norm, float scale) {
  BoundedRow out = normalised(y, norm);
  for (size_t i = 0; i < out.size(); ++i) out[i] = (Bounded{x[i], 0} + out[i]) * Bounded{scale, 0};
  return out;
}

}  // namespace carat

#include "compute/reference/reference_math.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace carat::reference {

Rows::Rows(const float* x, int64_t count, int64_t width) : Rows(count, width) {
  std::copy_n(x, values_.size(), values_.begin());
}

void store(std::span<const double> values, float* out) {
  std::transform(values.begin(), values.end(), out, [](double value) { return static_cast<float>(value); });
}

void normalise(std::span<double> x, const Norm& norm) {
  const double sum_of_squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double scale = 1.0 / std::sqrt(sum_of_squares / static_cast<double>(x.size()) + double{norm.eps});
  for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * (norm.weight != nullptr ? norm.weight[i] : 1.0);
}

Rows normalised(Rows x, const Norm& norm) {
  for (int64_t r = 0; r < x.count(); ++r) normalise(x[r], norm);
  return x;
}

namespace {

/// y += b (a x).
void add_correction(const LoraPair& pair, std::span<const double> x, std::span<double> y) {
  for (int j = 0; j < pair.rank; ++j) {
    const float* a = pair.a + static_cast<size_t>(j) * x.size();
    const float* b = pair.b + static_cast<size_t>(j) * y.size();
    const double inner = std::inner_product(x.begin(), x.end(), a, 0.0);
    for (size_t o = 0; o < y.size(); ++o) y[o] += inner * b[o];
  }
}

}  // namespace

Rows multiply(const Linear& weight, const Rows& x) {
  const Matrix& matrix = weight.matrix;
  Rows y(x.count(), matrix.rows);
  std::vector<float> w(static_cast<size_t>(matrix.cols));
  for (int64_t o = 0; o < matrix.rows; ++o) {
    decode_row(matrix, o, w.data());
    for (int64_t r = 0; r < x.count(); ++r) {
      y[r][static_cast<size_t>(o)] = std::inner_product(w.begin(), w.end(), x[r].begin(), 0.0);
    }
  }
  if (weight.lora.pairs.empty()) return y;
  for (int64_t r = 0; r < x.count(); ++r) {
    const int pair = weight.lora.row_pair[static_cast<size_t>(r)];
    if (pair >= 0) add_correction(weight.lora.pairs[static_cast<size_t>(pair)], x[r], y[r]);
  }
  return y;
}

double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

Rows gated_mlp(const MlpWeights& weights, const Rows& x) {
  Rows gate = multiply(weights.gate, x);
  const Rows up = multiply(weights.up, x);
  for (size_t i = 0; i < gate.all().size(); ++i) gate.all()[i] = gelu_tanh(gate.all()[i]) * up.all()[i];
  return multiply(weights.down, gate);
}

void add_normalised(Rows y, const Residual& residual) {
  y = normalised(std::move(y), residual.norm);
  for (size_t i = 0; i < y.all().size(); ++i) {
    residual.x[i] = static_cast<float>((residual.x[i] + y.all()[i]) * residual.output_scale);
  }
}

}  // namespace carat::reference

#include "compute/reference/reference_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "compute/reference/reference_math.h"
#include "compute/reference/reference_operations.h"

namespace carat {
namespace {

using reference::multiply;
using reference::normalised;
using reference::Rows;
using reference::store;

constexpr std::align_val_t kAlignment{64};

/// The rows `ids` of `table`.
Rows look_up(const Matrix& table, std::span<const int> ids) {
  Rows rows(static_cast<int64_t>(ids.size()), table.cols);
  std::vector<float> row(static_cast<size_t>(table.cols));
  for (int64_t r = 0; r < rows.count(); ++r) {
    decode_row(table, ids[static_cast<size_t>(r)], row.data());
    std::copy(row.begin(), row.end(), rows[r].begin());
  }
  return rows;
}

class ReferenceDevice final : public Device {
 public:
  std::string description() const override { return "float64 reference"; }

  void* allocate(size_t bytes) override { return ::operator new(bytes, kAlignment); }
  void release(void* memory) noexcept override { ::operator delete(memory, kAlignment); }
  bool shares_host_memory() const override { return true; }
  void upload(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void reserve(int64_t) override {}

  void embed(const Matrix& table, std::span<const int> ids, float scale, float* out) override {
    Rows rows = look_up(table, ids);
    for (double& value : rows.all()) value *= scale;
    store(rows.all(), out);
  }

  void gather_rows(const float* x, std::span<const int> source, int64_t width, float* out) override {
    for (const int row : source) out = std::copy_n(x + row * width, width, out);
  }

  void per_layer_inputs(const float* x, int64_t rows, const Matrix& table, std::span<const int> ids,
                        const Matrix& projection, const Norm& norm, int width, float* out) override {
    const double root_hidden = std::sqrt(static_cast<double>(projection.cols));
    Rows sum = multiply(projection, Rows(x, rows, projection.cols));
    for (double& value : sum.all()) value /= root_hidden;
    for (size_t at = 0; at < sum.all().size(); at += static_cast<size_t>(width)) {
      reference::normalise(sum.all().subspan(at, static_cast<size_t>(width)), norm);
    }
    const Rows token = look_up(table, ids);
    for (size_t i = 0; i < sum.all().size(); ++i) {
      sum.all()[i] = (sum.all()[i] + token.all()[i] * std::sqrt(static_cast<double>(width))) / std::sqrt(2.0);
    }
    store(sum.all(), out);
  }

  void norm_project(const float* x, int64_t rows, const Norm& norm, std::span<const Projection> projections) override {
    if (projections.empty()) return;
    const Rows n = normalised(Rows(x, rows, projections[0].weight.matrix.cols), norm);
    for (const Projection& projection : projections) store(multiply(projection.weight, n).all(), projection.out);
  }

  void finish_qkv(const QkvArgs& args) override { reference::finish_qkv(args); }
  void attention(const AttentionArgs& args) override { reference::attention(args); }

  void project_norm_residual(const float* a, int64_t rows, const Linear& weight, const Residual& residual) override {
    add_normalised(multiply(weight, Rows(a, rows, weight.matrix.cols)), residual);
  }

  void gated_mlp(int64_t rows, const Norm& pre_norm, const MlpWeights& weights, const Residual& residual) override {
    const Rows n = normalised(Rows(residual.x, rows, weights.gate.matrix.cols), pre_norm);
    add_normalised(reference::gated_mlp(weights, n), residual);
  }

  void moe(const MoeArgs& args) override { reference::moe(args); }

  void per_layer_gate(int64_t rows, const Linear& gate, const float* input, int64_t input_stride,
                      const Linear& projection, const Residual& residual) override {
    Rows gated = multiply(gate, Rows(residual.x, rows, gate.matrix.cols));
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = input + r * input_stride;
      for (double& value : gated[r]) value = reference::gelu_tanh(value) * *row++;
    }
    add_normalised(multiply(projection, gated), residual);
  }

  void norm(const float* x, int64_t rows, int64_t width, const Norm& norm, float* out) override {
    store(normalised(Rows(x, rows, width), norm).all(), out);
  }

  void head(const float* x, int64_t rows, const Matrix& head, float softcap, float* logits) override {
    Rows y = multiply(head, Rows(x, rows, head.cols));
    if (softcap > 0) {
      for (double& value : y.all()) value = softcap * std::tanh(value / softcap);
    }
    store(y.all(), logits);
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() {
  return std::make_unique<ReferenceDevice>();
}

}  // namespace carat

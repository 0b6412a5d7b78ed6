// Matrix products of the CPU backend: how rows of weights and tokens are cut into tasks.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/lora.h"

namespace carat {

/// Token rows ready to be multiplied: float32 always, and quantised and in tiles when a product needs it. Owns its
/// scratch, which is reused: setting a new input invalidates the old one.
class Activations {
 public:
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  friend class Matmul;
  const float* values_ = nullptr;  // [rows, cols]
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  bool quantized_ = false;
  QuantizedRows q_;
  Buffer<int8_t> hi_, lo_;
  struct Ordered {
    bool ready = false;
    Buffer<int8_t> hi, lo;
  };
  std::array<Ordered, 4> ordered_;  // by Order; [kPlain] stays empty
  Buffer<int16_t> whole_;
  Buffer<float> scale_;
  Buffer<int32_t> sum0_, sum1_;
};

/// out[i, r] = w[r] . x[rows[i]]; with `gate`, out[i, r] = gelu_tanh(gate[r] . x) * (w[r] . x). What adapters add to
/// either comes before that.
struct Product {
  Matrix w;
  Matrix gate;  // same shape as w; empty for none
  Lora lora = {};
  Lora gate_lora = {};
  std::span<const int64_t> tokens;  // rows of the activations, in the order of `out`'s rows
  float* out = nullptr;
  int64_t stride = 0;  // floats from one token's outputs to the next
  bool exact = false;  // float32 activations even in fast mode (router)
};

class Matmul {
 public:
  Matmul(ThreadPool& pool, const Kernels& kernels, Precision precision);

  /// values [rows, cols] must stay valid and unchanged until the last run() on `x`.
  void set_input(Activations& x, const float* values, int64_t rows, int64_t cols);

  /// All products of one input, in one parallel section. Products must not overlap in `out`.
  void run(Activations& x, std::span<const Product> products);

  /// 0, 1, 2, … for Product::tokens.
  std::span<const int64_t> all_tokens(int64_t count);

 private:
  struct Task {
    int product;
    int64_t first;  // rows of the weight
    int64_t count;
    int64_t first_token = 0;  // of the product's tokens
    int64_t tokens = 0;
  };
  struct Scratch {
    Buffer<std::byte> panel;
    Buffer<float> rows;  // decoded weights
    Buffer<float> gate;  // gate outputs of one task
  };

  bool on_integers(const Product& product) const;
  bool on_panels(const Product& product) const;
  /// Makes room for the quantised rows of x.
  void lay_out(Activations& x);
  void quantize(Activations& x);
  void reduce_for_adapters(const Activations& x, std::span<const Product> products);
  size_t tile_bytes_of(const Activations& x) const;
  /// Packs the tokens of all products that run on panels, and quantises them if that has not been done.
  void pack_tiles(Activations& x, std::span<const Product> products);
  /// Prepares the copies of the activations in the orders that the dot products of `product` want.
  void order(Activations& x, const Product& product);
  static QuantizedRows in_order(Activations& x, Order order);
  /// Cuts product `index`, which runs on panels, into tasks of rows and tokens.
  void add_panel_tasks(const Activations& x, const Product& product, int index);
  void run_task(Activations& x, const Product& product, const Task& task, Scratch& scratch);
  /// next: what the thread reads after the task's rows of w; null for those that follow. out: the task's first token
  /// and row.
  void multiply(Activations& x, const Product& product, const Matrix& w, const Task& task, const std::byte* next,
                float* out, int64_t stride, Scratch& scratch);
  void multiply_panels(const Activations& x, const Matrix& w, const Task& task, float* out, int64_t stride,
                       Scratch& scratch);

  ThreadPool& pool_;
  const Kernels& kernels_;
  Precision precision_;
  CpuLora lora_;
  std::vector<CpuLora::Target> lora_targets_;  // two a product: w and gate
  std::vector<Task> tasks_;
  std::vector<Scratch> scratch_;  // one a thread
  std::vector<int64_t> all_tokens_;
  Buffer<std::byte> tiles_;          // packed tokens of all products that need them
  std::vector<size_t> tile_offset_;  // where each product's tiles begin
};

}  // namespace carat

#include "compute/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/thread_pool.h"
#include "compute/cpu/attention.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/matmul.h"
#include "compute/cpu/moe.h"

namespace carat {
namespace {

constexpr std::array kIsas = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon};

const Kernels* kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return amx_kernels();
    case Isa::kAvx512:
      return avx512_kernels();
    case Isa::kAvx2:
      return avx2_kernels();
    case Isa::kNeon:
      return neon_kernels();
    default:
      return &portable_kernels();
  }
}

Isa choose_isa(const std::optional<Isa>& wanted) {
  const std::vector<Isa> supported = supported_isas();
  const auto require = [&](Isa isa) {
    if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
      fail("this machine or build does not support the {} kernels", isa_name(isa));
    }
    return isa;
  };
  if (wanted) return require(*wanted);
  if (const char* name = std::getenv("CARAT_ISA"); name != nullptr && *name != '\0') {
    for (const Isa isa : kIsas) {
      if (isa_name(isa) == name) return require(isa);
    }
    fail("CARAT_ISA is \"{}\"; expected portable, avx2, avx512, amx or neon", name);
  }
  return supported.back();
}

class CpuDevice final : public Device {
 public:
  CpuDevice(const Kernels& kernels, const CpuOptions& options)
      : kernels_(kernels),
        pool_(options.threads),
        matmul_(pool_, kernels, options.precision),
        attention_(pool_, kernels),
        moe_(pool_, kernels, matmul_) {}

  std::string description() const override {
    return fmt::format("CPU, {}, {} thread{}", kernels_.name, pool_.threads(), pool_.threads() == 1 ? "" : "s");
  }

  void* allocate(size_t bytes) override { return ::operator new (bytes + 64, std::align_val_t{64}); }
  void release(void* memory) noexcept override { ::operator delete (memory, std::align_val_t{64}); }
  bool shares_host_memory() const override { return true; }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  void reserve(int64_t rows) override { matmul_.all_tokens(rows); }

  void embed(const Matrix& table, std::span<const int> ids, float scale, float* out) override {
    pool_.run(static_cast<int64_t>(ids.size()), [&](int64_t i, int) {
      float* row = out + i * table.cols;
      kernels_.decode_rows(table, ids[static_cast<size_t>(i)], 1, row, table.cols);
      for (int64_t c = 0; c < table.cols; ++c) row[c] *= scale;
    });
  }

  void gather_rows(const float* x, std::span<const int> source, int64_t width, float* out) override {
    for (size_t i = 0; i < source.size(); ++i) {
      std::memcpy(out + static_cast<int64_t>(i) * width, x + source[i] * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }

  void per_layer_inputs(const float* x, int64_t rows, const Matrix& table, std::span<const int> ids,
                        const Matrix& projection, const Norm& norm, int width, float* out) override {
    matmul_.set_input(input_, x, rows, projection.cols);
    matmul_.run(input_, std::array{product(projection, rows, out)});
    const auto root_width = std::sqrt(static_cast<float>(width));
    const auto inverse_root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(projection.cols)));
    const auto half_root = static_cast<float>(std::sqrt(0.5));
    const int64_t total = projection.rows;
    token_rows_.resize(static_cast<size_t>(total * pool_.threads()));
    pool_.run(rows, [&](int64_t r, int thread) {
      float* token = token_rows_.data() + thread * total;
      float* row = out + r * total;
      kernels_.decode_rows(table, ids[static_cast<size_t>(r)], 1, token, total);
      for (int64_t c = 0; c < total; ++c) row[c] *= inverse_root;
      for (int64_t c = 0; c < total; c += width) kernels_.rms_norm(row + c, norm.weight, norm.eps, width, row + c);
      kernels_.axpby(token, root_width, half_root, total, row);
    });
  }

  void norm_project(const float* x, int64_t rows, const Norm& norm, std::span<const Projection> projections) override {
    set_normed_input(x, rows, projections[0].weight.matrix.cols, norm);
    products_.clear();
    for (const Projection& p : projections) products_.push_back(product(p.weight, rows, p.out));
    matmul_.run(input_, products_);
  }

  void finish_qkv(const QkvArgs& args) override { attention_.finish_qkv(args); }
  void attention(const AttentionArgs& args) override { attention_.attend(args); }

  void project_norm_residual(const float* a, int64_t rows, const Linear& weight, const Residual& residual) override {
    project(a, rows, weight);
    add_residual(rows, weight.matrix.rows, residual);
  }

  void gated_mlp(int64_t rows, const Norm& pre_norm, const MlpWeights& weights, const Residual& residual) override {
    mlp(residual.x, rows, pre_norm, weights);
    add_residual(rows, weights.down.matrix.rows, residual);
  }

  void moe(const MoeArgs& args) override {
    const int64_t hidden = args.router.cols;
    mlp(args.residual.x, args.rows, args.dense_pre_norm, args.dense);  // projected_ = the dense branch
    moe_.run(args, projected_.data());                                 // += the experts, both normalised
    add_residual(args.rows, hidden, args.residual);
  }

  void per_layer_gate(int64_t rows, const Linear& gate, const float* input, int64_t input_stride,
                      const Linear& projection, const Residual& residual) override {
    const int64_t width = gate.matrix.rows;
    activated_.resize(static_cast<size_t>(rows * width));
    matmul_.set_input(input_, residual.x, rows, gate.matrix.cols);
    matmul_.run(input_, std::array{product(gate, rows, activated_.data())});
    pool_.run(rows, [&](int64_t r, int) {
      float* row = activated_.data() + r * width;
      kernels_.gelu_mul(row, input + r * input_stride, width, row);
    });
    project(activated_.data(), rows, projection);
    add_residual(rows, projection.matrix.rows, residual);
  }

  void norm(const float* x, int64_t rows, int64_t width, const Norm& norm, float* out) override {
    pool_.run(rows,
              [&](int64_t r, int) { kernels_.rms_norm(x + r * width, norm.weight, norm.eps, width, out + r * width); });
  }

  void head(const float* x, int64_t rows, const Matrix& head, float softcap, float* logits) override {
    matmul_.set_input(input_, x, rows, head.cols);
    matmul_.run(input_, std::array{product(head, rows, logits)});
    if (softcap <= 0.0f) return;
    constexpr int64_t kChunk = 16384;
    const int64_t chunks = (head.rows + kChunk - 1) / kChunk;
    pool_.run(rows * chunks, [&](int64_t i, int) {
      const int64_t first = i % chunks * kChunk;
      kernels_.softcap(logits + i / chunks * head.rows + first, std::min(kChunk, head.rows - first), softcap);
    });
  }

 private:
  Product product(const Linear& w, int64_t rows, float* out, const Linear& gate = {}) {
    return {.w = w.matrix,
            .gate = gate.matrix,
            .lora = w.lora,
            .gate_lora = gate.lora,
            .tokens = matmul_.all_tokens(rows),
            .out = out,
            .stride = w.matrix.rows};
  }

  void set_normed_input(const float* x, int64_t rows, int64_t width, const Norm& n) {
    normed_.resize(static_cast<size_t>(rows * width));
    norm(x, rows, width, n, normed_.data());
    matmul_.set_input(input_, normed_.data(), rows, width);
  }

  /// projected_ = weight a.
  void project(const float* a, int64_t rows, const Linear& weight) {
    projected_.resize(static_cast<size_t>(rows * weight.matrix.rows));
    matmul_.set_input(input_, a, rows, weight.matrix.cols);
    matmul_.run(input_, std::array{product(weight, rows, projected_.data())});
  }

  /// projected_ = down(gelu(gate norm(x)) * up norm(x)).
  void mlp(const float* x, int64_t rows, const Norm& pre_norm, const MlpWeights& weights) {
    set_normed_input(x, rows, weights.up.matrix.cols, pre_norm);
    activated_.resize(static_cast<size_t>(rows * weights.up.matrix.rows));
    matmul_.run(input_, std::array{product(weights.up, rows, activated_.data(), weights.gate)});
    project(activated_.data(), rows, weights.down);
  }

  void add_residual(int64_t rows, int64_t width, const Residual& residual) {
    pool_.run(rows, [&](int64_t r, int) {
      kernels_.add_rms_norm(projected_.data() + r * width, residual.norm.weight, residual.norm.eps, width,
                            residual.output_scale, residual.x + r * width);
    });
  }

  const Kernels& kernels_;
  ThreadPool pool_;
  Matmul matmul_;
  CpuAttention attention_;
  CpuMoe moe_;
  Activations input_;
  std::vector<Product> products_;
  Buffer<float> normed_;      // [rows, hidden]
  Buffer<float> activated_;   // [rows, width]
  Buffer<float> projected_;   // [rows, hidden]
  Buffer<float> token_rows_;  // [threads, layers * width of per-layer inputs]
};

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kIsas) {
    if (kernels_of(isa) != nullptr) isas.push_back(isa);
  }
  return isas;
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kNeon:
      return "neon";
    default:
      return "portable";
  }
}

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  return std::make_unique<CpuDevice>(*kernels_of(choose_isa(options.isa)), options);
}

}  // namespace carat

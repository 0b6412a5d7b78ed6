// The CPU kernels one by one, on one thread, for each instruction set of this machine and each number format.
//
//   kernels_bench [--benchmark_filter=REGEX] [--benchmark_format=json] [--benchmark_min_time=SECONDS]
//
// Names are KERNEL/ISA/WHAT. Weights are said to be read from `memory` (256 MB, more than any cache of the machines
// this is for) or from `L2` (256 KiB); bytes_per_second counts weights, or keys and values. `macs` and `flops` are a
// second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "compute/cpu/attention.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/matmul.h"
#include "test_weights.h"

namespace carat {
namespace {

using benchmark::Counter;
using benchmark::State;

constexpr int64_t kCols = 1536;  // E2B's residual stream
constexpr size_t kMemoryBytes = size_t{256} << 20;
constexpr size_t kCacheBytes = size_t{256} << 10;
constexpr int64_t kPromptTokens = 512;

struct Target {
  std::string name;
  const Kernels* kernels;
};

/// The instruction sets of this machine; the portable kernels only where there is nothing else.
std::vector<Target> targets() {
  std::vector<Target> found;
  for (const Target& target :
       {Target{"avx2", avx2_kernels()}, Target{"avx512", avx512_kernels()}, Target{"neon", neon_kernels()}}) {
    if (target.kernels != nullptr) found.push_back(target);
  }
  if (found.empty()) found.push_back({"portable", &portable_kernels()});
  return found;
}

void per_second(State& state, const char* name, double each) {
  state.counters[name] = Counter(each * static_cast<double>(state.iterations()), Counter::kIsRate);
}

void bytes_per_second(State& state, size_t each) {
  state.SetBytesProcessed(static_cast<int64_t>(each) * state.iterations());
}

/// A matrix of about `bytes`: some random rows, over and over.
class LargeMatrix {
 public:
  LargeMatrix(const WeightCase& weight, size_t bytes, int64_t cols = kCols) {
    const TestMatrix sample(weight, kSampleRows, cols, 1);
    matrix_ = sample;
    const size_t copies = std::max<size_t>(1, bytes / matrix_.bytes());
    matrix_.rows = kSampleRows * static_cast<int64_t>(copies);
    const auto repeat = [&](const std::byte*& part, size_t row_bytes, Buffer<std::byte>& buffer) {
      if (part == nullptr) return;
      const size_t size = kSampleRows * row_bytes;
      buffer.resize(copies * size);
      for (size_t i = 0; i < copies; ++i) std::memcpy(buffer.data() + i * size, part, size);
      part = buffer.data();
    };
    repeat(matrix_.data, matrix_.row_bytes, data_);
    repeat(matrix_.scales, matrix_.scale_row_bytes, scales_);
    repeat(matrix_.biases, matrix_.scale_row_bytes, biases_);
  }

  const Matrix& matrix() const { return matrix_; }

 private:
  static constexpr int64_t kSampleRows = 32;
  Matrix matrix_;
  Buffer<std::byte> data_, scales_, biases_;
};

/// y = W x for `tokens` rows of x: what decoding (one token) and prefill do with a weight.
void matmul(State& state, const Kernels& kernels, const WeightCase& weight, size_t bytes, int64_t tokens) {
  const LargeMatrix w(weight, bytes);
  const Matrix& matrix = w.matrix();
  ThreadPool pool(1);
  Matmul product(pool, kernels, Precision::kFast);
  const std::vector<float> x = random_activations(tokens, kCols, 2);
  std::vector<float> y(static_cast<size_t>(tokens * matrix.rows));
  Activations input;
  product.set_input(input, x.data(), tokens, kCols);
  const Product all{.w = matrix,
                    .gate = {},
                    .tokens = product.all_tokens(tokens),
                    .out = y.data(),
                    .stride = matrix.rows,
                    .exact = false};
  for (auto _ : state) {
    product.run(input, std::span(&all, 1));
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  per_second(state, "macs", static_cast<double>(matrix.rows) * kCols * static_cast<double>(tokens));
  bytes_per_second(state, matrix.bytes());
}

/// Keys and values of one sequence of `length` positions.
class Cache {
 public:
  Cache(const KvFormats& formats, int kv_heads, int head_dim, int64_t length) {
    const auto blocks = static_cast<size_t>((length + kKvBlock - 1) / kKvBlock);
    const size_t k_bytes = kv_row_bytes(formats.k, head_dim);
    const size_t v_bytes = kv_row_bytes(formats.v, head_dim);
    const auto rows = static_cast<size_t>(kv_heads * kKvBlock);
    storage_.resize(blocks * rows * (k_bytes + v_bytes));
    const std::vector<float> head = random_floats(static_cast<size_t>(head_dim), 3);
    std::byte* at = storage_.data();
    for (size_t b = 0; b < blocks; ++b) {
      blocks_.push_back(at);
      for (size_t row = 0; row < rows; ++row, at += k_bytes) store_kv_row(head, formats.k, at);
      for (size_t row = 0; row < rows; ++row, at += v_bytes) store_kv_row(head, formats.v, at);
    }
    sequence_.blocks = blocks_.data();
    layer_ = {formats.k, formats.v, kv_heads, head_dim, std::span(&sequence_, 1)};
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const KvLayer& layer() const { return layer_; }

 private:
  Buffer<std::byte> storage_;
  std::vector<std::byte*> blocks_;
  KvSequence sequence_;
  KvLayer layer_;
};

/// The last `rows` of `length` tokens attend to all before them, eight query heads to one of keys (E2B).
void attention(State& state, const Kernels& kernels, const KvFormats& format, int head_dim, int64_t rows,
               int64_t length) {
  constexpr int kHeads = 8;
  const Cache cache(format, 1, head_dim, length);
  ThreadPool pool(1);
  CpuAttention attention(pool, kernels);
  const std::vector<float> q = random_floats(static_cast<size_t>(rows * kHeads * head_dim), 4, 0.1f);
  std::vector<float> out(q.size());
  std::vector<TokenRow> tokens;
  double pairs = 0.0;
  for (int64_t position = length - rows; position < length; ++position) {
    tokens.push_back({.sequence = 0, .position = position, .key_begin = 0, .key_end = position + 1});
    pairs += static_cast<double>(position + 1);
  }
  for (auto _ : state) {
    attention.attend({.rows = rows,
                      .heads = kHeads,
                      .q = q.data(),
                      .out = out.data(),
                      .scale = 1.0f,
                      .tokens = tokens,
                      .cache = cache.layer()});
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  per_second(state, "flops", 4.0 * pairs * kHeads * head_dim);
  const size_t position = kv_row_bytes(format.k, head_dim) + kv_row_bytes(format.v, head_dim);
  if (rows == 1) bytes_per_second(state, static_cast<size_t>(length) * position);
}

void quantize(State& state, const Kernels& kernels) {
  constexpr int64_t kGroups = kCols / kGroup;
  static_assert(kGroups % kChains == 0);
  const std::vector<float> x = random_activations(1, kCols, 5);
  Buffer<int8_t> hi(kCols), lo(kCols);
  Buffer<int16_t> whole(kCols);
  Buffer<float> scale(kGroups);
  Buffer<int32_t> sum0(kGroups), sum1(kGroups);
  const QuantizedRows rows{.rows = 1,
                           .groups = kGroups,
                           .padded_groups = kGroups,
                           .hi = hi.data(),
                           .lo = lo.data(),
                           .q = kernels.reads_whole ? whole.data() : nullptr,
                           .scale = scale.data(),
                           .sum0 = sum0.data(),
                           .sum1 = sum1.data()};
  for (auto _ : state) {
    kernels.quantize(x.data(), kCols, rows, 0);
    benchmark::ClobberMemory();
  }
  bytes_per_second(state, kCols * sizeof(float));
}

/// A kernel that turns a row of floats, and perhaps another, into a row; bytes are those read and written.
void elementwise(State& state, int64_t n, size_t bytes_each,
                 const std::function<void(const float* a, const float* b, float* y)>& kernel) {
  const std::vector<float> a = random_floats(static_cast<size_t>(n), 6);
  const std::vector<float> b = random_floats(static_cast<size_t>(n), 7);
  Buffer<float> y(static_cast<size_t>(n));
  std::copy(a.begin(), a.end(), y.data());
  for (auto _ : state) {
    kernel(a.data(), b.data(), y.data());
    benchmark::ClobberMemory();
  }
  bytes_per_second(state, static_cast<size_t>(n) * bytes_each);
}

void add(const std::string& name, std::function<void(State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(body))->Unit(benchmark::kMicrosecond);
}

void add_matmul(const Target& target) {
  const Kernels& kernels = *target.kernels;
  for (const WeightCase& weight : all_weight_cases()) {
    const std::string what = target.name + "/" + weight.name();
    add("dot/" + what + "/memory", [=, &kernels](State& s) { matmul(s, kernels, weight, kMemoryBytes, 1); });
    add("dot/" + what + "/L2", [=, &kernels](State& s) { matmul(s, kernels, weight, kCacheBytes, 1); });
  }
}

void add_gemm(const Target& target) {
  const Kernels& kernels = *target.kernels;
  for (const WeightCase& weight : all_weight_cases()) {
    add("gemm/" + target.name + "/" + weight.name(),
        [=, &kernels](State& s) { matmul(s, kernels, weight, 8 * kCacheBytes, kPromptTokens); });
  }
}

void add_attention(const Target& target) {
  const Kernels& kernels = *target.kernels;
  const std::pair<KvFormats, const char*> formats[] = {
      {KvFormat::kF16, "f16"},     {KvFormat::kBF16, "bf16"},   {KvFormat::kF32, "f32"},
      {KvFormat::spread(8), "q8"}, {KvFormat::spread(4), "q4"}, {{KvFormat::spread(8), KvFormat::rotated(3)}, "k8v3"}};
  for (const auto& [format, format_name] : formats) {
    for (const int dim : {256, 512}) {
      const std::string what = target.name + "/" + format_name + "/" + std::to_string(dim);
      const KvFormats kv = format;
      add("attention_decode/" + what, [=, &kernels](State& s) { attention(s, kernels, kv, dim, 1, 32768); });
      add("attention_prefill/" + what,
          [=, &kernels](State& s) { attention(s, kernels, kv, dim, kPromptTokens, 2 * kPromptTokens); });
    }
  }
}

void add_rows(const Target& target) {
  const Kernels& kernels = *target.kernels;
  add("quantize/" + target.name + "/" + std::to_string(kCols), [&kernels](State& s) { quantize(s, kernels); });
  add("rms_norm/" + target.name + "/" + std::to_string(kCols), [&kernels](State& s) {
    elementwise(s, kCols, 2 * sizeof(float),
                [&](const float* a, const float* b, float* y) { kernels.rms_norm(a, b, 1e-6f, kCols, y); });
  });
  add("gelu_mul/" + target.name + "/6144", [&kernels](State& s) {
    elementwise(s, 6144, 3 * sizeof(float),
                [&](const float* a, const float* b, float* y) { kernels.gelu_mul(a, b, 6144, y); });
  });
  add("softcap/" + target.name + "/262144", [&kernels](State& s) {
    elementwise(s, 262144, 2 * sizeof(float),
                [&](const float*, const float*, float* y) { kernels.softcap(y, 262144, 30.0f); });
  });
}

}  // namespace
}  // namespace carat

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const carat::Target& target : carat::targets()) {
    carat::add_matmul(target);
    carat::add_gemm(target);
    carat::add_attention(target);
    carat::add_rows(target);
  }
  // All else is AVX-512's.
  if (const carat::Kernels* amx = carat::amx_kernels()) carat::add_gemm({"amx", amx});
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

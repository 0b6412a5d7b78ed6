// The operations that a Gemma model needs, as large as fusion wants. A backend implements these and nothing else.
//
// All activations are float32, row-major, one row a token; pointers are memory of the device. Operations are called in
// order from one thread at a time and have finished (or behave as if) when they return. The arithmetic meaning of each
// is its formula in exact arithmetic, as compute/reference computes it in float64; backends round differently. On the
// CPU backend a row's result depends on that row's inputs alone, bit for bit (ARCHITECTURE.md, law 2).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "carat/options.h"
#include "compute/kv_rows.h"
#include "compute/rope.h"
#include "quant/matrix.h"

namespace carat {

/// Keys and values are stored in blocks of this many positions, aligned to absolute positions.
constexpr int64_t kKvBlock = 64;

/// One sequence's storage in one layer. Position p lives in blocks[(p / kKvBlock) % ring], row p % kKvBlock. A block is
/// [kv_heads, kKvBlock] rows of keys and then as many rows of values, each as kv_rows.h has it.
struct KvSequence {
  std::byte* const* blocks = nullptr;
  int64_t ring = INT64_MAX;  // blocks before the table wraps
};

/// The latest positions of a layer once more, as floats where the layer has codes: see recent_begin().
struct KvRecent {
  int64_t positions = 0;  // at least so many are read; 0: the layer keeps none
  KvFormat k_format;
  KvFormat v_format;
  std::span<const KvSequence> sequences;  // rings, indexed by TokenRow::sequence
};

constexpr int64_t kRecentStep = 256;

/// A query at `position` reads keys and values from here on as floats, and those before as codes, of a layer that keeps
/// `recent` positions. This moves in steps: between `recent` and `recent` + kRecentStep - 1 positions up to its own are
/// floats. It depends on the position alone, so that results depend on nothing else (law 2).
constexpr int64_t recent_begin(int64_t position, int64_t recent) {
  return std::max<int64_t>(0, position + 1 - recent) / kRecentStep * kRecentStep;
}

struct KvLayer {
  KvFormat k_format;
  KvFormat v_format;
  int kv_heads = 0;
  int head_dim = 0;
  std::span<const KvSequence> sequences;  // indexed by TokenRow::sequence
  KvRecent recent = {};

  size_t k_row_bytes() const { return kv_row_bytes(k_format, head_dim); }
  size_t v_row_bytes() const { return kv_row_bytes(v_format, head_dim); }
  /// Where in a block the key of a head at a position is, and where the value.
  size_t k_offset(int kv_head, int64_t position) const {
    return static_cast<size_t>(kv_head * kKvBlock + position % kKvBlock) * k_row_bytes();
  }
  size_t v_offset(int kv_head, int64_t position) const {
    return static_cast<size_t>(kv_heads * kKvBlock) * k_row_bytes() +
           static_cast<size_t>(kv_head * kKvBlock + position % kKvBlock) * v_row_bytes();
  }
  /// recent_begin(); beyond all positions where the layer keeps none.
  int64_t floats_begin(int64_t position) const {
    return recent.positions > 0 ? recent_begin(position, recent.positions) : INT64_MAX;
  }
  /// The storage of the latest positions, as a layer.
  KvLayer recent_layer() const { return {recent.k_format, recent.v_format, kv_heads, head_dim, recent.sequences, {}}; }
};

/// What attention needs to know of one row of a batch.
struct TokenRow {
  int sequence = 0;  // index into the sequences of KvLayer and of KvRecent
  int64_t position = 0;
  int64_t key_begin = 0;  // the row sees keys of its sequence at positions [key_begin, key_end)
  int64_t key_end = 0;    // more than `position` where the layer keeps latest positions
};

/// One adapter's correction of one weight: b (a x), its scale folded into b.
struct LoraPair {
  int rank = 0;              // 0: the adapter leaves this weight alone
  const float* a = nullptr;  // [rank, in]
  const float* b = nullptr;  // [rank, out]
};

/// Corrections of one weight in a batch whose rows may use different adapters. Empty for none at all.
struct Lora {
  std::span<const LoraPair> pairs;  // one an adapter
  std::span<const int> row_pair;    // [rows]: index into pairs, or -1 for a row without an adapter
};

/// A weight as rows are multiplied by it: y_r = matrix x_r + b (a x_r), the pair being that of row r.
struct Linear {
  Matrix matrix;  // [out, in]
  Lora lora;

  Linear() = default;
  Linear(const Matrix& matrix, const Lora& lora = {}) : matrix(matrix), lora(lora) {}
};

/// One of several projections of the same normalised input.
struct Projection {
  Linear weight;
  float* out = nullptr;  // [rows, out]
};

/// RMSNorm weights: x * rsqrt(mean(x^2) + eps) * weight. `weight` is null where the model has none.
struct Norm {
  const float* weight = nullptr;
  float eps = 1e-6f;
};

struct QkvArgs {
  int64_t rows = 0;
  int heads = 0;
  float* q = nullptr;        // [rows, heads, head_dim], in place: rope(norm(q))
  const float* k = nullptr;  // [rows, kv_heads, head_dim]; null on layers that share another layer's K/V
  const float* v = nullptr;  // likewise; may equal k (K=V layers)
  Norm q_norm, k_norm;
  std::optional<Norm> v_norm;  // Gemma 4 normalises v (without weight); Gemma 3 does not
  const RopeTable* rope = nullptr;
  std::span<const TokenRow> tokens;
  KvLayer cache;  // receives rope(norm(k)) and norm(v) at each row's position, the latest positions likewise
};

struct AttentionArgs {
  int64_t rows = 0;
  int heads = 0;
  const float* q = nullptr;  // [rows, heads, head_dim]
  float* out = nullptr;      // [rows, heads, head_dim]
  float scale = 1.0f;
  std::span<const TokenRow> tokens;
  KvLayer cache;
};

/// x += norm(out of the last matrix); then x *= output_scale.
struct Residual {
  float* x = nullptr;  // [rows, hidden]
  Norm norm;
  float output_scale = 1.0f;
};

struct MlpWeights {
  Linear gate, up;  // [width, hidden]
  Linear down;      // [hidden, width]
};

struct MoeArgs {
  int64_t rows = 0;
  MlpWeights dense;
  Norm dense_pre_norm;                      // pre_feedforward_layernorm
  Norm dense_post_norm;                     // post_feedforward_layernorm_1
  Norm router_norm;                         // weight = router.scale * hidden^-0.5
  Matrix router;                            // [experts, hidden]
  const float* per_expert_scale = nullptr;  // [experts]
  int experts_per_token = 0;
  MatrixStack gate, up, down;
  Norm expert_pre_norm;   // pre_feedforward_layernorm_2
  Norm expert_post_norm;  // post_feedforward_layernorm_2
  Residual residual;      // its norm is post_feedforward_layernorm, over the sum of both branches
};

class Device {
 public:
  virtual ~Device() = default;

  /// "AVX-512 VNNI, 2 threads": for people.
  virtual std::string description() const = 0;

  /// Device memory, 64-byte aligned, uninitialised. Freed by release(). Throws std::bad_alloc.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Whether the host reads and writes device memory as its own, and the device the host's: nothing need be copied.
  virtual bool shares_host_memory() const = 0;
  /// Copies between host and device memory.
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  /// Copies within device memory; the two places do not overlap.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;

  /// Prepares scratch for batches of up to `rows` so that operations allocate nothing.
  virtual void reserve(int64_t rows) = 0;

  /// out[i] = scale * table[ids[i]], [ids, table.cols]. Touches only those rows of the table.
  virtual void embed(const Matrix& table, std::span<const int> ids, float scale, float* out) = 0;

  /// out[i] = x[source[i]] for rows of `width` floats; out and x do not overlap.
  virtual void gather_rows(const float* x, std::span<const int> source, int64_t width, float* out) = 0;

  /// Per-layer inputs of Gemma E models: out[r, l, :] = 2^-0.5 * (norm((projection x_r) * hidden^-0.5)[l] + token[r, l,
  /// :]) where the projection's output is cut in slices of `width` and `token` is table[ids] * sqrt(width). out [rows,
  /// layers * width].
  virtual void per_layer_inputs(const float* x, int64_t rows, const Matrix& table, std::span<const int> ids,
                                const Matrix& projection, const Norm& norm, int width, float* out) = 0;

  /// Every projection of norm(x). x [rows, hidden].
  virtual void norm_project(const float* x, int64_t rows, const Norm& norm,
                            std::span<const Projection> projections) = 0;

  /// q/k/v norms, rotations, and the write of K and V into the cache.
  virtual void finish_qkv(const QkvArgs& args) = 0;

  /// softmax(scale * q k^T over the row's keys) v, query head h reading kv head h * kv_heads / heads.
  virtual void attention(const AttentionArgs& args) = 0;

  /// residual.x += norm(weight a); a [rows, in].
  virtual void project_norm_residual(const float* a, int64_t rows, const Linear& weight, const Residual& residual) = 0;

  /// residual.x += norm(down(gelu_tanh(gate n) * up n)), n = pre_norm(residual.x).
  virtual void gated_mlp(int64_t rows, const Norm& pre_norm, const MlpWeights& weights, const Residual& residual) = 0;

  /// Dense MLP and routed experts side by side (Gemma 4 26B-A4B): the router picks the experts_per_token largest of
  /// softmax(router norm(x)), ties to the lowest index, renormalises them to one and multiplies by per_expert_scale.
  virtual void moe(const MoeArgs& args) = 0;

  /// residual.x += norm(projection(gelu_tanh(gate x) * input_r)); input row r starts at input + r * input_stride.
  virtual void per_layer_gate(int64_t rows, const Linear& gate, const float* input, int64_t input_stride,
                              const Linear& projection, const Residual& residual) = 0;

  /// out = norm(x), [rows, width].
  virtual void norm(const float* x, int64_t rows, int64_t width, const Norm& norm, float* out) = 0;

  /// logits = head x, then softcap * tanh(logits / softcap) when softcap > 0. x is already normalised; logits [rows,
  /// vocab].
  virtual void head(const float* x, int64_t rows, const Matrix& head, float softcap, float* logits) = 0;
};

/// Device memory as an array of T.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, size_t size)
      : device_(&device), data_(static_cast<T*>(device.allocate(size * sizeof(T)))), size_(size) {}
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArray() {
    if (device_ != nullptr) device_->release(data_);
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(DeviceArray& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace carat

// A Gemma text model: configuration, weights, and the forward pass.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "checkpoint/checkpoint.h"
#include "compute/device.h"
#include "model/adapter.h"
#include "model/batch.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace carat {

/// Weights bound to a device and the one forward pass over them. One forward at a time: not thread-safe.
class Model {
 public:
  /// Batches have at most `max_rows` rows. The checkpoint stays mapped as long as the model lives. Throws Error when
  /// the weights do not fit the configuration.
  Model(std::shared_ptr<const Checkpoint> checkpoint, std::shared_ptr<Device> device, int64_t max_rows = 512);

  const ModelConfig& config() const { return checkpoint_->config(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const ModelPlan& plan() const { return plan_; }
  const Weights& weights() const { return weights_; }
  Device& device() const { return *device_; }
  int64_t max_rows() const { return max_rows_; }

  /// The cache layout of this model, of max_rows() rows of one sequence per forward. Groups of coded formats are
  /// narrowed where heads need it. Throws Error when a format cannot hold the heads of its layer, or when the choice
  /// names a layer that the model lacks.
  KvCacheSpec cache_spec(const KvChoice& choice) const;

  /// Computes the batch, appends its keys and values to `cache`, and leaves what was asked for in `result`. Throws
  /// Error before anything is changed when the batch is not valid: unknown tokens, rows of a sequence apart, too many
  /// rows, spans that leave the batch.
  void forward(const Batch& batch, KvCache& cache, ForwardResult& result);

  /// Bytes of weights that one decoded token reads: bytes_per_token (weights.h) of the checkpoint.
  size_t bytes_per_token() const;

 private:
  /// Per-layer inputs of a range of layers for a set of rows.
  struct PerLayerInputs {
    int first_layer = 0;
    int layers = 0;
    DeviceArray<float> values;  // [rows, layers * pli_width]
  };
  enum class Part : uint8_t { kQuery, kKeyValue, kAll };

  void check(const Batch& batch, const KvCache& cache);
  void place_rows(const Batch& batch, KvCache& cache);
  void embed(const Batch& batch);
  void prepare_per_layer_inputs();
  void project(Part part, int layer, const KvLayer& kv);
  void drop_unwanted_rows();
  void attend(int layer, const KvLayer& kv);
  void feed_forward(int layer);
  void add_per_layer_input(int layer);
  /// The weight with what the rows' adapters add to it.
  Linear adapted(const Matrix& weight, int layer, LoraModule module);
  void collect_taps(const Batch& batch, int layer, const float* values, ForwardResult& result);
  void compute_logits(const Batch& batch, const float* normed, ForwardResult& result);

  Norm norm(const DeviceArray<float>& weight) const { return {weight.data(), static_cast<float>(config().norm_eps)}; }
  const std::vector<TokenRow>& tokens(LayerKind kind) const { return kind == LayerKind::kFull ? full_ : sliding_; }
  const RopeTable& rope(LayerKind kind) const { return kind == LayerKind::kFull ? rope_full_ : rope_sliding_; }

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<Device> device_;
  int64_t max_rows_;
  ModelPlan plan_;
  Weights weights_;
  RopeTable rope_sliding_, rope_full_;

  // The forward in progress. Rows that nobody asks anything of are dropped on the way.
  int64_t rows_ = 0;
  std::vector<TokenRow> full_, sliding_;  // what each row sees in layers of either kind
  std::vector<int> source_;               // batch row of each current row
  std::vector<int> wanted_;               // current rows that go all the way
  std::vector<int> ids_, pli_ids_;
  std::span<const Adapter* const> adapters_;                    // empty when no row uses one
  std::vector<int> adapter_of_;                                 // of each current row, -1 for none
  std::array<std::vector<LoraPair>, kLoraModules> lora_pairs_;  // of the layer in progress, one an adapter
  std::vector<uint8_t> seen_;                                   // by sequence, while a batch is checked
  std::vector<int> batch_rows_of_;                              // scratch for gathers
  DeviceArray<float> x_, gathered_;                             // [max_rows, hidden]
  DeviceArray<float> q_, attended_;                             // [max_rows, heads * head_dim]
  DeviceArray<float> k_, v_;                                    // [max_rows, kv_heads * head_dim]
  PerLayerInputs early_, late_;  // for all rows, and for the wanted rows from the last owner on
  DeviceArray<float> logits_;    // where the device cannot write to the host's
};

}  // namespace carat

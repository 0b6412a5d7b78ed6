// All weights of a model by role, checked against its plan and bound to a device.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "compute/device.h"
#include "model/layer_plan.h"

namespace carat {

struct LayerWeights {
  DeviceArray<float> input_norm;  // [hidden]
  DeviceArray<float> post_attention_norm;
  DeviceArray<float> pre_mlp_norm;
  DeviceArray<float> post_mlp_norm;
  DeviceArray<float> q_norm, k_norm;  // [head_dim], balanced (load_weights); k_norm only where the layer owns K/V
  Matrix q, k, v, o;                  // k, v only where the layer owns K/V; no v on K=V layers
  MlpWeights mlp;
  float scalar = 1.0f;  // layer_scalar

  // Per-layer inputs.
  Matrix pli_gate, pli_projection;   // [pli_width, hidden], [hidden, pli_width]
  DeviceArray<float> post_pli_norm;  // [hidden]

  // Experts.
  Matrix router;                        // [experts, hidden]
  DeviceArray<float> router_scale;      // [hidden], hidden^-0.5 folded in
  DeviceArray<float> per_expert_scale;  // [experts]
  MatrixStack expert_gate, expert_up, expert_down;
  DeviceArray<float> pre_expert_norm;   // pre_feedforward_layernorm_2
  DeviceArray<float> post_dense_norm;   // post_feedforward_layernorm_1
  DeviceArray<float> post_expert_norm;  // post_feedforward_layernorm_2
};

struct Weights {
  Matrix embedding;               // [vocab, hidden]
  Matrix head;                    // [vocab, hidden]: the embedding where the head is tied
  DeviceArray<float> final_norm;  // [hidden]
  Matrix pli_table;               // [pli_vocab, layers * pli_width]
  Matrix pli_model_projection;    // [layers * pli_width, hidden]
  DeviceArray<float> pli_norm;    // [pli_width]
  std::vector<LayerWeights> layers;
};

/// Matrices stay views into the checkpoint, which must outlive the result; vectors are copied to the device, with the 1
/// of (1 + w) norms added. Norms of keys are divided, and those of their queries multiplied, by powers of two that
/// make channels of both about as large: scores stay as they are, to the bit, and coded keys lose less. Throws Error
/// naming the tensor that is missing or has another shape than the configuration says.
Weights load_weights(const Checkpoint& checkpoint, const ModelPlan& plan, Device& device);

/// Bytes of weights that one decoded token reads: chosen experts only, one row of each table, the head whole. Looks at
/// the checkpoint's list of tensors alone, so it costs nothing however large the model is.
size_t bytes_per_token(const Checkpoint& checkpoint);

}  // namespace carat

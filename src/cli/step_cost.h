// What a forward pass must at least read and multiply: the measures of its speed.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace carat {

/// Counts of one step, in bytes and in multiply-adds.
struct StepCost {
  double weight_bytes = 0.0;
  double kv_bytes = 0.0;      // keys and values read
  double integer_macs = 0.0;  // of weights whose products fast mode computes on integers
  double float_macs = 0.0;    // of other weights, and of attention

  double bytes() const { return weight_bytes + kv_bytes; }
};

struct CostOptions {
  KvChoice kv;
  Precision precision = Precision::kFast;
  int64_t chunk = 512;  // prompt tokens that share one reading of the weights
};

/// One step that decodes a token of each of `batch` sequences, which see `length` positions each. With experts, the
/// bytes are those of a router that chooses evenly.
StepCost decode_cost(const Model& model, const CostOptions& options, int64_t batch, int64_t length);

/// Reading `tokens` prompt tokens after `depth` others, logits of the last included. What is skipped for tokens without
/// logits is not counted.
StepCost prefill_cost(const Model& model, const CostOptions& options, int64_t tokens, int64_t depth);

}  // namespace carat

// Timed runs of a model: what `carat bench` and bench/roofline.cpp report.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/step_cost.h"
#include "compute/cpu/cpu_device.h"
#include "model/model.h"

namespace carat {

struct Workload {
  int prompt = 512;    // tokens read by a prefill
  int generate = 128;  // steps of a decoding run
  int depth = 0;       // tokens already in the context
  int batch = 1;       // sequences decoded together
};

/// Runs a workload as often as asked. Speed does not depend on which tokens are read, so they are made up, and a
/// context of `depth` tokens is filled with zeros instead of being computed. Not thread-safe.
class SpeedTest {
 public:
  /// Throws Error when the model cannot be loaded or the workload does not fit its context or its chunk.
  SpeedTest(const std::filesystem::path& model, const EngineOptions& options, const Workload& workload,
            std::optional<Isa> isa = std::nullopt);

  /// Brings weights into memory and buffers to their sizes.
  void warm_up();
  /// Tokens per second of reading the prompt, logits of its last token included.
  double prefill_once();
  /// Tokens per second of all sequences together.
  double decode_once();

  StepCost prefill_cost() const;
  /// Of one step of all sequences, half-way through the run.
  StepCost decode_cost() const;

  const Model& model() const { return model_; }
  const KvChoice& kv() const { return kv_; }
  int threads() const;

 private:
  CostOptions cost_options() const;
  void fill(KvCache& cache, int sequence, int64_t count) const;
  void read(KvCache& cache, int sequence, int64_t count);

  Workload workload_;
  EngineOptions options_;
  Model model_;
  KvChoice kv_;
  Batch batch_;
  ForwardResult result_;
};

}  // namespace carat

// Runs a model over token ids in various ways.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compute/cpu/cpu_device.h"
#include "compute/reference/reference_device.h"
#include "model/model.h"

namespace carat::test {

struct RunOptions {
  Precision precision = Precision::kExact;
  KvChoice kv = KvFormat::kF32;
  int threads = 1;
  std::optional<Isa> isa = std::nullopt;
  bool reference = false;  // the float64 backend
  int64_t max_rows = 512;
};

inline std::unique_ptr<Model> open_model(const std::filesystem::path& path, const RunOptions& options = {}) {
  std::shared_ptr<Device> device =
      options.reference
          ? make_reference_device()
          : make_cpu_device({.threads = options.threads, .precision = options.precision, .isa = options.isa});
  return std::make_unique<Model>(Checkpoint::open(path), std::move(device), options.max_rows);
}

/// Logits of all positions [tokens, vocab], the prompt cut at the given chunk sizes (the last one repeats).
inline std::vector<float> logits_of(Model& model, std::span<const int> tokens, std::vector<int64_t> chunks = {1 << 20},
                                    const KvChoice& kv = KvFormat::kF32) {
  KvCache cache(model.device(), model.cache_spec(kv));
  const int sequence = cache.add_sequence();
  ForwardResult result;
  std::vector<float> all;
  size_t chunk = 0;
  for (size_t begin = 0; begin < tokens.size();) {
    const auto size = std::min(tokens.size() - begin, static_cast<size_t>(std::min(chunks[chunk], model.max_rows())));
    Batch batch;
    for (size_t i = 0; i < size; ++i)
      batch.rows.push_back({.sequence = sequence, .token = tokens[begin + i], .wants_logits = true});
    model.forward(batch, cache, result);
    all.insert(all.end(), result.logits.begin(), result.logits.end());
    begin += size;
    if (chunk + 1 < chunks.size()) ++chunk;
  }
  return all;
}

}  // namespace carat::test

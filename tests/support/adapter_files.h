// Adapter files with random weights for any model.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/files.h"
#include "model/model.h"

namespace carat::test {

struct RandomAdapter {
  int rank = 4;
  unsigned seed = 1;
  double alpha = 8.0;  // the scale is alpha / rank
  bool zero_b = false;
  std::function<bool(int layer, const std::string& projection)> has = {};  // every one, when empty
};

/// One projection of a layer: its name after "layers.I." and its shape; no data where the layer has none.
struct NamedMatrix {
  std::string name;
  const Matrix* matrix;
};

inline std::vector<NamedMatrix> adaptable(const LayerWeights& w) {
  std::vector<NamedMatrix> all = {{"self_attn.q_proj", &w.q},
                                  {"self_attn.k_proj", &w.k},
                                  {"self_attn.v_proj", &w.v},
                                  {"self_attn.o_proj", &w.o},
                                  {"mlp.gate_proj", &w.mlp.gate.matrix},
                                  {"mlp.up_proj", &w.mlp.up.matrix},
                                  {"mlp.down_proj", &w.mlp.down.matrix},
                                  {"per_layer_input_gate", &w.pli_gate},
                                  {"per_layer_projection", &w.pli_projection}};
  std::erase_if(all, [](const NamedMatrix& m) { return !*m.matrix; });
  return all;
}

/// Writes a PEFT adapter for `model` into `directory`.
inline void write_adapter(const testing::TempDir& directory, const Model& model, const RandomAdapter& adapter) {
  std::mt19937 random(adapter.seed);
  std::normal_distribution<float> normal;
  const auto values = [&](int64_t count, float size) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = size * normal(random);
    return testing::to_bytes(out);
  };
  testing::SafetensorsBuilder file;
  for (size_t layer = 0; layer < model.weights().layers.size(); ++layer) {
    for (const auto& [name, matrix] : adaptable(model.weights().layers[layer])) {
      if (adapter.has && !adapter.has(static_cast<int>(layer), name)) continue;
      const std::string module = fmt::format("base_model.model.model.layers.{}.{}", layer, name);
      const int64_t rank = adapter.rank;
      file.tensor(module + ".lora_A.weight", "F32", {rank, matrix->cols},
                  values(rank * matrix->cols, 1.0f / std::sqrt(static_cast<float>(matrix->cols))));
      file.tensor(module + ".lora_B.weight", "F32", {matrix->rows, rank},
                  values(rank * matrix->rows, adapter.zero_b ? 0.0f : 0.3f));
    }
  }
  directory.write("adapter_model.safetensors", file.build());
  directory.write("adapter_config.json",
                  fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}}})", adapter.rank, adapter.alpha));
}

/// The same, loaded.
inline std::shared_ptr<const Adapter> random_adapter(const Model& model, const RandomAdapter& adapter) {
  const testing::TempDir directory;
  write_adapter(directory, model, adapter);
  return Adapter::load(directory.path(), model);
}

}  // namespace carat::test

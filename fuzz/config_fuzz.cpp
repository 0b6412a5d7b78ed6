// config.json: the model and its quantisation block.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "checkpoint/config_json.h"
#include "checkpoint/mlx_quantization.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const carat::JsonDocument document(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
    try {
      const carat::MlxQuantization quantization(document.root());
      quantization.entry("model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj");
    } catch (const carat::Error&) {
    }
    carat::read_config(document.root());
  } catch (const carat::Error&) {
  }
  return 0;
}

// Adapters: the text of an adapter_config.json, up to the first zero byte, and a safetensors file after it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/error.h"
#include "checkpoint/adapter_files.h"

namespace {

/// Four layers, of which the second takes its keys for values and the last uses another's.
carat::ModelConfig small_config() {
  carat::ModelConfig config;
  config.hidden = 8;
  config.heads = 2;
  config.pli_width = 4;
  config.kv_shared_layers = 1;
  config.layers.resize(4);
  for (auto& layer : config.layers) layer = {.head_dim = 4, .kv_heads = 1};
  config.layers[1].k_eq_v = true;
  config.mlp_width.assign(4, 16);
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const carat::ModelConfig config = small_config();
  const uint8_t* end = std::find(data, data + size, 0);
  const std::string_view text(reinterpret_cast<const char*>(data), static_cast<size_t>(end - data));
  try {
    const carat::AdapterConfig adapter = carat::parse_adapter_config(text, "adapter_config.json");
    adapter.scale_of(text);
    if (end == data + size) return 0;
    const auto bytes = std::as_bytes(std::span(end + 1, data + size));
    const auto file = carat::SafetensorsFile::parse(bytes, "adapter.safetensors");
    for (const auto& module : carat::read_adapter(adapter, *file, config).modules) {
      const auto rank = static_cast<size_t>(module.rank);
      if (module.a.size() != rank * static_cast<size_t>(module.in)) std::abort();
      if (module.b.size() != rank * static_cast<size_t>(module.out)) std::abort();
    }
  } catch (const carat::Error&) {
  }
  return 0;
}

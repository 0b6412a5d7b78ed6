// Safetensors files: header, shapes and offsets, and the names in them.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file = carat::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "input.safetensors");
    carat::ModelConfig config;
    config.layers.resize(2);
    config.mlp_width.resize(2);
    volatile std::byte last{};
    for (const auto& tensor : file->tensors()) {
      if (!tensor.bytes.empty()) last = tensor.bytes.back();
      const carat::StoredName name = carat::parse_stored_name(tensor.name);
      carat::KnownTensor known;
      carat::find_known_tensor(config, name.canonical, known);
      carat::is_redundant_kv(config, name.canonical);
      carat::is_foreign_tensor(tensor.name);
    }
    (void)last;
  } catch (const carat::Error&) {
  }
  return 0;
}

// Prompt cache files: the header, the tensors and what is said of them.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "cache/cache_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const carat::ParsedCacheFile file = carat::parse_cache_file(std::as_bytes(std::span(data, size)), "input.cache");
    volatile std::byte last{};
    for (const auto& layer : file.layers) {
      if (!layer.bytes.empty()) last = layer.bytes.back();
    }
    (void)last;
  } catch (const carat::Error&) {
  }
  return 0;
}

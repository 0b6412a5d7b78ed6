// kv_config.json, and the names of formats.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/kv_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const carat::KvChoice choice = carat::parse_kv_config(text, carat::kKvConfigName);
    if (carat::parse_kv_config(carat::kv_config_text(choice), "itself") != choice) std::abort();
  } catch (const carat::Error&) {
  }
  try {
    carat::kv_choice_name(carat::parse_kv_choice(text));
  } catch (const carat::Error&) {
  }
  return 0;
}

// GGUF files: the container with every value read, then the model config in it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_config.h"

namespace {

/// Calls `action`; an Error is what bad input should cause.
template <typename Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const carat::Error&) {
  }
}

void read_all(std::span<const std::byte> bytes) {
  const auto file = carat::GgufFile::parse(bytes, "input.gguf");
  for (const auto& entry : file->values()) {
    const std::string& key = entry.first;
    attempt([&] { file->integer(key); });
    attempt([&] { file->real(key); });
    attempt([&] { file->boolean(key); });
    attempt([&] { file->string(key); });
    attempt([&] { file->integers(key); });
    attempt([&] { file->floats(key); });
    attempt([&] { file->strings(key); });
  }
  carat::GgufTensors tensors;
  volatile std::byte last{};
  for (const auto& tensor : file->tensors()) {
    if (!tensor.bytes.empty()) last = tensor.bytes.back();
    tensors.emplace(tensor.name, &tensor);
  }
  (void)last;
  attempt([&] { carat::gguf_stop_ids(*file); });
  carat::read_gguf_config(*file, tensors);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attempt([&] { read_all(std::as_bytes(std::span(data, size))); });
  return 0;
}

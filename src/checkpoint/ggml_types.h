// The tensor types of GGUF files by their ggml numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/matrix.h"

namespace carat {

/// A ggml tensor type: `block` consecutive values of a row take `bytes` bytes.
struct GgmlType {
  uint32_t number;
  std::string_view name;
  int block;
  int bytes;
  std::optional<WeightFormat> format;  // nullopt: known to the file format, but carat has no reader for it
};

/// nullptr for a number that no released ggml version writes.
const GgmlType* find_ggml_type(uint32_t number);

}  // namespace carat

// Formats of keys and values for a budget of bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "carat/kv_format.h"

namespace carat {

/// What one layer costs in one format: bytes a position, and the divergence that this format alone, in this layer
/// alone, brings about (nats).
struct KvOption {
  KvFormat format;
  size_t bytes = 0;
  double divergence = 0.0;
};
struct KvLayerOptions {
  int layer = 0;
  std::vector<KvOption> options;  // not empty; the first is where one starts from
};

/// One option a layer, so that all together take at most `budget` bytes: from the first options on, whichever change
/// adds the least divergence per byte saved comes next. Divergences are taken to add up. Throws Error when the smallest
/// options do not fit.
KvChoice choose_kv_formats(const std::vector<KvLayerOptions>& layers, size_t budget);

}  // namespace carat

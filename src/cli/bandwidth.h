// How fast this machine reads memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace carat {

class ThreadPool;

/// Pieces of memory that are read one after the other.
using Spans = std::vector<std::span<const std::byte>>;

/// Bytes per second that the pool's threads together read of `spans`: the best of several passes, with and without
/// fetching ahead. A first pass brings mapped pages in. Spans that fit a cache are read from it.
double measure_read_bandwidth(ThreadPool& pool, const Spans& spans);

/// Where the weights lie that decoding streams (tables that are read by the row left out), up to `limit` bytes. Valid
/// as long as the checkpoint. In a mapped file these are pages of 4 KiB, which are read more slowly than a large
/// buffer.
Spans streamed_weights(const Checkpoint& checkpoint, size_t limit = size_t{4} << 30);

}  // namespace carat

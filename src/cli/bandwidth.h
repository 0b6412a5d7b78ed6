// How fast this machine reads memory.
#pragma once

namespace carat {

class ThreadPool;

/// Bytes per second that the pool's threads together read from memory, the best of several passes over a buffer that no
/// cache holds. Takes about half a second.
double measure_read_bandwidth(ThreadPool& pool);

}  // namespace carat

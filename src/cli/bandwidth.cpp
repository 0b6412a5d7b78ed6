#include "cli/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/buffer.h"
#include "base/thread_pool.h"

namespace carat {
namespace {

constexpr size_t kBytes = size_t{512} << 20;
constexpr size_t kPart = size_t{256} << 10;

/// Reads everything once; the sum keeps the compiler from leaving it out. Eight independent sums keep loads in flight.
uint64_t read_all(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  Buffer<uint64_t> buffer(kBytes / sizeof(uint64_t));
  const auto parts = static_cast<int64_t>(kBytes / kPart);
  constexpr size_t kWords = kPart / sizeof(uint64_t);
  pool.run(parts, [&](int64_t i, int) {
    std::fill_n(buffer.data() + static_cast<size_t>(i) * kWords, kWords, static_cast<uint64_t>(i));
  });
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int pass = 0; pass < 6; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(parts, [&](int64_t i, int) {
      sink.fetch_add(read_all(buffer.data() + static_cast<size_t>(i) * kWords, kWords), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace carat

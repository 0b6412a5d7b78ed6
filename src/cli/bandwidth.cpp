#include "cli/bandwidth.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"
#include "checkpoint/tensor_names.h"

namespace carat {
namespace {

// As long as the tasks of a decoding step: shorter ones begin too often with lines that nobody fetched ahead.
constexpr size_t kPart = size_t{1} << 20;
constexpr int kPasses = 4;

/// Reads everything once, fetching Ahead bytes ahead (0: leaving that to the hardware). The sum keeps the compiler from
/// leaving it out; eight independent sums keep loads in flight.
template <size_t Ahead>
uint64_t read_all(std::span<const std::byte> bytes) {
  constexpr size_t kLine = 64;
  uint64_t sums[8] = {};
  for (size_t i = 0; i + kLine <= bytes.size(); i += kLine) {
    if constexpr (Ahead > 0) __builtin_prefetch(bytes.data() + i + Ahead);  // past the end it does nothing
    uint64_t words[8];
    std::memcpy(words, bytes.data() + i, kLine);
    for (size_t j = 0; j < 8; ++j) sums[j] += words[j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, const Spans& spans) {
  using Clock = std::chrono::steady_clock;
  Spans parts;
  size_t bytes = 0;
  for (const std::span<const std::byte> span : spans) {
    bytes += span.size();
    for (size_t at = 0; at < span.size(); at += kPart) {
      parts.push_back(span.subspan(at, std::min(kPart, span.size() - at)));
    }
  }
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int pass = -1; pass < kPasses; ++pass) {
    for (const auto read : {read_all<0>, read_all<2048>, read_all<4096>}) {
      const Clock::time_point start = Clock::now();
      pool.run(static_cast<int64_t>(parts.size()),
               [&](int64_t i, int) { sink.fetch_add(read(parts[static_cast<size_t>(i)]), std::memory_order_relaxed); });
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (pass < 0) break;
      best = std::max(best, static_cast<double>(bytes) / seconds);
    }
  }
  return best;
}

Spans streamed_weights(const Checkpoint& checkpoint, size_t limit) {
  Spans spans;
  size_t bytes = 0;
  const auto add = [&](const std::byte* data, size_t size) {
    size = std::min(size, limit - bytes);
    if (data == nullptr || size == 0) return;
    spans.emplace_back(data, size);
    bytes += size;
  };
  const auto add_matrix = [&](const Matrix& matrix) {
    const auto rows = static_cast<size_t>(matrix.rows);
    add(matrix.data, rows * matrix.row_bytes);
    add(matrix.scales, rows * matrix.scale_row_bytes);
    add(matrix.biases, rows * matrix.scale_row_bytes);
  };
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.canonical.empty() || is_read_by_row(checkpoint.config(), tensor.canonical)) continue;
    if (const auto matrix = checkpoint.matrix(tensor.canonical)) add_matrix(*matrix);
    if (const auto stack = checkpoint.stack(tensor.canonical)) add_matrix(stack->all);
  }
  return spans;
}

}  // namespace carat

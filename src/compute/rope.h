// Rotary position embedding tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace carat {

/// Rotations of one attention kind. A head of width D rotates pairs (i, i + D/2) for i < pairs(); the other dims are
/// left untouched, exactly. Angles are position * frequency(i), computed in float64 whatever the position, so that long
/// contexts do not drift.
class RopeTable {
 public:
  RopeTable() = default;
  /// frequency(i) = theta^(-2i / head_dim) / factor for i < pairs <= head_dim / 2.
  RopeTable(int head_dim, int pairs, double theta, double factor);

  int head_dim() const { return head_dim_; }
  int pairs() const { return static_cast<int>(frequencies_.size()); }
  double frequency(int i) const { return frequencies_[static_cast<size_t>(i)]; }

  /// Writes cos and sin of every pair's angle at `position` >= 0 to cos[0, pairs) and sin[0, pairs). Thread-safe for
  /// positions below a prior reserve().
  void rotation(int64_t position, float* cos, float* sin) const;
  /// Prepares positions [0, end). Not thread-safe.
  void reserve(int64_t end);

 private:
  // angle(p) = angle(64 * (p / 64)) + angle(p % 64), by the addition theorem on float64 tables.
  static constexpr int64_t kFine = 64;
  int head_dim_ = 0;
  std::vector<double> frequencies_;
  std::vector<double> fine_;    // [64, 2, pairs]: cosines, then sines
  std::vector<double> coarse_;  // [reserved / 64, 2, pairs]
};

}  // namespace carat

// The logits of a vocabulary in blocks: the one pass over all of them that every draw makes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "sampling/vector_math.h"

namespace carat {

/// Finds the greatest logit of each block and, where that is asked for, roughly the sum of exponentials. Few blocks
/// hold anything that a filter keeps; the others need not be read again. NaN counts as -infinity.
class LogitBlocks {
 public:
  static constexpr size_t kSize = 512;

  /// The logits must outlive the use. `rough`: rough_total() is wanted.
  void read(std::span<const float> logits, bool rough);
  /// The same among the tokens of which bit t % 64 of allowed[t / 64] is set. The others get -infinity, except in
  /// blocks of which no token is allowed: those are left as they are, and must not be looked into.
  void read(std::span<float> logits, std::span<const uint64_t> allowed, bool rough);

  /// The greatest logit; -infinity when there is none.
  float best() const { return best_; }
  /// The lowest id among those of the greatest logit. REQUIRES: best() > -infinity.
  int best_id() const;

  std::span<const float> logits() const { return logits_; }
  size_t count() const { return greatest_.size(); }
  /// The greatest logit of a block. Where it is -infinity, all are.
  float greatest(size_t block) const { return greatest_[block]; }
  /// A logit that k tokens or more reach, and of a vocabulary's usual distribution only a few times as many. Nothing
  /// where the blocks do not tell.
  std::optional<float> reached_by(size_t k);
  /// Calls take(logit, id) for each token of logit `lowest` (above -infinity) or more, in the order of ids.
  template <typename Take>
  void for_each_from(float lowest, Take take) const;

  /// Whether the sum of rough_exp(logit) is known and means something.
  bool has_rough_total() const { return rough_ && best_ > kRoughFrom + 36.0f && best_ < kRoughTo; }
  double rough_total() const { return rough_total_; }

 private:
  void start(std::span<const float> logits, bool rough);
  void add(float greatest, double rough_sum);

  std::span<const float> logits_;
  std::vector<float> greatest_;  // of each block
  std::vector<float> order_;     // scratch
  float best_ = -std::numeric_limits<float>::infinity();
  bool rough_ = false;
  double rough_total_ = 0.0;
};

template <typename Take>
void LogitBlocks::for_each_from(float lowest, Take take) const {
  constexpr size_t kStride = 16;  // looked at together: few hold anything
  for (size_t block = 0; block < greatest_.size(); ++block) {
    if (greatest_[block] < lowest) continue;
    const size_t end = std::min((block + 1) * kSize, logits_.size());
    for (size_t i = block * kSize; i < end; i += kStride) {
      const float* some = &logits_[i];
      if (i + kStride <= end && !any((load(some) >= lowest) | (load(some + 4) >= lowest) | (load(some + 8) >= lowest) |
                                     (load(some + 12) >= lowest))) {
        continue;
      }
      for (size_t id = i; id < std::min(i + kStride, end); ++id) {
        if (logits_[id] >= lowest) take(logits_[id], static_cast<int>(id));
      }
    }
  }
}

}  // namespace carat

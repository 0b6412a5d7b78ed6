// The HLG tone curve over log-probabilities: linear around a pivot, logarithmic above (shoulder) and below (toe).
#pragma once

#include <cmath>

#include "carat/sampling.h"
#include "sampling/vector_math.h"

namespace carat {

/// With z = (log-probability - that of the best token) + pivot_offset the curve is
///   z                                                  for |z| <= width
///   width + shoulder * log(1 + (z - width) / shoulder)  above
///   -width - toe * log(1 + (-z - width) / toe)          below
/// and sampling is from softmax(curve / temperature). The curve rises strictly: no two tokens change places.
/// A shoulder or toe of 0 leaves its side linear.
class HlgCurve {
 public:
  explicit HlgCurve(const HlgParams& params)
      : width_(params.width), shoulder_(params.shoulder), toe_(params.toe), pivot_offset_(params.pivot_offset) {}

  /// Whether the curve is a straight line, so that sampling is by temperature alone.
  bool is_plain() const { return std::isinf(width_) || (shoulder_ <= 0.0f && toe_ <= 0.0f); }

  /// The curve at `below_best` = log-probability minus that of the best token: finite, <= 0. F: float or Floats.
  template <typename F>
  F operator()(F below_best) const {
    const F z = below_best + pivot_offset_;
    const F magnitude = magnitude_of(z);
    const F linear = select(magnitude < width_, magnitude, all_equal<F>(width_));
    const F excess = magnitude - linear;
    const F knee = select(z < 0.0f, all_equal<F>(toe_), all_equal<F>(shoulder_));
    const auto rolls = knee > 0.0f;
    const F divisor = select(rolls, knee, all_equal<F>(1.0f));
    const F value = linear + select(rolls, divisor * log_from_one(1.0f + excess / divisor), excess);
    return with_sign_of(value, z);
  }

 private:
  float width_;
  float shoulder_;
  float toe_;
  float pivot_offset_;
};

}  // namespace carat

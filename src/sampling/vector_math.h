// exp and log for loops over a whole vocabulary: branch-free, so that the compiler vectorises them, and made of single
// IEEE operations only, so that every machine and vector width gives the same bits (libm's differ).
#pragma once

#include <bit>
#include <cstdint>

namespace carat {

/// yes ? a : b. By masks: of a condition compilers make a branch, and then no vectors.
inline float select(bool yes, float a, float b) {
  const int32_t mask = -static_cast<int32_t>(yes);
  return std::bit_cast<float>((std::bit_cast<int32_t>(a) & mask) | (std::bit_cast<int32_t>(b) & ~mask));
}

/// exp(x) for x <= 0 (-infinity included) within 2e-7 relative; from -87 down, where it leaves the normal floats, 0.
inline float exp_of_negative(float x) {
  const bool normal = x > -87.0f;
  const float bounded = select(normal, x, 0.0f);
  constexpr float kRound = 0x1.8p23f;  // adding it leaves no fraction bits
  const float n = (bounded * 1.44269504f + kRound) - kRound;
  // |r| <= ln(2) / 2. ln(2) in two parts: n times the first, which has 9 bits, is exact.
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // Taylor to r^7: the rest is below 6e-9.
  float sum = 1.0f / 5040.0f;
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return select(normal, sum * power, 0.0f);
}

/// log(x) for finite x >= 1, within 2e-7 * max(1, log(x)).
inline float log_from_one(float x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = std::bit_cast<float>(bits - (exponent << 23));
  // log(m) = 2 atanh(s), |s| < 0.172: the term in s^11 is below 1e-9.
  const float s = (m - 1.0f) / (m + 1.0f);
  const float square = s * s;
  float sum = 2.0f / 9.0f;
  sum = sum * square + 2.0f / 7.0f;
  sum = sum * square + 2.0f / 5.0f;
  sum = sum * square + 2.0f / 3.0f;
  sum = sum * square + 2.0f;
  return static_cast<float>(exponent) * 0.693147181f + sum * s;
}

}  // namespace carat

// exp and log over a whole vocabulary, four numbers at a time. Branch-free, and made of single IEEE operations only, so
// that one number and four, and every machine, give the same bits (libm's differ).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace carat {

/// Vectors as GCC and clang know them. Left to itself GCC makes scalar code of maxima and slow code of selections.
/// Every machine has registers of 16 bytes; wider ones are cut in two where they are missing.
using Floats [[gnu::vector_size(16)]] = float;
using Ints [[gnu::vector_size(16)]] = int32_t;

inline Floats load(const float* from) {
  Floats four;
  std::memcpy(&four, from, sizeof four);
  return four;
}
inline void store(Floats four, float* to) {
  std::memcpy(to, &four, sizeof four);
}
/// Whether some lane of a comparison holds.
inline bool any(Ints mask) {
  struct Halves {
    uint64_t low, high;
  };
  const auto halves = std::bit_cast<Halves>(mask);
  return (halves.low | halves.high) != 0;
}

// What follows is for F = float and F = Floats.

template <typename F>
F all_equal(float value) {
  return F{} + value;
}

/// yes ? a : b in each lane. For a float by masks: of a condition compilers make a branch.
inline float select(bool yes, float a, float b) {
  const int32_t mask = -static_cast<int32_t>(yes);
  return std::bit_cast<float>((std::bit_cast<int32_t>(a) & mask) | (std::bit_cast<int32_t>(b) & ~mask));
}
inline Floats select(Ints yes, Floats a, Floats b) {
  return yes ? a : b;
}

inline int32_t truncated(float x) {
  return static_cast<int32_t>(x);
}
inline Ints truncated(Floats x) {
  return __builtin_convertvector(x, Ints);
}
inline float to_float(int32_t x) {
  return static_cast<float>(x);
}
inline Floats to_float(Ints x) {
  return __builtin_convertvector(x, Floats);
}
inline int32_t bits_of(float x) {
  return std::bit_cast<int32_t>(x);
}
inline Ints bits_of(Floats x) {
  return std::bit_cast<Ints>(x);
}

/// x without its sign, and with that of `sign`.
template <typename F>
F magnitude_of(F x) {
  return std::bit_cast<F>(bits_of(x) & 0x7fffffff);
}
template <typename F>
F with_sign_of(F magnitude, F sign) {
  return std::bit_cast<F>(bits_of(magnitude) | (bits_of(sign) & static_cast<int32_t>(0x80000000u)));
}

/// exp(x) for x <= 0 (-infinity included) within 2e-7 relative; from -87 down, where it leaves the normal floats, and
/// of NaN, 0.
template <typename F>
F exp_of_negative(F x) {
  const auto normal = x > -87.0f;
  const F bounded = select(normal, x, F{});
  constexpr float kRound = 0x1.8p23f;  // adding it leaves no fraction bits
  const F n = (bounded * 1.44269504f + kRound) - kRound;
  // |r| <= ln(2) / 2. ln(2) in two parts: n times the first, which has 9 bits, is exact.
  const F r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // Taylor to r^7: the rest is below 6e-9.
  F sum = all_equal<F>(1.0f / 5040.0f);
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const F power = std::bit_cast<F>((truncated(n) + 127) << 23);
  return select(normal, sum * power, F{});
}

inline constexpr float kRoughFrom = -86.0f;
inline constexpr float kRoughTo = 80.0f;  // a few thousand of such still have a finite sum
inline constexpr double kRoughExcess = 1.0616;
inline constexpr double kRoughError = 1e-4;

/// exp(x), too great by a factor between 1 and kRoughExcess (each within kRoughError): powers of two and straight lines
/// between them. Below kRoughFrom, and of NaN, it is that of kRoughFrom; above kRoughTo it means nothing.
template <typename F>
F rough_exp(F x) {
  const F bounded = select(x > kRoughFrom, x, all_equal<F>(kRoughFrom));
  // From 512 to 1024 floats are fixed-point numbers of 14 fraction bits: those of log2(exp(x)) + 127, once shifted to
  // where floats have their exponent and, behind it, the fraction by which they exceed a power of two.
  const auto fixed = bits_of(bounded * 1.44269504f + (512.0f + 127.0f));
  return std::bit_cast<F>(fixed << 9);
}

/// log(x) for finite x >= 1, within 2e-7 * max(1, log(x)).
template <typename F>
F log_from_one(F x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto bits = bits_of(x);
  const auto exponent = (bits - 0x3f3504f3) >> 23;
  const F m = std::bit_cast<F>(bits - (exponent << 23));
  // log(m) = 2 atanh(s), |s| < 0.172: the term in s^11 is below 1e-9.
  const F s = (m - 1.0f) / (m + 1.0f);
  const F square = s * s;
  F sum = all_equal<F>(2.0f / 9.0f);
  sum = sum * square + 2.0f / 7.0f;
  sum = sum * square + 2.0f / 5.0f;
  sum = sum * square + 2.0f / 3.0f;
  sum = sum * square + 2.0f;
  return to_float(exponent) * 0.693147181f + sum * s;
}

}  // namespace carat

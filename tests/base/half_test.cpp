#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace carat {
namespace {

/// A float format by its definition, in double arithmetic: sign, exponent and mantissa bits, IEEE special values.
double by_definition(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
}

bool same(double a, float b) {
  if (std::isnan(a)) return std::isnan(b);
  return a == static_cast<double>(b) && std::signbit(a) == std::signbit(b);
}

TEST(Half, EveryF16DecodesByDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_TRUE(same(by_definition(bits, 5, 10), f16_to_f32(static_cast<uint16_t>(bits)))) << bits;
  }
}

TEST(Half, EveryBf16DecodesByDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_TRUE(same(by_definition(bits, 8, 7), bf16_to_f32(static_cast<uint16_t>(bits)))) << bits;
  }
}

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_f16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f16_to_f32(back))) << bits;
      ASSERT_EQ(back & 0x8000u, bits & 0x8000u);
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_bf16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(back))) << bits;
      ASSERT_EQ(back & 0x8000u, bits & 0x8000u);
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

/// Between each two neighbours: half-way goes to the even one, a float to either side to the nearer one.
template <typename Encode, typename Decode>
void check_rounding(uint32_t infinity, double beyond_largest, const Encode& encode, const Decode& decode) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = decode(static_cast<uint16_t>(bits));
    const double high = bits + 1 == infinity ? beyond_largest : decode(static_cast<uint16_t>(bits + 1));
    const double exact_middle = (low + high) / 2;
    const auto middle = static_cast<float>(exact_middle);
    if (static_cast<double>(middle) != exact_middle) continue;  // the smallest bf16 have no float between them
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t mark = sign < 0 ? 0x8000u : 0u;
      ASSERT_EQ(encode(sign * middle), even | mark) << middle;
      ASSERT_EQ(encode(sign * below), bits | mark) << below;
      ASSERT_EQ(encode(sign * above), (bits + 1) | mark) << above;
    }
  }
}

TEST(Half, F16RoundsToNearestEvenBetweenAllNeighbours) {
  check_rounding(0x7c00, 0x1p16, f32_to_f16, f16_to_f32);
}

TEST(Half, Bf16RoundsToNearestEvenBetweenAllNeighbours) {
  check_rounding(0x7f80, 0x1p128, f32_to_bf16, bf16_to_f32);
}

TEST(Half, OutOfRangeBecomesInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(infinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(-infinity), 0xfc00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-infinity), 0xff80);
}

TEST(Half, NanStaysNanWhateverItsPayload) {
  for (int bit = 0; bit < 23; ++bit) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(sign | 0x7f800000u | (1u << bit));
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan)))) << bit;
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan)))) << bit;
    }
  }
}

TEST(Half, EveryE8m0IsAPowerOfTwo) {
  for (int bits = 0; bits < 255; ++bits) {
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<uint8_t>(bits))), std::ldexp(1.0, bits - 127)) << bits;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(0xff)));
}

TEST(Half, EveryE4m3DecodesByDefinition) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    // Without infinities the highest exponent holds numbers, but for the one NaN: as if it had one exponent bit more.
    const uint32_t magnitude = bits & 0x7f;
    double expected = std::numeric_limits<double>::quiet_NaN();
    if (magnitude != 0x7f) {
      const int exponent = static_cast<int>(magnitude >> 3);
      const int mantissa = static_cast<int>(magnitude & 7);
      expected = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      if (bits & 0x80) expected = -expected;
    }
    EXPECT_TRUE(same(expected, e4m3_to_f32(static_cast<uint8_t>(bits)))) << bits;
  }
}

}  // namespace
}  // namespace carat

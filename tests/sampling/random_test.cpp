#include "sampling/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace carat {
namespace {

using Words = std::array<uint32_t, 4>;

/// The known answers that Random123 publishes for philox4x32-10.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, UniformIsUniformInEachCoordinate) {
  for (int coordinate = 0; coordinate < 3; ++coordinate) {
    constexpr int kDraws = 40000;
    std::array<int, 64> histogram{};
    double correlation = 0.0;
    double previous = 0.5;
    for (int i = 0; i < kDraws; ++i) {
      const auto n = static_cast<uint64_t>(i);
      const double u = coordinate == 0   ? uniform(n, 7, 0)
                       : coordinate == 1 ? uniform(7, n, 0)
                                         : uniform(7, 7, static_cast<uint32_t>(n));
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++histogram[static_cast<size_t>(u * 64)];
      correlation += (u - 0.5) * (previous - 0.5);
      previous = u;
    }
    double chi_square = 0.0;
    for (int count : histogram) chi_square += std::pow(count - kDraws / 64.0, 2) / (kDraws / 64.0);
    EXPECT_LT(chi_square, 110.0) << "63 degrees of freedom: one chance in 5000";
    EXPECT_LT(std::abs(correlation / kDraws * 12), 0.02);
  }
}

TEST(Random, AllBitsOfSeedAndPositionCount) {
  std::set<double> values;
  for (int bit = 0; bit < 64; ++bit) {
    values.insert(uniform(uint64_t{1} << bit, 0, 0));
    values.insert(uniform(0, uint64_t{1} << bit, 0));
  }
  EXPECT_EQ(values.size(), 128u);
}

}  // namespace
}  // namespace carat

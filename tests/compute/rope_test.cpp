#include "compute/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "test_cache.h"
#include "test_devices.h"

namespace carat {
namespace {

/// Gemma 4's full attention: a quarter of the pairs of a 512-wide head, exponents over the whole head.
RopeTable proportional() {
  return RopeTable(512, 64, 1e6, 1);
}

/// finish_qkv on a one-hot query without norm weights: norm makes the one sqrt(head_dim), which is divided out again.
std::vector<double> rotate_one_hot(Device& device, const RopeTable& rope, int hot, int64_t position) {
  const auto dim = static_cast<size_t>(rope.head_dim());
  std::vector<float> q(dim, 0.0f);
  q[static_cast<size_t>(hot)] = 1;
  const std::vector<TokenRow> tokens = {{0, position, 0, position + 1}};
  TestCache cache(KvFormat::kF32, 1, rope.head_dim());
  cache.add_sequence(0, 1);
  QkvArgs args;
  args.rows = 1;
  args.heads = 1;
  args.q = q.data();
  args.q_norm = {nullptr, 0};
  args.rope = &rope;
  args.tokens = tokens;
  args.cache = cache.layer();
  device.finish_qkv(args);
  std::vector<double> out(q.begin(), q.end());
  for (double& value : out) value /= std::sqrt(static_cast<double>(dim));
  return out;
}

TEST(Rope, ProportionalFrequencies) {
  const RopeTable rope = proportional();
  ASSERT_EQ(rope.pairs(), 64);
  EXPECT_EQ(rope.frequency(0), 1);
  EXPECT_NEAR(rope.frequency(1), 0.9474635, 1e-7);
  EXPECT_NEAR(rope.frequency(63), 0.0333762, 1e-7);
}

TEST(Rope, PairsAreHalfAHeadApart) {
  const RopeTable rope = proportional();
  for (TestDevice& test : all_devices(Precision::kFast)) {
    SCOPED_TRACE(test.name);
    const std::vector<double> out = rotate_one_hot(*test.device, rope, 0, 1);
    for (size_t d = 0; d < out.size(); ++d) {
      EXPECT_NEAR(out[d], d == 0 ? 0.5403023 : d == 256 ? 0.8414710 : 0.0, 1e-7) << d;
    }
  }
}

TEST(Rope, UnrotatedDimensionsStayAsTheyAre) {
  RopeTable rope = proportional();
  rope.reserve(131'072);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    for (const int hot : {64, 255, 320, 511}) {
      const std::vector<double> at_zero = rotate_one_hot(*test.device, rope, hot, 0);
      for (const int64_t position : {1, 77, 131'071}) {
        EXPECT_EQ(rotate_one_hot(*test.device, rope, hot, position), at_zero) << test.name << ", dim " << hot;
      }
    }
  }
}

TEST(Rope, FactorDividesAngles) {
  const RopeTable global(256, 128, 1e6, 8);
  const RopeTable sliding(256, 128, 1e4, 1);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    SCOPED_TRACE(test.name);
    const std::vector<double> one = rotate_one_hot(*test.device, global, 0, 8);
    EXPECT_NEAR(one[0], std::cos(1.0), 1e-7);
    EXPECT_NEAR(one[128], std::sin(1.0), 1e-7);
    const std::vector<double> eight = rotate_one_hot(*test.device, sliding, 0, 8);
    EXPECT_NEAR(eight[0], std::cos(8.0), 1e-7);
    EXPECT_NEAR(eight[128], std::sin(8.0), 1e-7);
  }
}

TEST(Rope, RotationsDoNotDriftWithPosition) {
  for (RopeTable rope : {proportional(), RopeTable(256, 128, 1e4, 1), RopeTable(64, 32, 1e6, 8)}) {
    rope.reserve(200'001);
    std::vector<float> cos(static_cast<size_t>(rope.pairs())), sin(cos.size());
    for (int64_t position = 0; position <= 200'000; position += position < 200 ? 1 : 997) {
      rope.rotation(position, cos.data(), sin.data());
      for (size_t i = 0; i < cos.size(); ++i) {
        const long double angle = static_cast<long double>(position) * rope.frequency(static_cast<int>(i));
        // Half a float32 ulp below one, and the rounding of angles of 200,000 in float64.
        ASSERT_NEAR(cos[i], std::cos(angle), 0x1p-25 + 1e-10) << position << ", pair " << i;
        ASSERT_NEAR(sin[i], std::sin(angle), 0x1p-25 + 1e-10) << position << ", pair " << i;
      }
    }
  }
}

TEST(Rope, ReserveGrowsWithoutChangingAnything) {
  RopeTable grown(64, 32, 1e4, 1);
  RopeTable at_once(64, 32, 1e4, 1);
  at_once.reserve(5000);
  std::vector<float> cos(32), sin(32), want_cos(32), want_sin(32);
  for (const int64_t end : {1, 64, 65, 1000, 10, 4999, 5000}) {
    grown.reserve(end);
    for (int64_t position = 0; position < end; ++position) {
      grown.rotation(position, cos.data(), sin.data());
      at_once.rotation(position, want_cos.data(), want_sin.data());
      ASSERT_EQ(cos, want_cos) << position;
      ASSERT_EQ(sin, want_sin) << position;
    }
  }
}

TEST(Rope, TableWithoutPairsRotatesNothing) {
  RopeTable rope;
  rope.reserve(1000);
  EXPECT_EQ(rope.pairs(), 0);
  rope.rotation(999, nullptr, nullptr);
}

}  // namespace
}  // namespace carat

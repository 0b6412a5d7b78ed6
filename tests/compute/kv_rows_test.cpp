// Formats of cached keys and values: what a row loses, and that every instruction set stores and loads the same.
#include "compute/kv_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "compute/cpu/kernels.h"
#include "test_cache.h"
#include "test_weights.h"

namespace carat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<KvFormat> coded_formats() {
  std::vector<KvFormat> formats;
  for (const int group : {16, 32, 64}) {
    for (const int bits : {2, 3, 4, 5, 6, 8}) formats.push_back(KvFormat::affine(bits, group));
    for (const int bits : {2, 3, 4, 5, 6, 8}) formats.push_back(KvFormat::spread(bits, group));
    for (const int bits : {2, 3, 4, 5, 8}) formats.push_back(KvFormat::rotated(bits, group));
  }
  return formats;
}

std::vector<std::pair<const char*, const Kernels*>> all_kernels() {
  std::vector<std::pair<const char*, const Kernels*>> all = {{"portable", &portable_kernels()}};
  for (const Kernels* kernels : {avx2_kernels(), avx512_kernels(), amx_kernels(), neon_kernels()}) {
    if (kernels != nullptr) all.emplace_back(kernels->name, kernels);
  }
  return all;
}

std::vector<float> round_trip(std::span<const float> x, KvFormat format) {
  std::vector<std::byte> row(kv_row_bytes(format, static_cast<int>(x.size())));
  store_kv_row(x, format, row.data());
  std::vector<float> y(x.size());
  load_kv_row(row.data(), format, y);
  if (format.kind == KvFormat::Kind::kRotated) rotate_kv_head(y, true);
  if (format.kind == KvFormat::Kind::kSpread) spread_kv_groups(y, format.group);
  return y;
}

/// Rows that are hard on quantisers.
std::vector<std::vector<float>> hard_rows(size_t width) {
  const auto alternating = [&](float a, float b) {
    std::vector<float> row;
    for (size_t i = 0; i < width; ++i) row.push_back(i % 2 == 0 ? a : b);
    return row;
  };
  std::vector<std::vector<float>> rows = {
      alternating(0, 0),        alternating(-0.0f, 0.0f),   alternating(3, 3),
      alternating(-3, -3),      alternating(1e-30f, 0),     alternating(1e-6f, -1e-6f),
      alternating(6e4f, -6e4f), alternating(1e30f, -1e30f), alternating(1, 1.001f)};
  std::vector<float> outlier = random_floats(width, 1);
  outlier[width / 2] = 500;
  rows.push_back(outlier);
  rows.push_back(alternating(std::nanf(""), 1));
  rows.push_back(alternating(std::nanf(""), std::nanf("")));
  rows.push_back(alternating(kInfinity, 1));
  rows.push_back(alternating(kInfinity, -kInfinity));
  return rows;
}

TEST(KvRows, AffineCodesAreWithinAStep) {
  for (const KvFormat format : coded_formats()) {
    if (format.kind != KvFormat::Kind::kAffine) continue;
    const std::vector<float> x = random_floats(256, 5, 3);
    const std::vector<float> y = round_trip(x, format);
    for (size_t g = 0; g < x.size(); g += format.group) {
      const auto [low, high] = std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(g),
                                                   x.begin() + static_cast<std::ptrdiff_t>(g + format.group));
      const float step = (*high - *low) / static_cast<float>((1 << format.bits) - 1);
      double squares = 0;
      for (size_t i = g; i < g + format.group; ++i) {
        // Half a step, and at one end as much again where the grid was moved to have a zero; then float16's share.
        EXPECT_NEAR(y[i], x[i], 1.5f * step + 3 * 0x1p-11f) << kv_format_name(format);
        squares += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
      }
      EXPECT_LE(std::sqrt(squares / format.group), 0.6 * step) << kv_format_name(format);
    }
  }
}

// An outlier widens the steps of its group by the root of the group's size less than it does unspread.
TEST(KvRows, SpreadCodesShareOutliers) {
  for (const int group : {16, 32, 64}) {
    for (const int bits : {4, 8}) {
      double spread_squares = 0;
      double affine_squares = 0;
      for (uint64_t seed = 0; seed < 50; ++seed) {
        std::vector<float> x = random_floats(256, seed);
        for (size_t g = 0; g < x.size(); g += 16) x[g + seed % 16] *= 30;
        const auto lost = [&](KvFormat format) {
          const std::vector<float> y = round_trip(x, format);
          double squares = 0;
          for (size_t i = 0; i < x.size(); ++i) squares += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
          return squares;
        };
        spread_squares += lost(KvFormat::spread(bits, group));
        affine_squares += lost(KvFormat::affine(bits, group));
      }
      EXPECT_LT(spread_squares, 0.7 * affine_squares) << bits << " bits, groups of " << group;
    }
  }
}

TEST(KvRows, SpreadCodesAreWithinHalfAStep) {
  for (const KvFormat format : coded_formats()) {
    if (format.kind != KvFormat::Kind::kSpread) continue;
    std::vector<float> x = random_floats(256, 5, 3);
    std::vector<std::byte> row(kv_row_bytes(format, 256));
    store_kv_row(x, format, row.data());
    std::vector<float> y(x.size());
    load_kv_row(row.data(), format, y);
    spread_kv_groups(x, format.group);
    for (size_t g = 0; g < x.size(); g += format.group) {
      const auto [low, high] = std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(g),
                                                   x.begin() + static_cast<std::ptrdiff_t>(g + format.group));
      const float step = (*high - *low) / static_cast<float>((1 << format.bits) - 1);
      for (size_t i = g; i < g + format.group; ++i) {  // the last part is float16's, of scale and bias
        EXPECT_NEAR(y[i], x[i], 0.5f * step + 0x1p-11f * (*high - *low + std::fabs(*low))) << kv_format_name(format);
      }
    }
  }
}

// Keys and queries that are spread alike have the product that they had.
TEST(KvRows, SpreadingIsOrthogonalAndUndoesItself) {
  for (const int group : {16, 32, 64}) {
    const std::vector<float> x = random_floats(192, 9), other = random_floats(192, 10);
    std::vector<float> y = x, z = other;
    spread_kv_groups(y, group);
    spread_kv_groups(z, group);
    EXPECT_NEAR(std::inner_product(y.begin(), y.end(), z.begin(), 0.0),
                std::inner_product(x.begin(), x.end(), other.begin(), 0.0), 1e-4);
    EXPECT_NE(y, x);
    spread_kv_groups(y, group);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << i;
  }
}

TEST(KvRows, AffineGroupsKeepTheirEdgeAndZero) {
  std::vector<float> x = random_floats(64, 6);
  x[3] = -8;
  x[40] = 0;
  x[41] = 8;
  const std::vector<float> y = round_trip(x, KvFormat::affine(8, 32));
  EXPECT_EQ(y[3], -8);
  EXPECT_EQ(y[41], 8);
  EXPECT_NEAR(y[40], 0, 8 * 0x1p-11);
}

// The mean square error of the best codes for a normal distribution (Max 1960), of unit groups.
TEST(KvRows, RotatedCodesLoseWhatTheyMust) {
  const std::pair<int, double> distortions[] = {{2, 0.1175}, {3, 0.03454}, {4, 0.009497}, {5, 0.002499}, {8, 4.1e-5}};
  for (const auto& [bits, distortion] : distortions) {
    double lost = 0;
    double all = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      std::vector<float> x = random_floats(256, seed);
      x[seed] *= 20;  // the rotation spreads outliers
      const std::vector<float> y = round_trip(x, KvFormat::rotated(bits));
      for (size_t i = 0; i < x.size(); ++i) {
        lost += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
        all += double{x[i]} * x[i];
      }
    }
    EXPECT_LE(lost / all, 1.05 * distortion + 1e-7) << bits;
    EXPECT_GE(lost / all, 0.7 * distortion) << bits;  // scales are fitted to the group
  }
}

TEST(KvRows, ConstantGroupsStayConstant) {
  for (const KvFormat format : coded_formats()) {
    if (format.kind != KvFormat::Kind::kAffine) continue;
    for (const float value : {0.0f, 1.0f, -0.3f, 1e-5f, 777.0f, -60000.0f}) {
      for (const float y : round_trip(std::vector<float>(128, value), format)) {
        EXPECT_NEAR(y, value, std::abs(value) * 0x1p-10f + 1e-6f) << kv_format_name(format);
      }
    }
  }
}

TEST(KvRows, NothingIsStoredAsNaN) {
  for (const KvFormat format : coded_formats()) {
    for (const std::vector<float>& x : hard_rows(128)) {
      for (const float y : round_trip(x, format))
        EXPECT_TRUE(std::isfinite(y)) << kv_format_name(format) << " " << x[0];
    }
  }
}

TEST(KvRows, TheRotationIsOrthogonalAndUndone) {
  for (const size_t width : {16u, 32u, 128u, 512u, 1024u}) {
    const std::vector<float> x = random_floats(width, 9), other = random_floats(width, 10);
    std::vector<float> y = x, z = other;
    rotate_kv_head(y, false);
    rotate_kv_head(z, false);
    EXPECT_NEAR(std::inner_product(y.begin(), y.end(), z.begin(), 0.0),
                std::inner_product(x.begin(), x.end(), other.begin(), 0.0), 1e-4);
    EXPECT_NE(y, x);
    rotate_kv_head(y, true);
    for (size_t i = 0; i < width; ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << i;
  }
}

TEST(KvRows, KernelsStoreAndRotateToTheBit) {
  for (const auto& [name, kernels] : all_kernels()) {
    for (const int width : {16, 32, 64, 128, 256, 512, 1024, 80, 96}) {
      std::vector<std::vector<float>> rows = hard_rows(static_cast<size_t>(width));
      for (uint64_t seed = 0; seed < 5; ++seed) rows.push_back(random_floats(static_cast<size_t>(width), seed, 2));
      const bool power = (width & (width - 1)) == 0;
      for (const std::vector<float>& x : rows) {
        for (const KvFormat wanted : coded_formats()) {
          if (wanted.kind == KvFormat::Kind::kRotated && !power) continue;
          const KvFormat format = fit_kv_format(wanted, width);
          std::vector<std::byte> expected(kv_row_bytes(format, width) + 8, std::byte{0x77});
          std::vector<std::byte> got = expected;
          store_kv_row(x, format, expected.data());
          kernels->store_kv(x.data(), width, format, got.data());
          ASSERT_EQ(got, expected) << name << " " << kv_format_name(format) << " " << width << " " << x[0];
        }
        for (const int group : {16, 32, 64}) {
          if (width % group != 0 || !std::isfinite(x[0])) continue;
          std::vector<float> expected = x, got = x;
          spread_kv_groups(expected, group);
          kernels->spread_kv(got.data(), width, group);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), x.size() * 4), 0) << name << " " << width;
        }
        for (const bool back : {false, true}) {
          if (!power || !std::isfinite(x[0])) continue;
          std::vector<float> expected = x, got = x;
          rotate_kv_head(expected, back);
          kernels->rotate_kv(got.data(), width, back);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), x.size() * 4), 0) << name << " " << width;
        }
      }
    }
  }
}

TEST(KvFormatNames, AreReadBack) {
  for (const char* name : {"f32", "f16", "bf16", "q8", "q4", "q2g64", "q3", "q5g16", "q6", "mlx8", "mlx4g64"}) {
    EXPECT_EQ(kv_format_name(parse_kv_format(name)), name);
    EXPECT_EQ(kv_choice_name(parse_kv_choice(name)), name);
  }
  EXPECT_EQ(parse_kv_format("q8"), KvFormat::spread(8, 32));
  EXPECT_EQ(parse_kv_format("mlx4g64"), KvFormat::affine(4, 64));
  EXPECT_EQ(parse_kv_choice("turbo"), parse_kv_choice("turbo:k8v3"));
  EXPECT_EQ(kv_choice_name(parse_kv_choice("turbo:k4v2")), "turbo:k4v2");
  EXPECT_EQ(parse_kv_choice("turbo:k8v3").sliding, KvFormats(KvFormat::kF16));
  EXPECT_EQ(parse_kv_choice("turbo:k8v3").full, KvFormats(KvFormat::spread(8), KvFormat::rotated(3)));
  for (const char* name :
       {"", "q", "q7", "q8g", "q8g128", "q80", "f8", "mlx", "mlx7", "mlx8g", "turbo", "turbo:k8v3", "F16"}) {
    EXPECT_THROW(parse_kv_format(name), Error) << name;
  }
  for (const char* name : {"turbo:", "turbo:k8", "turbo:k7v3", "turbo:k8v6", "turbo:v3k8", "turbo:k8v33"}) {
    EXPECT_THROW(parse_kv_choice(name), Error) << name;
  }
}

TEST(KvFormatFit, NarrowsGroupsAndRefusesWhatCannotBe) {
  EXPECT_EQ(fit_kv_format(KvFormat::affine(8, 64), 96), KvFormat::affine(8, 32));
  EXPECT_EQ(fit_kv_format(KvFormat::spread(8, 64), 16), KvFormat::spread(8, 16));
  EXPECT_EQ(fit_kv_format(KvFormat::kF16, 17), KvFormat::kF16);
  EXPECT_THROW(fit_kv_format(KvFormat::affine(8), 24), Error);
  EXPECT_THROW(fit_kv_format(KvFormat::affine(8), 2048), Error);
  EXPECT_THROW(fit_kv_format(KvFormat::rotated(3), 96), Error);
  EXPECT_THROW(fit_kv_format(KvFormat::affine(8, 0), 64), Error);
  EXPECT_THROW(fit_kv_format(KvFormat::spread(1), 64), Error);
  EXPECT_THROW(fit_kv_format(KvFormat::rotated(7), 64), Error);
  EXPECT_EQ(kv_row_bytes(KvFormat::affine(8, 64), 256), 256u + 16);
  EXPECT_EQ(kv_row_bytes(KvFormat::rotated(3), 128), 48u + 8);
}

}  // namespace
}  // namespace carat

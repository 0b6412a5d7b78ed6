#include "model/kv_budget.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carat {
namespace {

constexpr KvFormat kEight = KvFormat::spread(8);
constexpr KvFormat kFour = KvFormat::spread(4);

std::vector<KvLayerOptions> two_layers() {
  return {{3, {{KvFormat::kF16, 100, 0}, {kEight, 50, 0.001}, {kFour, 25, 0.5}}},
          {7, {{KvFormat::kF16, 100, 0}, {kEight, 50, 0.1}, {kFour, 25, 0.2}}}};
}

KvChoice both(KvFormat third, KvFormat seventh) {
  KvChoice choice = KvFormat::kF16;
  choice.layers = {{3, third}, {7, seventh}};
  return choice;
}

TEST(KvBudget, TakesTheCheapestSavingsFirst) {
  EXPECT_EQ(choose_kv_formats(two_layers(), 200), both(KvFormat::kF16, KvFormat::kF16));
  EXPECT_EQ(choose_kv_formats(two_layers(), 199), both(kEight, KvFormat::kF16));
  EXPECT_EQ(choose_kv_formats(two_layers(), 150), both(kEight, KvFormat::kF16));
  EXPECT_EQ(choose_kv_formats(two_layers(), 100), both(kEight, kEight));
  EXPECT_EQ(choose_kv_formats(two_layers(), 75), both(kEight, kFour));
  EXPECT_EQ(choose_kv_formats(two_layers(), 50), both(kFour, kFour));
}

TEST(KvBudget, NeverTakesMoreThanTheBudget) {
  for (size_t budget = 50; budget < 220; ++budget) {
    const KvChoice choice = choose_kv_formats(two_layers(), budget);
    size_t bytes = 0;
    for (const KvChoice::Layer& layer : choice.layers) {
      bytes += layer.formats.k == KvFormat::kF16 ? 100u : layer.formats.k == kEight ? 50u : 25u;
    }
    EXPECT_LE(bytes, budget);
  }
  EXPECT_THROW(choose_kv_formats(two_layers(), 49), Error);
}

}  // namespace
}  // namespace carat

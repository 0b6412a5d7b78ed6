#include "model/layer_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carat {
namespace {

ModelConfig config(int layers, int shared, int period) {
  ModelConfig c;
  c.kv_shared_layers = shared;
  for (int i = 0; i < layers; ++i) {
    const bool full = (i + 1) % period == 0;
    c.layers.push_back({full ? LayerKind::kFull : LayerKind::kSliding, full ? 512 : 256, 1, false});
    c.mlp_width.push_back(6144);
  }
  return c;
}

TEST(LayerPlan, E2bSharersReadLayers13And14) {
  const ModelPlan plan = make_plan(config(35, 20, 5));
  EXPECT_EQ(plan.last_owner, 14);
  EXPECT_EQ(plan.owners.size(), 15u);
  for (int i = 0; i < 35; ++i) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    EXPECT_EQ(layer.owns_kv, i < 15);
    EXPECT_EQ(layer.cache, i < 15 ? i : (i + 1) % 5 == 0 ? 14 : 13) << i;
  }
}

TEST(LayerPlan, E4bSharersReadLayers22And23) {
  const ModelPlan plan = make_plan(config(42, 18, 6));
  for (int i = 24; i < 42; ++i) EXPECT_EQ(plan.layers[static_cast<size_t>(i)].cache, (i + 1) % 6 == 0 ? 23 : 22) << i;
}

TEST(LayerPlan, WithoutSharingEveryLayerOwnsItsCache) {
  const ModelPlan plan = make_plan(config(12, 0, 6));
  EXPECT_EQ(plan.owners.size(), 12u);
  EXPECT_EQ(plan.last_owner, 11);
}

TEST(LayerPlan, RefusesSharersWithoutADonor) {
  EXPECT_THROW(make_plan(config(6, 3, 6)), Error);  // the only full layer is the last
  EXPECT_THROW(make_plan(config(6, 6, 3)), Error);
  ModelConfig uneven = config(35, 20, 5);
  uneven.layers[20].kv_heads = 2;
  EXPECT_THROW(make_plan(uneven), Error);
}

}  // namespace
}  // namespace carat

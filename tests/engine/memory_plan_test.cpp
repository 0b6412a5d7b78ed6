// The plan of a model's memory against what a cache really takes.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compute/cpu/cpu_device.h"
#include "model/adapter.h"
#include "model/model.h"
#include "support/adapter_files.h"

namespace carat {
namespace {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "models" / name;
}

class MemoryPlanTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Checkpoint> checkpoint_ = Checkpoint::open(golden(GetParam()));
};

TEST_P(MemoryPlanTest, KeysAndValuesTakeWhatIsPlanned) {
  for (const KvChoice& kv : {KvChoice(KvFormat::kF16), KvChoice(KvFormat::kF32), KvChoice(KvFormat::spread(8, 16)),
                             KvChoice(KvFormats(KvFormat::spread(4), KvFormat::spread(4), 100))}) {
    for (const int chunk : {16, 200}) {
      for (const int64_t length : {1, 64, 65, 300, 700}) {
        for (const int sequences : {1, 3}) {
          Model model(checkpoint_, make_cpu_device({.threads = 1}), chunk);
          KvCache cache(model.device(), model.cache_spec(kv));
          for (int s = 0; s < sequences; ++s) {
            const int id = cache.add_sequence();
            for (int64_t done = 0; done < length; done += chunk) {
              cache.extend(id, std::min<int64_t>(chunk, length - done));
            }
          }
          EngineOptions options{.kv = kv, .chunk = chunk};
          const MemoryPlan plan = plan_memory(*checkpoint_, {length, sequences, options});
          EXPECT_EQ(plan.kv, cache.bytes()) << length << " tokens, " << sequences << " sequences";
        }
      }
    }
  }
}

// Latest positions beside codes are counted, and not for each token.
TEST_P(MemoryPlanTest, RecentPositionsTakeTheirRings) {
  const auto plan = [&](int recent, int64_t context) {
    EngineOptions options{.kv = KvFormat::spread(8), .chunk = 64};
    if (recent > 0) options.kv_recent = recent;
    return plan_memory(*checkpoint_, {context, 1, options});
  };
  const MemoryPlan without = plan(0, 6400), with = plan(100, 6400), longer = plan(100, 12800);
  EXPECT_GT(with.kv, without.kv);
  EXPECT_EQ(with.kv_per_token, without.kv_per_token);
  EXPECT_EQ(longer.kv - with.kv, 6400 * with.kv_per_token);
  EXPECT_GT(plan(1000, 6400).kv, with.kv);
}

TEST_P(MemoryPlanTest, AdaptersTakeWhatIsPlanned) {
  const Model model(checkpoint_, make_cpu_device({.threads = 1}));
  MemoryRequest request{700, 2, {.chunk = 64}};
  const MemoryPlan without = plan_memory(*checkpoint_, request);
  EXPECT_EQ(without.adapters, 0u);
  std::vector<std::shared_ptr<const Adapter>> loaded;
  const auto attention = [](int, const std::string& name) { return name.starts_with("self_attn."); };
  int ranks = 0;
  for (const test::RandomAdapter& kind : {test::RandomAdapter{.rank = 4}, {.rank = 7, .seed = 2, .has = attention}}) {
    const testing::TempDir directory;
    test::write_adapter(directory, model, kind);
    loaded.push_back(Adapter::load(directory.path(), model));
    request.adapters.push_back(adapter_size(directory.path(), checkpoint_->config()));
    EXPECT_EQ(request.adapters.back().bytes, loaded.back()->bytes());
    EXPECT_EQ(request.adapters.back().rank, loaded.back()->rank());
    ranks += kind.rank;
    const MemoryPlan plan = plan_memory(*checkpoint_, request);
    EXPECT_EQ(plan.adapters, Adapter::stack(loaded)->bytes());
    EXPECT_EQ(plan.peak(), without.peak() + plan.adapters + adapter_scratch_bytes(64, ranks));
  }
  EXPECT_LE(most_sequences(*checkpoint_, request, without.peak()), 1);
}

TEST_P(MemoryPlanTest, ATokenMoreCostsWhatIsPlanned) {
  const EngineOptions options{.chunk = 64};
  // Far apart, so that neither blocks nor slabs show.
  const MemoryPlan a = plan_memory(*checkpoint_, {6400, 1, options});
  const MemoryPlan b = plan_memory(*checkpoint_, {6400 + 64 * 400, 1, options});
  EXPECT_EQ(b.kv_per_sequence - a.kv_per_sequence, 64 * 400 * a.kv_per_token);
}

TEST_P(MemoryPlanTest, WhatFitsIsTheMostThatFits) {
  const EngineOptions options{.prefix_cache_bytes = 0};
  const MemoryRequest request{1000, 2, options};
  const size_t memory = plan_memory(*checkpoint_, request).peak() + 1'000'000;
  const auto peak = [&](int64_t context, int64_t sequences) {
    return plan_memory(*checkpoint_, {context, sequences, options}).peak();
  };
  const int64_t context = longest_context(*checkpoint_, request, memory);
  EXPECT_GE(context, 1000);
  EXPECT_LE(peak(context, 2), memory);
  if (context < checkpoint_->config().max_positions) {
    EXPECT_GT(peak(context + 1, 2), memory);
  }
  const int64_t sequences = most_sequences(*checkpoint_, request, memory);
  EXPECT_GE(sequences, 2);
  EXPECT_LE(peak(1000, sequences), memory);
  EXPECT_GT(peak(1000, sequences + 1), memory);
  EXPECT_EQ(longest_context(*checkpoint_, request, 1000), 0);
  EXPECT_EQ(most_sequences(*checkpoint_, request, 1000), 0);
  EXPECT_EQ(longest_context(*checkpoint_, request, SIZE_MAX), checkpoint_->config().max_positions);
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryPlanTest, ::testing::Values("dense31/q4g64", "e2b/q4g64", "moe26/q4g64"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace carat

#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/error.h"
#include "compute/cpu/cpu_device.h"

namespace carat {
namespace {

constexpr int64_t kWindow = 100;
constexpr int64_t kRows = 50;

class KvCacheTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  // One growing layer, one ring.
  KvCache cache_{*device_, {.layers = {{1, 16, 0}, {2, 32, kWindow}}, .max_rows = kRows}};

  std::byte* block_of(int layer, int sequence, int64_t position) const {
    const KvSequence& view = cache_.layer(layer).sequences[static_cast<size_t>(sequence)];
    return view.blocks[(position / kKvBlock) % view.ring];
  }
  void grow(int sequence, int64_t rows) {
    for (; rows > 0; rows -= kRows) cache_.extend(sequence, std::min(rows, kRows));
  }
};

TEST_F(KvCacheTest, ARingHoldsTheWindowOfEveryRowOfABatch) {
  const int id = cache_.add_sequence();
  for (int batch = 0; batch < 40; ++batch) {
    const int64_t start = cache_.length(id);
    cache_.extend(id, kRows);
    std::set<std::byte*> blocks;
    std::set<int64_t> numbers;
    for (int64_t p = std::max<int64_t>(0, start - kWindow + 1); p < start + kRows; ++p) {
      ASSERT_NE(block_of(1, id, p), nullptr);
      blocks.insert(block_of(1, id, p));
      numbers.insert(p / kKvBlock);
    }
    EXPECT_EQ(blocks.size(), numbers.size());  // no two live blocks share memory
  }
}

TEST_F(KvCacheTest, GrowingLayersNeverMoveAndSequencesNeverShare) {
  const int a = cache_.add_sequence();
  grow(a, 200);
  std::byte* const first = block_of(0, a, 0);
  const int b = cache_.add_sequence();
  grow(b, 500);
  grow(a, 500);
  EXPECT_EQ(block_of(0, a, 0), first);
  std::set<std::byte*> blocks;
  for (int64_t p = 0; p < 500; p += kKvBlock) {
    EXPECT_TRUE(blocks.insert(block_of(0, a, p)).second);
    EXPECT_TRUE(blocks.insert(block_of(0, b, p)).second);
  }
}

TEST_F(KvCacheTest, TrimsAsFarAsTheRingReaches) {
  const int id = cache_.add_sequence();
  grow(id, 100);
  EXPECT_TRUE(cache_.can_trim(id, 0));  // nothing has been overwritten yet
  grow(id, 900);
  EXPECT_TRUE(cache_.can_trim(id, 1000));
  EXPECT_TRUE(cache_.can_trim(id, 1000 - kRows));  // the last batch can be taken back
  EXPECT_FALSE(cache_.can_trim(id, 500));
  EXPECT_FALSE(cache_.can_trim(id, 1001));
  EXPECT_FALSE(cache_.can_trim(id, -1));
  EXPECT_THROW(cache_.trim(id, 500), Error);
  cache_.trim(id, 960);
  EXPECT_EQ(cache_.length(id), 960);
}

TEST_F(KvCacheTest, RemovedSequencesGiveTheirBlocksBack) {
  const int a = cache_.add_sequence();
  grow(a, 400);
  const size_t bytes = cache_.bytes();
  cache_.remove_sequence(a);
  const int b = cache_.add_sequence();
  EXPECT_EQ(b, a);
  EXPECT_EQ(cache_.length(b), 0);
  grow(b, 400);
  EXPECT_EQ(cache_.bytes(), bytes);
  EXPECT_LE(cache_.bytes_for(400), bytes);
}

TEST_F(KvCacheTest, GivesBackWhatNoBlockUsesAndTakesItAnew) {
  const int kept = cache_.add_sequence();
  grow(kept, 300);
  const std::vector<std::byte> written(cache_.block_bytes(0), std::byte{7});
  std::memcpy(block_of(0, kept, 0), written.data(), written.size());
  const size_t alone = cache_.bytes();
  for (int round = 0; round < 3; ++round) {
    const int a = cache_.add_sequence();
    const int b = cache_.add_sequence();
    for (int i = 0; i < 20; ++i) {  // side by side, so that they share slabs
      cache_.extend(a, kRows);
      cache_.extend(b, kRows);
    }
    const size_t most = cache_.bytes();
    const size_t in_use = cache_.bytes_in_use();
    cache_.give_back();
    EXPECT_EQ(cache_.bytes_in_use(), in_use);
    cache_.remove_sequence(a);
    cache_.give_back();
    EXPECT_LE(cache_.bytes(), most);
    const size_t one_block = cache_.block_bytes(0) + cache_.block_bytes(1);
    EXPECT_GE(cache_.bytes(), cache_.bytes_in_use());
    cache_.remove_sequence(b);
    cache_.give_back();
    EXPECT_LE(cache_.bytes(), alone + 4 * one_block);
    EXPECT_EQ(cache_.bytes_in_use(), cache_.bytes_for(300));
    EXPECT_EQ(std::memcmp(block_of(0, kept, 0), written.data(), written.size()), 0);
  }
  cache_.remove_sequence(kept);
  cache_.give_back();
  EXPECT_EQ(cache_.bytes(), 0u);
  EXPECT_EQ(cache_.bytes_in_use(), 0u);
  // No two live blocks share memory afterwards.
  const int again = cache_.add_sequence();
  grow(again, 500);
  std::set<std::byte*> blocks;
  for (int64_t p = 0; p < 500; p += kKvBlock) EXPECT_TRUE(blocks.insert(block_of(0, again, p)).second);
  EXPECT_GE(cache_.bytes(), cache_.bytes_in_use());
}

TEST_F(KvCacheTest, ForksCostNothingUntilOneWrites) {
  const int a = cache_.add_sequence();
  grow(a, 150);
  const size_t before = cache_.bytes_in_use();
  const int b = cache_.fork(a);
  EXPECT_EQ(cache_.bytes_in_use(), before);
  for (int layer = 0; layer < 2; ++layer) EXPECT_EQ(block_of(layer, a, 149), block_of(layer, b, 149));
  std::memset(block_of(0, a, 149), 7, cache_.block_bytes(0));
  cache_.extend(b, 1);  // into the half-filled last block
  EXPECT_EQ(cache_.bytes_in_use(), before + cache_.block_bytes(0) + cache_.block_bytes(1));
  EXPECT_NE(block_of(0, a, 149), block_of(0, b, 149));
  EXPECT_EQ(block_of(0, a, 100), block_of(0, b, 100));
  EXPECT_EQ(std::memcmp(block_of(0, a, 149), block_of(0, b, 149), cache_.block_bytes(0)), 0);
  std::byte* const kept = block_of(0, a, 149);
  cache_.extend(a, 1);  // nobody else holds it any more
  EXPECT_EQ(block_of(0, a, 149), kept);
  cache_.remove_sequence(a);
  EXPECT_EQ(cache_.bytes_in_use(), cache_.bytes_for(151));
  cache_.remove_sequence(b);
  EXPECT_EQ(cache_.bytes_in_use(), 0u);
}

// At the end of a block nothing has to be copied: a ring leaves a block that others hold, and takes another.
TEST_F(KvCacheTest, ReferencesKeepWhatARingWouldOverwrite) {
  const int id = cache_.add_sequence();
  grow(id, 128);
  std::memset(block_of(1, id, 64), 9, cache_.block_bytes(1));
  const KvBlockRef held = cache_.block(id, 1, 1);
  ASSERT_TRUE(held);
  grow(id, 1000);
  EXPECT_FALSE(cache_.block(id, 1, 1));  // the ring has moved on
  EXPECT_FALSE(cache_.block(id, 1, 99));
  std::vector<std::byte> content(cache_.block_bytes(1));
  cache_.download(held, content.data());
  EXPECT_EQ(content, std::vector<std::byte>(content.size(), std::byte{9}));
}

TEST_F(KvCacheTest, RefusesSequencesThatLackBlocks) {
  const int id = cache_.add_sequence();
  grow(id, 300);
  std::vector<KvPlacedBlock> blocks;
  for (int layer = 0; layer < 2; ++layer) {
    for (int64_t b = cache_.first_block(layer, 300); b < 5; ++b) blocks.push_back({b, cache_.block(id, layer, b)});
  }
  const int whole = cache_.add_sequence(300, blocks);
  EXPECT_EQ(cache_.length(whole), 300);
  const size_t in_use = cache_.bytes_in_use();
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::vector<KvPlacedBlock> some = blocks;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THROW(cache_.add_sequence(300, some), Error) << i;
  }
  EXPECT_THROW(cache_.add_sequence(200, blocks), Error);  // a block beyond the end
  EXPECT_THROW(cache_.add_sequence(400, blocks), Error);
  EXPECT_THROW(cache_.add_sequence(-1, {}), Error);
  EXPECT_EQ(cache_.bytes_in_use(), in_use);  // what was refused holds nothing
}

/// A coded layer, and the ring of its latest `positions`.
KvCacheSpec with_recent(int64_t positions) {
  KvLayerSpec coded{2, 32, 0, KvFormat::spread(4), KvFormat::rotated(3)};
  coded.recent = 1;
  KvLayerSpec ring{2, 32, positions};
  ring.window_step = kRecentStep;
  return {.layers = {coded, ring}, .max_rows = kRows};
}

TEST(RecentPositions, AreThereForEveryRowOfABatch) {
  const auto device = make_cpu_device({.threads = 1});
  for (const int64_t recent : {1, 63, 64, 65, 256, 300}) {
    KvCache cache(*device, with_recent(recent));
    const int id = cache.add_sequence();
    while (cache.length(id) < 1200) {
      const int64_t start = cache.length(id);
      cache.extend(id, kRows);
      const KvLayer layer = cache.layer(0);
      ASSERT_EQ(layer.recent.positions, recent);
      ASSERT_EQ(layer.recent.k_format, KvFormat::kF16);
      const KvSequence& ring = layer.recent.sequences[static_cast<size_t>(id)];
      std::set<std::byte*> blocks;
      std::set<int64_t> numbers;
      for (int64_t p = layer.floats_begin(start); p < start + kRows; ++p) {
        ASSERT_NE(ring.blocks[p / kKvBlock % ring.ring], nullptr);
        blocks.insert(ring.blocks[p / kKvBlock % ring.ring]);
        numbers.insert(p / kKvBlock);
      }
      ASSERT_EQ(blocks.size(), numbers.size());
      ASSERT_TRUE(cache.can_trim(id, start));
    }
    EXPECT_FALSE(cache.can_trim(id, 1200 - 256 - recent - 2 * kRows - 2 * kKvBlock));
    EXPECT_EQ(cache.bytes(), KvCache::bytes_taken(cache.spec(), 1200, 1));
    EXPECT_EQ(cache.bytes_in_use(), cache.bytes_for(1200));
  }
}

TEST(RecentPositions, AreRefusedWhereTheyFitNoLayer) {
  const auto device = make_cpu_device({.threads = 1});
  const auto refuses = [&](const auto& change) {
    KvCacheSpec spec = with_recent(100);
    change(spec.layers);
    EXPECT_THROW(KvCache(*device, spec), Error);
  };
  refuses([](auto& layers) { layers[0].recent = 2; });
  refuses([](auto& layers) { layers[0].recent = 0; });
  refuses([](auto& layers) { layers[0].window = 10; });
  refuses([](auto& layers) { layers[1].window = 0; });
  refuses([](auto& layers) { layers[1].window_step = 1; });
  refuses([](auto& layers) { layers[1].kv_heads = 1; });
  refuses([](auto& layers) { layers[1].head_dim = 16; });
  refuses([](auto& layers) { layers[1].k_format = KvFormat::spread(8); });
  refuses([](auto& layers) { layers[1].v_format = KvFormat::rotated(8); });
}

TEST_F(KvCacheTest, RefusesWhatItWasNotMadeFor) {
  const int id = cache_.add_sequence();
  EXPECT_THROW(cache_.extend(id, kRows + 1), Error);
  EXPECT_THROW(cache_.extend(id, -1), Error);
  EXPECT_THROW(cache_.extend(7, 1), Error);
  EXPECT_THROW(cache_.length(-1), Error);
  cache_.remove_sequence(id);
  EXPECT_THROW(cache_.remove_sequence(id), Error);
}

}  // namespace
}  // namespace carat

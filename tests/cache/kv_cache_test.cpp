#include "cache/kv_cache.h"

#include <gtest/gtest.h>

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

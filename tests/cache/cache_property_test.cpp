// Random operations on a cache and a tree of prefixes, against plain lists of tokens. Every written position carries a
// value that follows from all tokens up to it, as keys and values do, so that a block in the wrong place shows.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "cache/kv_cache.h"
#include "cache/prefix_tree.h"
#include "compute/cpu/cpu_device.h"

namespace carat {
namespace {

constexpr int64_t kRows = 50;

/// Stories share their beginnings: with more positions more bits of the number count.
int token_of(int story, int64_t position) {
  const int bits = position < 70 ? 0 : position < 150 ? 1 : position < 260 ? 2 : 3;
  return static_cast<int>((static_cast<uint64_t>(story >> (3 - bits)) * 7919 + static_cast<uint64_t>(position) * 31) %
                          1000);
}

uint64_t mixed(uint64_t before, int token) {
  return (before ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + 0x1234567;
}

/// One sequence as the cache should have it.
struct Plain {
  int story = 0;
  std::vector<int> tokens;
  std::vector<uint64_t> values;  // of each position
};

/// The first position that the row at `length` reads.
int64_t first_read(const KvLayerSpec& layer, int64_t length) {
  if (layer.window == 0) return 0;
  int64_t first = std::max<int64_t>(0, length - layer.window + 1);
  while (first % layer.window_step != 0) --first;
  return first;
}

class World {
 public:
  World(std::vector<KvLayerSpec> layers, size_t budget, unsigned seed)
      : cache_(*device_, {.layers = std::move(layers), .max_rows = kRows}),
        tree_(cache_, budget),
        budget_(budget),
        random_(seed) {
    for (int layer = 0; layer < cache_.layer_count(); ++layer) has_rings_ = has_rings_ || cache_.is_ring(layer);
  }

  void step() {
    const unsigned what = random_() % 100;
    if (plain_.empty() || (what < 8 && plain_.size() < 8)) {
      plain_[cache_.add_sequence()] = {.story = static_cast<int>(random_() % 8), .tokens = {}, .values = {}};
    } else if (what < 50) {
      extend(any(), 1 + static_cast<int64_t>(random_() % (random_() % 2 == 0 ? 3 : kRows)));
    } else if (what < 60) {
      trim(any());
    } else if (what < 68 && plain_.size() < 8) {
      const int from = any();
      const int to = cache_.fork(from);
      ASSERT_FALSE(plain_.contains(to));
      plain_[to] = plain_[from];
      plain_[to].story = static_cast<int>(random_() % 8);  // goes its own way
    } else if (what < 76) {
      const int id = any();
      cache_.remove_sequence(id);
      plain_.erase(id);
    } else if (what < 86) {
      insert(any());
    } else if (what < 98) {
      match();
    } else if (random_() % 2 == 0) {
      cache_.give_back();
    } else if (random_() % 2 == 0) {
      evicted_ = random_() % 2 == 0;
      tree_.shrink(evicted_ ? tree_.stats().bytes / 2 : 0);
      kept_.clear();  // after half of it is gone nobody knows what is there, until all is
    }
  }

  /// Every sequence holds what it should, where it should.
  void check() {
    for (const auto& [id, plain] : plain_) check(id, plain);
    EXPECT_LE(tree_.stats().bytes, budget_);
    EXPECT_LE(cache_.bytes_in_use(), cache_.bytes());
  }

  /// Nothing is held that nobody holds.
  void finish() {
    while (!plain_.empty()) {
      cache_.remove_sequence(plain_.begin()->first);
      plain_.erase(plain_.begin());
    }
    EXPECT_EQ(cache_.bytes_in_use(), tree_.stats().bytes);
    tree_.clear();
    EXPECT_EQ(tree_.stats().bytes, 0u);
    EXPECT_EQ(tree_.stats().entries, 0u);
    EXPECT_EQ(cache_.bytes_in_use(), 0u);
    cache_.give_back();
    EXPECT_EQ(cache_.bytes(), 0u);
  }

  uint64_t hits() const { return tree_.stats().hits; }
  uint64_t hits_within_blocks() const { return hits_within_blocks_; }

 private:
  int any() {
    auto at = plain_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % plain_.size()));
    return at->first;
  }

  std::byte* place(int layer, int id, int64_t position) const {
    const KvSequence& view = cache_.layer(layer).sequences[static_cast<size_t>(id)];
    return view.blocks[position / kKvBlock % view.ring] + position % kKvBlock * 8;
  }

  void extend(int id, int64_t rows) {
    Plain& plain = plain_[id];
    if (plain.tokens.size() > 450) return;
    cache_.extend(id, rows);
    for (int64_t i = 0; i < rows; ++i) {
      const auto position = static_cast<int64_t>(plain.tokens.size());
      plain.tokens.push_back(token_of(plain.story, position));
      plain.values.push_back(mixed(plain.values.empty() ? 1 : plain.values.back(), plain.tokens.back()));
      for (int layer = 0; layer < cache_.layer_count(); ++layer) {
        const uint64_t value = plain.values.back() + static_cast<uint64_t>(layer);
        std::memcpy(place(layer, id, position), &value, 8);
      }
    }
    ASSERT_TRUE(cache_.can_trim(id, cache_.length(id) - rows));  // a batch can always be taken back
  }

  void trim(int id) {
    Plain& plain = plain_[id];
    const auto length = static_cast<int64_t>(plain.tokens.size());
    const int64_t to = std::max<int64_t>(0, length - static_cast<int64_t>(random_() % 120));
    if (!cache_.can_trim(id, to)) return;
    cache_.trim(id, to);
    plain.tokens.resize(static_cast<size_t>(to));
    plain.values.resize(static_cast<size_t>(to));
  }

  void insert(int id) {
    const Plain& plain = plain_[id];
    const std::string space = random_() % 4 == 0 ? "adapter" : "";
    const size_t count = random_() % 2 == 0 ? plain.tokens.size() : random_() % (plain.tokens.size() + 1);
    const std::span<const int> tokens = std::span(plain.tokens).first(count);
    tree_.insert(space, id, tokens);
    if (tree_.stats().max_bytes < SIZE_MAX) return;
    // Every length whose windows the rings hold must be there now, within the last block and up to the boundary
    // before a tail.
    const auto length = static_cast<int64_t>(count);
    if (length == 0) return;
    if (!cache_.can_trim(id, length)) {
      for (int64_t shorter = 1; shorter < length; ++shorter) {  // at a boundary a window of one needs no block
        ASSERT_TRUE(shorter % kKvBlock == 0 || !cache_.can_trim(id, shorter));
      }
      return;
    }
    const auto keep = [&](int64_t end) {
      int64_t from = end;
      while (from > 1 && (!has_rings_ || (from - 1) % kKvBlock != 0) && cache_.can_trim(id, from - 1)) --from;
      kept_.insert({space, {tokens.begin(), tokens.begin() + end}, from});
    };
    keep(length);
    const int64_t boundary = length / kKvBlock * kKvBlock;
    if (boundary > 0 && cache_.can_trim(id, boundary)) keep(boundary);
  }

  void match() {
    std::vector<int> prompt;
    const int story = static_cast<int>(random_() % 8);
    const auto size = static_cast<int64_t>(1 + random_() % 450);
    for (int64_t p = 0; p < size; ++p) prompt.push_back(token_of(story, p));
    const std::string space = random_() % 4 == 0 ? "adapter" : "";
    const PrefixMatch match = tree_.match(space, prompt);
    ASSERT_LT(match.length, size);
    ASSERT_GE(match.known, match.length);
    const PrefixMatch seen = tree_.look_up(space, prompt);
    ASSERT_EQ(seen.length, match.length);
    ASSERT_EQ(seen.known, match.known);
    if (!evicted_ && budget_ == SIZE_MAX) {
      int64_t longest = 0;
      int64_t known = 0;
      for (const auto& [kept_space, tokens, from] : kept_) {
        if (kept_space != space) continue;
        const auto shared =
            std::mismatch(prompt.begin(), prompt.end() - 1, tokens.begin(), tokens.end()).second - tokens.begin();
        known = std::max<int64_t>(known, shared);
        if (shared >= from) longest = std::max<int64_t>(longest, shared);
      }
      ASSERT_EQ(match.length, longest);
      ASSERT_EQ(match.known, known);
    }
    if (match.sequence < 0) {
      ASSERT_EQ(match.length, 0);
      return;
    }
    if (match.length % kKvBlock != 0) ++hits_within_blocks_;
    ASSERT_EQ(cache_.length(match.sequence), match.length);
    ASSERT_FALSE(plain_.contains(match.sequence));
    Plain plain{.story = story, .tokens = {}, .values = {}};
    for (int64_t p = 0; p < match.length; ++p) {
      plain.tokens.push_back(prompt[static_cast<size_t>(p)]);
      plain.values.push_back(mixed(plain.values.empty() ? 1 : plain.values.back(), plain.tokens.back()));
    }
    check(match.sequence, plain);
    if (plain_.size() < 8) {
      plain_[match.sequence] = std::move(plain);
    } else {
      cache_.remove_sequence(match.sequence);
    }
  }

  void check(int id, const Plain& plain) {
    const auto length = static_cast<int64_t>(plain.tokens.size());
    ASSERT_EQ(cache_.length(id), length);
    for (int layer = 0; layer < cache_.layer_count(); ++layer) {
      for (int64_t p = first_read(cache_.spec().layers[static_cast<size_t>(layer)], length); p < length; ++p) {
        uint64_t value = 0;
        std::memcpy(&value, place(layer, id, p), 8);
        ASSERT_EQ(value, plain.values[static_cast<size_t>(p)] + static_cast<uint64_t>(layer))
            << "sequence " << id << " of " << length << ", layer " << layer << ", position " << p;
      }
    }
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  KvCache cache_;
  PrefixTree tree_;
  size_t budget_;
  std::mt19937 random_;
  std::map<int, Plain> plain_;
  std::set<std::tuple<std::string, std::vector<int>, int64_t>> kept_;  // namespace, tokens, shortest length to be used
  bool has_rings_ = false;
  bool evicted_ = false;
  uint64_t hits_within_blocks_ = 0;
};

struct Setting {
  const char* name;
  std::vector<KvLayerSpec> layers;
  size_t budget;
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.name;
}

class CacheProperty : public testing::TestWithParam<Setting> {};

TEST_P(CacheProperty, TenThousandOperationsLeaveEveryPositionInItsPlace) {
  World world(GetParam().layers, GetParam().budget, 7);
  for (int i = 0; i < 10000; ++i) {
    world.step();
    world.check();
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "after operation " << i;
  }
  EXPECT_GT(world.hits(), 50u);
  EXPECT_GT(world.hits_within_blocks(), 30u);
  world.finish();
}

// Trees that hold little yet: much of what is known cannot be used.
TEST_P(CacheProperty, TreesServeExactlyWhatWasKept) {
  for (unsigned seed = 100; seed < 200; ++seed) {
    World world(GetParam().layers, GetParam().budget, seed);
    for (int i = 0; i < 600; ++i) {
      world.step();
      world.check();
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "seed " << seed << ", after operation " << i;
    }
    world.finish();
  }
}

const KvLayerSpec kFull{1, 16, 0};
const KvLayerSpec kWide{2, 32, 100};
const KvLayerSpec kNarrow{1, 16, 30};
/// A coded layer whose latest positions are in another one, and that one, whose windows begin at multiples of 256.
KvLayerSpec with_recent(int ring) {
  KvLayerSpec layer{1, 32, 0, KvFormat::spread(8), KvFormat::spread(8)};
  layer.recent = ring;
  return layer;
}
KvLayerSpec ring_of_recent(int64_t positions) {
  KvLayerSpec layer{1, 32, positions};
  layer.window_step = kRecentStep;
  return layer;
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CacheProperty,
    testing::Values(Setting{"both_kinds", {kFull, kWide, kNarrow, kFull}, SIZE_MAX},
                    Setting{"both_kinds_small_budget", {kFull, kWide, kNarrow}, 100000},
                    Setting{"growing_only", {kFull, kFull}, SIZE_MAX},
                    Setting{"growing_only_small_budget", {kFull, kFull}, 60000},
                    Setting{"rings_only", {kWide, kNarrow}, SIZE_MAX},
                    Setting{"window_of_one", {kFull, KvLayerSpec{1, 16, 1}}, SIZE_MAX},
                    Setting{"recent", {with_recent(1), ring_of_recent(10)}, SIZE_MAX},
                    Setting{"recent_and_sliding", {with_recent(3), kNarrow, kFull, ring_of_recent(90)}, SIZE_MAX},
                    Setting{"recent_small_budget", {with_recent(1), ring_of_recent(1)}, 90000}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace carat

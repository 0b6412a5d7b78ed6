// Contexts of tens of thousands of tokens: memory is what was planned, activations do not grow, and chunks do not
// matter.
#include <gtest/gtest.h>

#include <random>

#include "compute/cpu/cpu_device.h"
#include "model/model.h"

namespace carat {
namespace {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / name;
}

std::vector<int> random_tokens(int64_t count) {
  std::mt19937 random(1);
  std::vector<int> tokens{2};
  while (static_cast<int64_t>(tokens.size()) < count) tokens.push_back(static_cast<int>(random() % 500));
  return tokens;
}

struct Read {
  std::vector<float> logits;  // after the last token
  size_t cache_bytes = 0;
  size_t planned_bytes = 0;
};

Read read(const char* name, const KvChoice& kv, int64_t chunk, std::span<const int> tokens) {
  Model model(Checkpoint::open(golden(name)), make_cpu_device({.threads = 2}), chunk);
  const KvCacheSpec spec = model.cache_spec(kv);
  KvCache cache(model.device(), spec);
  const int sequence = cache.add_sequence();
  ForwardResult result;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(tokens.size() - done, static_cast<size_t>(chunk));
    Batch batch;
    batch.add(sequence, tokens.subspan(done, count), done + count == tokens.size());
    model.forward(batch, cache, result);
    done += count;
  }
  return {result.logits, cache.bytes(), KvCache::bytes_taken(spec, static_cast<int64_t>(tokens.size()), 1)};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kLong = 3000;
#else
constexpr int64_t kLong = 32768;
#endif

TEST(LongContext, ChunksDoNotMatterAndMemoryIsWhatWasPlanned) {
  const std::vector<int> tokens = random_tokens(kLong);
  KvChoice recent = parse_kv_choice("turbo:k4v3");
  recent.keep_recent(1000);
  for (const KvChoice& kv : {KvChoice(KvFormat::spread(8)), recent}) {
    const Read small = read("models/e2b/q4g64", kv, 100, tokens);
    const Read large = read("models/e2b/q4g64", kv, 512, tokens);
    EXPECT_EQ(small.logits, large.logits);
    EXPECT_EQ(small.cache_bytes, small.planned_bytes);
    EXPECT_EQ(large.cache_bytes, large.planned_bytes);
  }
}

// The whole context of a model, to its last position.
TEST(LongContext, AWholeContextOf128kIsReadInTheMemoryPlannedForIt) {
  const std::vector<int> tokens = random_tokens(kLong * 4);
  const KvChoice kv = parse_kv_choice("turbo:k8v3");
  const Read small = read("gguf/pli.q8_0.gguf", kv, 321, tokens);
  const Read large = read("gguf/pli.q8_0.gguf", kv, 512, tokens);
  EXPECT_EQ(small.logits, large.logits);
  EXPECT_EQ(large.cache_bytes, large.planned_bytes);
}

// 128k tokens: growing layers take their share of each position, rings nothing more.
TEST(LongContext, RingsStayAsTheyAre) {
  const auto device = make_cpu_device({.threads = 1});
  const KvFormats q4 = KvFormat::spread(4);
  const KvCacheSpec spec{.layers = {{1, 64, 0, q4.k, q4.v}, {1, 64, 1024, q4.k, q4.v}}, .max_rows = 512};
  KvCache cache(*device, spec);
  const int sequence = cache.add_sequence();
  size_t at_half = 0;
  for (int64_t length = 0; length < 131072; length += 512) {
    if (length == 65536) at_half = cache.bytes();
    cache.extend(sequence, 512);
  }
  EXPECT_EQ(cache.bytes(), KvCache::bytes_taken(spec, 131072, 1));
  EXPECT_EQ(cache.bytes() - at_half, 65536 / kKvBlock * cache.block_bytes(0));
}

}  // namespace
}  // namespace carat

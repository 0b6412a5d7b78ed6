// finish_qkv: norms, rotations, and what is written to the cache.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "bounded.h"
#include "test_cache.h"
#include "test_devices.h"
#include "test_operations.h"

namespace carat {
namespace {

/// Half a unit in the last place of a cache format, relative and absolute.
double cache_rounding(KvFormat format, double value) {
  if (format == KvFormat::kF32) return std::abs(value) * kUnit;
  if (format == KvFormat::kBF16) return std::abs(value) * 0x1p-8;
  return std::max(std::abs(value) * 0x1p-11, 0x1p-25);
}

BoundedRow rotated(BoundedRow x, const RopeTable& rope, int64_t position) {
  const size_t half = x.size() / 2;
  for (int i = 0; i < rope.pairs(); ++i) {
    const double angle = static_cast<double>(position) * rope.frequency(i);
    const Bounded cos{std::cos(angle), kUnit}, sin{std::sin(angle), kUnit};
    const Bounded a = x[static_cast<size_t>(i)], b = x[static_cast<size_t>(i) + half];
    x[static_cast<size_t>(i)] = a * cos + Bounded{-b.value, b.error} * sin;
    x[static_cast<size_t>(i) + half] = a * sin + b * cos;
  }
  return x;
}

struct Case {
  int heads, kv_heads, head_dim, pairs;
};

class FinishQkv : public testing::TestWithParam<std::tuple<Case, KvFormats>> {};
class FinishQkvOfFloats : public testing::TestWithParam<std::tuple<Case, KvFormat>> {};

TEST_P(FinishQkvOfFloats, NormalisesRotatesAndWrites) {
  const auto [c, format] = GetParam();
  RopeTable rope(c.head_dim, c.pairs, 1e4, 1);
  rope.reserve(1000);
  const TestNorm q_norm(c.head_dim, 1), k_norm(c.head_dim, 2);
  // Two sequences, one of them a ring; positions out of order, as a batch of several sequences has them.
  const std::vector<TokenRow> tokens = {{1, 703, 0, 704}, {0, 0, 0, 1}, {0, 1, 0, 2}, {0, 64, 0, 65}, {1, 704, 0, 705}};
  const auto rows = tokens.size();
  const auto dim = static_cast<size_t>(c.head_dim);
  const std::vector<float> q = random_floats(rows * static_cast<size_t>(c.heads) * dim, 3, 5);
  const std::vector<float> k = random_floats(rows * static_cast<size_t>(c.kv_heads) * dim, 4, 5);
  const std::vector<float> v = random_floats(rows * static_cast<size_t>(c.kv_heads) * dim, 5, 5);

  for (const bool norm_v : {true, false}) {
    for (const bool k_is_v : {false, true}) {
      const std::vector<float>& raw_v = k_is_v ? k : v;
      for (TestDevice& test : all_devices(Precision::kFast)) {
        SCOPED_TRACE(test.name);
        test.device->reserve(static_cast<int64_t>(rows));
        TestCache cache(format, c.kv_heads, c.head_dim);
        cache.add_sequence(0, 65);
        cache.add_ring(3);
        std::vector<float> out = q;
        QkvArgs args;
        args.rows = static_cast<int64_t>(rows);
        args.heads = c.heads;
        args.q = out.data();
        args.k = k.data();
        args.v = raw_v.data();
        args.q_norm = q_norm;
        args.k_norm = k_norm;
        if (norm_v) args.v_norm = Norm{nullptr, 1e-6f};
        args.rope = &rope;
        args.tokens = tokens;
        args.cache = cache.layer();
        test.device->finish_qkv(args);

        for (size_t r = 0; r < rows; ++r) {
          for (int h = 0; h < c.heads; ++h) {
            const size_t at = (r * static_cast<size_t>(c.heads) + static_cast<size_t>(h)) * dim;
            const BoundedRow n = normalised(exactly(std::span<const float>(q).subspan(at, dim)), q_norm);
            const BoundedRow want = rotated(n, rope, tokens[r].position);
            for (size_t d = 0; d < dim; ++d) {
              ASSERT_NEAR(out[at + d], want[d].value, want[d].error + kUnit * std::abs(want[d].value)) << r << " " << d;
            }
          }
          for (int h = 0; h < c.kv_heads; ++h) {
            const size_t at = (r * static_cast<size_t>(c.kv_heads) + static_cast<size_t>(h)) * dim;
            const BoundedRow n = normalised(exactly(std::span<const float>(k).subspan(at, dim)), k_norm);
            const BoundedRow key = rotated(n, rope, tokens[r].position);
            BoundedRow value = exactly(std::span<const float>(raw_v).subspan(at, dim));
            if (norm_v) value = normalised(value, {nullptr, 1e-6f});
            const auto got_key = cache.get(tokens[r].sequence, tokens[r].position, CachePart::kKey, h);
            const auto got_value = cache.get(tokens[r].sequence, tokens[r].position, CachePart::kValue, h);
            for (size_t d = 0; d < dim; ++d) {
              // The float32 error may carry a value over the edge between two roundings.
              ASSERT_NEAR(got_key[d], key[d].value, key[d].error + 1.001 * cache_rounding(format, key[d].value));
              ASSERT_NEAR(got_value[d], value[d].value,
                          value[d].error + 1.001 * cache_rounding(format, value[d].value));
            }
          }
        }
        // Nothing else was written: all other bytes are still NaN.
        TestCache untouched(format, c.kv_heads, c.head_dim);
        untouched.add_sequence(0, 65);
        untouched.add_ring(3);
        for (const TokenRow& token : tokens) {
          for (int h = 0; h < c.kv_heads; ++h) {
            for (const CachePart part : {CachePart::kKey, CachePart::kValue}) {
              untouched.set(token.sequence, token.position, part, h,
                            cache.get(token.sequence, token.position, part, h));
            }
          }
        }
        for (const int sequence : {0, 1}) ASSERT_EQ(cache.bytes(sequence), untouched.bytes(sequence));
      }
    }
  }
}

/// Writes keys and values of the tokens, and no queries.
void write_kv(Device& device, TestCache& cache, std::span<const TokenRow> tokens, const std::vector<float>& k,
              const std::vector<float>& v, const Norm& k_norm, const RopeTable& rope) {
  QkvArgs args;
  args.rows = static_cast<int64_t>(tokens.size());
  args.k = k.data();
  args.v = v.data();
  args.k_norm = k_norm;
  args.v_norm = Norm{nullptr, 1e-6f};
  args.rope = &rope;
  args.tokens = tokens;
  args.cache = cache.layer();
  device.finish_qkv(args);
}

// What a coded cache receives is what store_kv_row makes of the floats that a float32 cache receives.
TEST_P(FinishQkv, StoresWhatTheDefinitionSays) {
  const auto [c, formats] = GetParam();
  RopeTable rope(c.head_dim, c.pairs, 1e4, 1);
  rope.reserve(200);
  const TestNorm k_norm(c.head_dim, 32);
  const std::vector<TokenRow> tokens = {{0, 3, 0, 4}, {0, 64, 0, 65}, {0, 127, 0, 128}};
  const auto size = tokens.size() * static_cast<size_t>(c.kv_heads * c.head_dim);
  const std::vector<float> k = random_floats(size, 33, 5), v = random_floats(size, 34, 5);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    SCOPED_TRACE(test.name);
    TestCache coded(formats, c.kv_heads, c.head_dim), plain(KvFormat::kF32, c.kv_heads, c.head_dim);
    for (TestCache* cache : {&coded, &plain}) {
      cache->add_sequence(0, 128);
      write_kv(*test.device, *cache, tokens, k, v, k_norm, rope);
    }
    TestCache expected(formats, c.kv_heads, c.head_dim);
    expected.add_sequence(0, 128);
    for (const TokenRow& token : tokens) {
      for (int h = 0; h < c.kv_heads; ++h) {
        for (const CachePart part : {CachePart::kKey, CachePart::kValue}) {
          expected.set(0, token.position, part, h, plain.get(0, token.position, part, h));
        }
      }
    }
    EXPECT_EQ(coded.bytes(0), expected.bytes(0));  // and everything else is as it was
  }
}

// Latest positions are written beside the codes, as a cache without codes has them.
TEST(FinishQkvOfRecentPositions, WritesCodesAndFloats) {
  RopeTable rope(64, 32, 1e4, 1);
  rope.reserve(800);
  const TestNorm k_norm(64, 32);
  const std::vector<TokenRow> tokens = {{0, 3, 0, 4}, {0, 64, 0, 65}, {0, 127, 0, 128}, {0, 703, 0, 704}};
  const std::vector<float> k = random_floats(tokens.size() * 2 * 64, 33, 5);
  const std::vector<float> v = random_floats(tokens.size() * 2 * 64, 34, 5);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    const auto write = [&](TestCache& cache) { write_kv(*test.device, cache, tokens, k, v, k_norm, rope); };
    for (const KvFormats& formats :
         {KvFormats(KvFormat::spread(4)), KvFormats(KvFormat::spread(8), KvFormat::rotated(3)),
          KvFormats(KvFormat::affine(8), KvFormat::kF32)}) {
      TestCache both({formats.k, formats.v, 100}, 2, 64), codes(formats, 2, 64);
      TestCache floats({KvFormat::kF16, formats.v.is_coded() ? KvFormat::kF16 : formats.v}, 2, 64);
      both.add_sequence_with_ring(704, 7);
      codes.add_sequence(0, 704);
      floats.add_ring(7);
      for (TestCache* cache : {&both, &codes, &floats}) write(*cache);
      EXPECT_EQ(both.bytes(0), codes.bytes(0)) << test.name;
      EXPECT_EQ(both.recent().bytes(0), floats.bytes(0)) << test.name;
    }
  }
}

// Attention makes them what the keys that they meet need.
TEST(FinishQkvOfQueries, AreTheSameHoweverKeysAreStored) {
  RopeTable rope(64, 32, 1e4, 1);
  const TestNorm q_norm(64, 51);
  const std::vector<TokenRow> tokens = {{0, 7, 0, 8}};
  for (TestDevice& test : all_devices(Precision::kFast)) {
    const auto queries = [&](const KvFormats& formats) {
      TestCache cache(formats, 1, 64);
      cache.add_sequence(0, 8);
      std::vector<float> q = random_floats(2 * 64, 50);
      QkvArgs args;
      args.rows = 1;
      args.heads = 2;
      args.q = q.data();
      args.q_norm = q_norm;
      args.rope = &rope;
      args.tokens = tokens;
      args.cache = cache.layer();
      test.device->finish_qkv(args);
      return q;
    };
    const std::vector<float> plain = queries(KvFormat::kF32);
    EXPECT_EQ(queries({KvFormat::kF16, KvFormat::spread(8)}), plain) << test.name;
    EXPECT_EQ(queries(KvFormat::spread(8)), plain) << test.name;
    EXPECT_EQ(queries({KvFormat::spread(8), KvFormat::rotated(3), 100}), plain) << test.name;
  }
}

TEST_P(FinishQkv, SameBitsInEveryBatch) {
  const auto [c, formats] = GetParam();
  RopeTable rope(c.head_dim, c.pairs, 1e6, 1);
  constexpr int kRows = 70;
  rope.reserve(kRows);
  const TestNorm q_norm(c.head_dim, 11), k_norm(c.head_dim, 12);
  const auto q_size = static_cast<size_t>(c.heads * c.head_dim);
  const auto kv_size = static_cast<size_t>(c.kv_heads * c.head_dim);
  const std::vector<float> q = random_floats(kRows * q_size, 13), k = random_floats(kRows * kv_size, 14);
  std::vector<TokenRow> tokens;
  for (int64_t p = 0; p < kRows; ++p) tokens.push_back({0, p, 0, p + 1});

  std::vector<float> first_q;
  std::vector<std::byte> first_cache;
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3}) {
      const TestDevice test = cpu_device(isa, Precision::kFast, threads);
      for (const int count : {1, 3, 16, kRows}) {
        TestCache cache(formats, c.kv_heads, c.head_dim);
        cache.add_sequence(0, kRows);
        std::vector<float> out = q;
        for (int row = 0; row < kRows; row += count) {
          QkvArgs args;
          args.rows = std::min(count, kRows - row);
          args.heads = c.heads;
          args.q = out.data() + static_cast<size_t>(row) * q_size;
          args.k = k.data() + static_cast<size_t>(row) * kv_size;
          args.v = args.k;
          args.q_norm = q_norm;
          args.k_norm = k_norm;
          args.v_norm = Norm{nullptr, 1e-6f};
          args.rope = &rope;
          args.tokens = std::span(tokens).subspan(static_cast<size_t>(row), static_cast<size_t>(args.rows));
          args.cache = cache.layer();
          test.device->finish_qkv(args);
        }
        if (first_q.empty()) {
          first_q = out;
          first_cache = cache.bytes(0);
        }
        ASSERT_EQ(out, first_q) << test.name << " in batches of " << count;
        ASSERT_EQ(cache.bytes(0), first_cache) << test.name << " in batches of " << count;
      }
    }
  }
}

std::vector<Case> cases() {
  return {{1, 1, 16, 8},   {4, 2, 64, 32},   {3, 1, 48, 6},  {2, 1, 96, 48},
          {8, 4, 128, 64}, {4, 1, 256, 128}, {8, 1, 512, 64}};
}
template <typename Info>
std::string case_name(const Info& info) {
  return "dim" + std::to_string(std::get<0>(info.param).head_dim) + "_" + test_name(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, FinishQkvOfFloats,
                         testing::Combine(testing::ValuesIn(cases()),
                                          testing::Values(KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16)),
                         [](const auto& info) { return case_name(info); });
INSTANTIATE_TEST_SUITE_P(All, FinishQkv,
                         testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(all_kv_formats())),
                         [](const auto& info) { return case_name(info); });
INSTANTIATE_TEST_SUITE_P(Rotated, FinishQkv,
                         testing::Combine(testing::Values(Case{1, 1, 16, 8}, Case{4, 2, 64, 32}, Case{8, 1, 512, 64}),
                                          testing::ValuesIn(rotated_kv_formats())),
                         [](const auto& info) { return case_name(info); });

// Layers that share another layer's keys and values have queries only.
TEST(FinishQkvOfSharers, LeavesTheCacheAlone) {
  RopeTable rope(32, 16, 1e4, 1);
  const std::vector<TokenRow> tokens = {{0, 7, 0, 8}};
  for (TestDevice& test : all_devices(Precision::kFast)) {
    TestCache cache(KvFormat::kF16, 1, 32);
    cache.add_sequence(0, 8);
    const std::vector<std::byte> before = cache.bytes(0);
    std::vector<float> q = random_floats(2 * 32, 20);
    const std::vector<float> raw = q;
    QkvArgs args;
    args.rows = 1;
    args.heads = 2;
    args.q = q.data();
    args.rope = &rope;
    args.tokens = tokens;
    args.cache = cache.layer();
    test.device->finish_qkv(args);
    EXPECT_EQ(cache.bytes(0), before) << test.name;
    EXPECT_NE(q, raw) << test.name;
  }
}

// Survey: on K=V layers V is the raw projection, normalised without weight and not rotated; K has its own norm.
TEST(FinishQkvOfSharedProjections, ValueIsTheRawKey) {
  RopeTable rope(16, 8, 1e4, 1);
  std::vector<float> raw;
  for (int i = 0; i < 8; ++i) raw.insert(raw.end(), {3, 4});
  for (TestDevice& test : all_devices(Precision::kFast)) {
    std::vector<std::vector<float>> keys;
    for (const float weight : {1.0f, 0.25f}) {
      for (const int64_t position : {0, 41}) {
        const std::vector<float> k_weight(16, weight);
        TestCache cache(KvFormat::kF32, 1, 16);
        cache.add_sequence(0, 64);
        std::vector<float> q = raw;
        const std::vector<TokenRow> tokens = {{0, position, 0, position + 1}};
        QkvArgs args;
        args.rows = 1;
        args.heads = 1;
        args.q = q.data();
        args.k = raw.data();
        args.v = raw.data();
        args.k_norm = {k_weight.data(), 0};
        args.v_norm = Norm{nullptr, 0};
        args.rope = &rope;
        args.tokens = tokens;
        args.cache = cache.layer();
        test.device->finish_qkv(args);
        const std::vector<float> value = cache.get(0, position, CachePart::kValue, 0);
        for (size_t d = 0; d < 16; ++d) EXPECT_NEAR(value[d], d % 2 == 0 ? 0.8485281 : 1.1313708, 2e-7) << test.name;
        keys.push_back(cache.get(0, position, CachePart::kKey, 0));
      }
    }
    for (size_t a = 0; a < keys.size(); ++a) {
      for (size_t b = 0; b < a; ++b) EXPECT_NE(keys[a], keys[b]) << test.name;
    }
  }
}

}  // namespace
}  // namespace carat

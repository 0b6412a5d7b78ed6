// Attention over cached keys: accuracy, which keys are read, and law 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "bounded.h"
#include "test_cache.h"
#include "test_devices.h"
#include "test_weights.h"

namespace carat {
namespace {

/// Fills positions [begin, end) of a sequence with keys and values that depend on their address alone.
void fill(TestCache& cache, int sequence, int64_t begin, int64_t end, uint64_t seed = 0) {
  for (int64_t p = begin; p < end; ++p) {
    for (int h = 0; h < cache.kv_heads(); ++h) {
      const uint64_t key = seed + static_cast<uint64_t>((p * 64 + h) * 64 + sequence) * 2;
      const auto dim = static_cast<size_t>(cache.head_dim());
      cache.set(sequence, p, CachePart::kKey, h, random_floats(dim, key));
      cache.set(sequence, p, CachePart::kValue, h, random_floats(dim, key + 1));
    }
  }
}

/// Where the token's floats begin among the keys that it sees.
int64_t floats_of(const TestCache& cache, const TokenRow& token) {
  return std::clamp(cache.layer().floats_begin(token.position), token.key_begin, token.key_end);
}

/// x -> H x / sqrt(group) of each `group` numbers.
BoundedRow spread(BoundedRow x, size_t group) {
  for (size_t distance = 1; distance < group; distance *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & distance) != 0) continue;
      const Bounded a = x[i], b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a + Bounded{-b.value, b.error};
    }
  }
  const Bounded norm{1 / std::sqrt(static_cast<double>(group)), kUnit};
  for (Bounded& value : x) value = value * norm;
  return x;
}

/// Values as they were before they were rotated or spread (kv_rows.h).
BoundedRow restored(KvFormat format, BoundedRow x) {
  if (format.kind == KvFormat::Kind::kSpread) return spread(std::move(x), format.group);
  if (format.kind != KvFormat::Kind::kRotated) return x;
  const size_t width = x.size();
  x = spread(std::move(x), width);
  for (size_t i = 0; i < width; ++i) x[i] = x[i] * Bounded{kv_signs()[i], 0};
  return x;
}

/// Queries over a cache.
struct Queries {
  int heads = 0;
  float scale = 1;
  std::vector<TokenRow> tokens;
  std::vector<float> q;  // [tokens, heads, head_dim]

  Queries(const TestCache& cache, int heads, float scale, std::vector<TokenRow> tokens)
      : heads(heads), scale(scale), tokens(std::move(tokens)) {
    q = random_floats(this->tokens.size() * row_size(cache), 77);
  }
  size_t row_size(const TestCache& cache) const { return static_cast<size_t>(heads * cache.head_dim()); }

  /// The outputs of `rows` as one batch.
  std::vector<float> run(Device& device, const TestCache& cache, std::span<const int> rows) const {
    std::vector<TokenRow> batch;
    std::vector<float> batch_q;
    const size_t size = row_size(cache);
    for (const int r : rows) {
      batch.push_back(tokens[static_cast<size_t>(r)]);
      const auto begin = q.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * size);
      batch_q.insert(batch_q.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
    }
    std::vector<float> out(batch_q.size());
    AttentionArgs args;
    args.rows = static_cast<int64_t>(rows.size());
    args.heads = heads;
    args.q = batch_q.data();
    args.out = out.data();
    args.scale = scale;
    args.tokens = batch;
    args.cache = cache.layer();
    device.attention(args);
    return out;
  }
  std::vector<float> run(Device& device, const TestCache& cache) const {
    std::vector<int> rows;
    for (size_t r = 0; r < tokens.size(); ++r) rows.push_back(static_cast<int>(r));
    return run(device, cache, rows);
  }

  BoundedRow expect(const TestCache& cache, size_t row, int head) const {
    const TokenRow& token = tokens[row];
    const int kv_head = head / (heads / cache.kv_heads());
    const auto dim = static_cast<size_t>(cache.head_dim());
    const std::span<const float> query =
        std::span(q).subspan(row * row_size(cache) + static_cast<size_t>(head) * dim, dim);
    const int64_t floats = floats_of(cache, token);
    const auto storage = [&](int64_t p) -> const TestCache& { return p < floats ? cache : cache.recent(); };
    const BoundedRow plain = exactly(query);
    const KvFormat k_format = cache.format(CachePart::kKey);
    const bool spreads = k_format.kind == KvFormat::Kind::kSpread;
    const BoundedRow like_keys = spreads ? spread(plain, k_format.group) : plain;
    std::vector<double> scores;
    double score_error = 0;
    for (int64_t p = token.key_begin; p < token.key_end; ++p) {
      const std::vector<float> key = storage(p).get(token.sequence, p, CachePart::kKey, kv_head);
      const BoundedRow& met = p < floats ? like_keys : plain;
      double score = 0;
      double error = 0;
      for (size_t d = 0; d < dim; ++d) {
        score += met[d].value * key[d];
        error += std::abs(met[d].value * key[d]) * (static_cast<double>(dim) + 8) * kUnit;
        error += met[d].error * std::abs(key[d]);
      }
      scores.push_back(score * scale);
      score_error = std::max(score_error, error * std::abs(scale));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    const double smallest = *std::min_element(scores.begin(), scores.end());
    // Of the probabilities: their scores, the difference to the maximum, exp, and the two sums.
    const double relative = kHigherOrders * (4 * score_error + 2 * kUnit * (largest - smallest) +
                                             (2 * static_cast<double>(scores.size()) + 32) * kUnit);
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - largest);
    BoundedRow of_codes(dim), of_floats(dim);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp(scores[i] - largest) / sum;
      const int64_t position = token.key_begin + static_cast<int64_t>(i);
      const std::vector<float> value = storage(position).get(token.sequence, position, CachePart::kValue, kv_head);
      BoundedRow& out = position < floats ? of_codes : of_floats;
      for (size_t d = 0; d < dim; ++d) {
        out[d].value += p * value[d];
        out[d].error += relative * p * std::abs(double{value[d]});
      }
    }
    BoundedRow out = restored(cache.format(CachePart::kValue), std::move(of_codes));
    for (size_t d = 0; d < dim; ++d) {
      out[d].value += of_floats[d].value;
      out[d].error += of_floats[d].error;
    }
    return out;
  }
};

void check(const TestCache& cache, const Queries& queries, std::span<const size_t> rows) {
  std::map<std::pair<size_t, int>, BoundedRow> expected;
  for (const size_t row : rows) {
    for (int head = 0; head < queries.heads; ++head) expected[{row, head}] = queries.expect(cache, row, head);
  }
  for (TestDevice& test : all_devices(Precision::kFast)) {
    SCOPED_TRACE(test.name);
    test.device->reserve(static_cast<int64_t>(queries.tokens.size()));
    const std::vector<float> out = queries.run(*test.device, cache);
    for (const auto& [key, want] : expected) {
      const float* got = out.data() + key.first * queries.row_size(cache) +
                         static_cast<size_t>(key.second) * static_cast<size_t>(cache.head_dim());
      for (size_t d = 0; d < want.size(); ++d) {
        const double allowed = test.is_reference ? kUnit * std::abs(want[d].value) + 1e-12
                                                 : want[d].error + kUnit * std::abs(want[d].value);
        ASSERT_NEAR(got[d], want[d].value, allowed) << "row " << key.first << ", head " << key.second << ", dim " << d;
      }
    }
  }
}

std::vector<size_t> all_rows(const Queries& queries) {
  std::vector<size_t> rows;
  for (size_t r = 0; r < queries.tokens.size(); ++r) rows.push_back(r);
  return rows;
}

class Heads : public testing::TestWithParam<std::tuple<int, KvFormats>> {};

TEST_P(Heads, OfEverySizeAndSharing) {
  const auto [head_dim, format] = GetParam();
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {6, 6}, {6, 2}, {8, 1}, {10, 2}, {14, 2}, {16, 1}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads over " + std::to_string(kv_heads));
    TestCache cache(format, kv_heads, head_dim);
    const int first = cache.add_sequence(0, 70);
    const int second = cache.add_sequence(0, 9);
    fill(cache, first, 0, 70);
    fill(cache, second, 0, 9);
    const Queries queries(cache, heads, 1 / std::sqrt(static_cast<float>(head_dim)),
                          {{first, 69, 0, 70}, {second, 8, 0, 9}, {first, 68, 60, 69}, {second, 0, 0, 1}});
    check(cache, queries, all_rows(queries));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rotated, Heads, testing::Combine(testing::Values(16, 32, 64, 256, 512), testing::ValuesIn(rotated_kv_formats())),
    [](const auto& info) {
      return "dim" + std::to_string(std::get<0>(info.param)) + "_" + test_name(std::get<1>(info.param));
    });
INSTANTIATE_TEST_SUITE_P(All, Heads,
                         testing::Combine(testing::Values(16, 32, 48, 64, 80, 96, 128, 256, 512),
                                          testing::ValuesIn(all_kv_formats())),
                         [](const auto& info) {
                           return "dim" + std::to_string(std::get<0>(info.param)) + "_" +
                                  test_name(std::get<1>(info.param));
                         });

class Attention : public testing::TestWithParam<KvFormats> {};
INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(all_kv_formats()),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Rotated, Attention, testing::ValuesIn(rotated_kv_formats()),
                         [](const auto& info) { return test_name(info.param); });

// Everything outside [begin, end) is NaN, or not there at all: one read beyond the range poisons the result.
TEST_P(Attention, RangesBeginAndEndAnywhere) {
  const int64_t edges[] = {0, 1, 5, 15, 16, 31, 63, 64, 65, 127, 128, 200, 255, 256, 257, 300, 511, 512, 513, 700};
  for (const int64_t begin : edges) {
    TestCache cache(GetParam(), 1, 32);
    std::vector<TokenRow> tokens;
    for (const int64_t end : edges) {
      if (end <= begin) continue;
      const int sequence = cache.add_sequence(begin, end);
      fill(cache, sequence, begin, end);
      tokens.push_back({sequence, end - 1, begin, end});
    }
    if (tokens.empty()) continue;
    const Queries queries(cache, 2, 0.25f, tokens);
    check(cache, queries, all_rows(queries));
  }
}

TEST_P(Attention, QueriesOfOneSequenceSeeDifferentRanges) {
  TestCache cache(GetParam(), 2, 64);
  const int sequence = cache.add_sequence(0, 400);
  fill(cache, sequence, 0, 400);
  std::vector<TokenRow> tokens;
  for (int64_t p = 330; p < 400; ++p) tokens.push_back({sequence, p, std::max<int64_t>(0, p - 99), p + 1});
  tokens.push_back({sequence, 100, 20, 380});  // bidirectional: keys after the query
  tokens.push_back({sequence, 3, 3, 5});
  const Queries queries(cache, 4, 0.125f, tokens);
  check(cache, queries, all_rows(queries));
}

TEST_P(Attention, RingsWrapAround) {
  constexpr int64_t kWindow = 100;
  constexpr int64_t kRing = 3;  // 192 positions: the window, and what a batch writes ahead of it
  TestCache cache(GetParam(), 1, 64);
  const int sequence = cache.add_ring(kRing);
  std::vector<TokenRow> tokens;
  for (const int64_t p : {1000, 1023, 1024, 1025, 1087}) tokens.push_back({sequence, p, p - kWindow + 1, p + 1});
  const Queries queries(cache, 2, 0.125f, tokens);
  fill(cache, sequence, 1000 - kWindow + 1, 1088);
  check(cache, queries, all_rows(queries));

  // The same keys in a table without end give the same bits.
  TestCache flat(GetParam(), 1, 64);
  flat.add_sequence(1000 - kWindow + 1, 1088);
  fill(flat, sequence, 1000 - kWindow + 1, 1088);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    EXPECT_EQ(queries.run(*test.device, cache), queries.run(*test.device, flat)) << test.name;
  }
}

// Survey: a window of 4 at position 5 sees exactly 2..5.
TEST_P(Attention, WindowEdge) {
  for (TestDevice& test : all_devices(Precision::kFast)) {
    std::vector<std::vector<float>> results;
    for (const int64_t changed : {-1, 0, 1, 2, 5, 6}) {
      TestCache cache(GetParam(), 1, 16);
      cache.add_sequence(0, 8);
      fill(cache, 0, 0, 8);
      if (changed >= 0) fill(cache, 0, changed, changed + 1, 12345);
      results.push_back(Queries(cache, 1, 1, {{0, 5, 2, 6}}).run(*test.device, cache));
    }
    EXPECT_EQ(results[1], results[0]) << test.name;
    EXPECT_EQ(results[2], results[0]) << test.name;
    EXPECT_NE(results[3], results[0]) << test.name;
    EXPECT_NE(results[4], results[0]) << test.name;
    EXPECT_EQ(results[5], results[0]) << test.name;
  }
}

TEST_P(Attention, KeysOutsideTheRangeDoNotMatterToTheBit) {
  TestCache poisoned(GetParam(), 2, 128);
  TestCache full(GetParam(), 2, 128);
  for (TestCache* cache : {&poisoned, &full}) {
    cache->add_sequence(0, 640);
    if (cache == &full) fill(*cache, 0, 0, 640, 999);
    fill(*cache, 0, 70, 501);
  }
  const Queries queries(full, 4, 0.1f, {{0, 500, 70, 501}, {0, 300, 299, 301}, {0, 71, 70, 72}, {0, 400, 255, 257}});
  for (TestDevice& test : all_devices(Precision::kFast)) {
    EXPECT_EQ(queries.run(*test.device, poisoned), queries.run(*test.device, full)) << test.name;
  }
}

/// A stored value, not rotated or spread.
std::vector<float> value_of(const TestCache& cache, int64_t position) {
  std::vector<float> value = cache.get(0, position, CachePart::kValue, 0);
  const KvFormat format = cache.format(CachePart::kValue);
  if (format.kind == KvFormat::Kind::kRotated) rotate_kv_head(value, true);
  if (format.kind == KvFormat::Kind::kSpread) spread_kv_groups(value, format.group);
  return value;
}

// Codes before the border and floats from it on; whatever else either storage has is NaN.
class RecentPositions : public testing::TestWithParam<KvFormats> {
 protected:
  int64_t border(int64_t position) const {  // in the words of the documentation
    int64_t border = 0;
    while (border + 256 <= position + 1 - GetParam().recent) border += 256;
    return border;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RecentPositions, testing::ValuesIn(recent_kv_formats()),
                         [](const auto& info) { return test_name(info.param); });

TEST_P(RecentPositions, AreReadAsFloatsAndAllOthersAsCodes) {
  for (const int64_t p : {0, 1, 99, 100, 255, 256, 257, 354, 355, 356, 510, 511, 512, 513, 600, 767, 768}) {
    TestCache cache(GetParam(), 2, 64);
    const int sequence = cache.add_sequence(0, p + 1);
    fill(cache, sequence, 0, border(p));
    fill(cache.recent(), sequence, border(p), p + 1, 7000);
    const Queries queries(cache, 4, 0.125f, {{sequence, p, 0, p + 1}});
    check(cache, queries, all_rows(queries));
  }
}

// Rows of one batch on either side of a border, rows that see keys after themselves, and rows that see little.
TEST_P(RecentPositions, BeginAnewForEachRow) {
  TestCache cache(GetParam(), 1, 64);
  constexpr int64_t kLength = 800;
  const int sequence = cache.add_sequence(0, kLength);
  fill(cache, sequence, 0, kLength);
  fill(cache.recent(), sequence, 0, kLength, 7000);
  std::vector<TokenRow> tokens;
  for (int64_t p = 480; p < 790; p += 3) tokens.push_back({sequence, p, 0, p + 1});
  for (const int64_t p : {300, 510, 511, 512, 620}) tokens.push_back({sequence, p, 0, p + 150});
  for (const int64_t p : {300, 511, 620, 799}) tokens.push_back({sequence, p, p - 20, p + 1});
  const Queries queries(cache, 4, 0.125f, tokens);
  check(cache, queries, all_rows(queries));
}

TEST_P(RecentPositions, AreTheSameBitsInARingOnAnyDeviceAndInAnyBatch) {
  constexpr int64_t kLength = 1100;
  constexpr int64_t kFirst = kLength - 60;
  constexpr int64_t kRing = 6;  // blocks that hold what the rows from kFirst on see of floats
  TestCache ring(GetParam(), 2, 64), flat(GetParam(), 2, 64);
  ring.add_sequence_with_ring(kLength, kRing);
  flat.add_sequence(0, kLength);
  fill(ring, 0, 0, kLength);
  fill(flat, 0, 0, kLength);
  ASSERT_LE(kLength - border(kFirst), kRing * kKvBlock);
  fill(ring.recent(), 0, border(kFirst), kLength, 7000);
  fill(flat.recent(), 0, 0, kLength, 7000);
  std::vector<TokenRow> tokens;
  for (int64_t p = kFirst; p < kLength; ++p) tokens.push_back({0, p, 0, p + 1});
  const Queries queries(flat, 4, 0.125f, tokens);
  const TestDevice one = cpu_device(supported_isas().back(), Precision::kFast, 1);
  const std::vector<float> expected = queries.run(*one.device, flat);
  const size_t size = queries.row_size(flat);
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 4}) {
      const TestDevice test = cpu_device(isa, Precision::kFast, threads);
      EXPECT_EQ(queries.run(*test.device, ring), expected) << test.name;
      for (const size_t count : {1u, 3u, 8u}) {
        for (size_t begin = 0; begin + count <= tokens.size(); begin += 13) {
          std::vector<int> rows;
          for (size_t i = 0; i < count; ++i) rows.push_back(static_cast<int>(begin + i));
          const std::vector<float> got = queries.run(*test.device, ring, rows);
          ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin * size)))
              << test.name << ", " << count << " rows from " << begin;
        }
      }
    }
  }
}

// Where all positions are recent, codes are never looked at.
TEST_P(RecentPositions, OfEverythingAreAsIfNothingWereCoded) {
  KvFormats formats = GetParam();
  formats.recent = 600;
  TestCache coded(formats, 2, 64);
  coded.add_sequence(0, 600);
  TestCache& plain = coded.recent();
  fill(plain, 0, 0, 600);
  std::vector<TokenRow> tokens;
  for (int64_t p = 0; p < 600; p += 7) tokens.push_back({0, p, 0, p + 1});
  const Queries queries(coded, 4, 0.125f, tokens);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    EXPECT_EQ(queries.run(*test.device, coded), queries.run(*test.device, plain)) << test.name;
  }
}

// exp must neither overflow nor lose everything: scores of +-1e4, and equal scores.
TEST_P(Attention, ExtremeScores) {
  TestCache cache(GetParam(), 1, 16);
  cache.add_sequence(0, 300);
  fill(cache, 0, 0, 300);
  for (TestDevice& test : all_devices(Precision::kFast)) {
    SCOPED_TRACE(test.name);
    const std::vector<float> sharp = Queries(cache, 1, 1e4f, {{0, 299, 0, 300}}).run(*test.device, cache);
    bool is_a_value = false;  // all the weight lies on one key
    for (int64_t p = 0; p < 300; ++p) {
      const std::vector<float> value = value_of(cache, p);
      is_a_value |= std::equal(value.begin(), value.end(), sharp.begin(),
                               [](float a, float b) { return std::abs(a - b) <= 16 * kUnit; });
    }
    EXPECT_TRUE(is_a_value);

    const std::vector<float> even = Queries(cache, 1, 0.0f, {{0, 299, 0, 300}}).run(*test.device, cache);
    for (size_t d = 0; d < 16; ++d) {
      double mean = 0;
      for (int64_t p = 0; p < 300; ++p) mean += value_of(cache, p)[d] / 300.0;
      EXPECT_NEAR(even[d], mean, 300 * kUnit * 3);
    }
  }
}

TEST_P(Attention, SameBitsInEveryBatch) {
  for (const auto& [heads, kv_heads, head_dim] : {std::tuple{4, 2, 64}, {8, 1, 256}, {2, 2, 48}, {16, 1, 32}}) {
    SCOPED_TRACE(head_dim);
    if (head_dim == 48 && GetParam().v.kind == KvFormat::Kind::kRotated) continue;
    constexpr int kRows = 130;
    TestCache cache(GetParam(), kv_heads, head_dim);
    const int lengths[] = {330, 40, 129};
    for (const int length : lengths) fill(cache, cache.add_sequence(0, length), 0, length);
    Random random(5);
    std::vector<TokenRow> tokens;
    while (tokens.size() < kRows) {
      const int sequence = random.below(3);
      const int64_t position = random.below(lengths[sequence]);
      const int64_t begin = random.below(2) == 0 ? 0 : random.below(static_cast<int>(position) + 1);
      tokens.push_back({sequence, position, begin, position + 1});
    }
    const Queries queries(cache, heads, 0.2f, tokens);
    const size_t size = queries.row_size(cache);
    std::vector<float> expected;
    const TestDevice one = cpu_device(supported_isas().back(), Precision::kFast, 1);
    for (int r = 0; r < kRows; ++r) {
      const std::vector<float> row = queries.run(*one.device, cache, {&r, 1});
      expected.insert(expected.end(), row.begin(), row.end());
    }
    for (const Isa isa : supported_isas()) {
      for (const int threads : {1, 2, 3}) {
        for (const Precision precision : {Precision::kExact, Precision::kFast}) {
          const TestDevice test = cpu_device(isa, precision, threads);
          for (const int count : {2, 5, 17, 33, kRows}) {
            std::vector<int> rows;
            for (int i = 0; i < count; ++i) rows.push_back((count * 31 + i * 7) % kRows);
            const std::vector<float> got = queries.run(*test.device, cache, rows);
            for (size_t i = 0; i < rows.size(); ++i) {
              ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(i * size),
                                     got.begin() + static_cast<std::ptrdiff_t>((i + 1) * size),
                                     expected.begin() + rows[i] * static_cast<std::ptrdiff_t>(size)))
                  << test.name << ", row " << i << " of " << count;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace carat

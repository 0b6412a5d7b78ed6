// Attention: what enters the cache, and what a query reads from it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "compute/reference/reference_math.h"
#include "compute/reference/reference_operations.h"

namespace carat::reference {
namespace {

enum class Part { kKey = 0, kValue = 1 };

/// Where one head's key or value at a position is stored.
std::byte* cache_row(const KvLayer& cache, int sequence, int64_t position, Part part, int kv_head) {
  const KvSequence& storage = cache.sequences[static_cast<size_t>(sequence)];
  return storage.blocks[(position / kKvBlock) % storage.ring] +
         (part == Part::kKey ? cache.k_offset(kv_head, position) : cache.v_offset(kv_head, position));
}

void write_cache(KvFormat format, std::span<const double> x, std::byte* row) {
  const std::vector<float> single(x.begin(), x.end());
  store_kv_row(single, format, row);
}

void read_cache(KvFormat format, const std::byte* row, std::span<double> x) {
  std::vector<float> single(x.size());
  load_kv_row(row, format, single);
  std::copy(single.begin(), single.end(), x.begin());
}

/// x -> H x / sqrt(group) for each `group` numbers.
void spread(std::span<double> x, size_t group) {
  for (size_t distance = 1; distance < group; distance *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & distance) != 0) continue;
      const double a = x[i];
      const double b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  for (double& value : x) value /= std::sqrt(static_cast<double>(group));
}

/// Undoes what was done to values before they were stored (kv_rows.h).
void restore(KvFormat format, std::span<double> x) {
  if (format.kind == KvFormat::Kind::kSpread) spread(x, format.group);
  if (format.kind != KvFormat::Kind::kRotated) return;
  spread(x, x.size());
  const float* signs = kv_signs();
  for (size_t i = 0; i < x.size(); ++i) x[i] *= signs[i];
}

/// Rotates the pairs (i, i + head_dim / 2) by position * frequency(i).
void rotate(std::span<double> x, const RopeTable& rope, int64_t position) {
  const size_t half = x.size() / 2;
  for (int i = 0; i < rope.pairs(); ++i) {
    const double angle = static_cast<double>(position) * rope.frequency(i);
    double& a = x[static_cast<size_t>(i)];
    double& b = x[static_cast<size_t>(i) + half];
    const double rotated = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = rotated;
  }
}

/// softmax(scale * q k^T) v over the keys that `token` sees: as codes up to where its floats begin, as floats from
/// there on.
std::vector<double> attend(std::span<const double> q, double scale, const KvLayer& cache, const TokenRow& token,
                           int kv_head) {
  const KvLayer recent = cache.recent_layer();
  const int64_t floats = std::clamp(cache.floats_begin(token.position), token.key_begin, token.key_end);
  std::vector<double> key_or_value(q.size());
  std::vector<double> weights;
  const auto score = [&](const KvLayer& storage, int64_t begin, int64_t end) {
    std::vector<double> query(q.begin(), q.end());
    if (storage.k_format.kind == KvFormat::Kind::kSpread) spread(query, storage.k_format.group);
    for (int64_t p = begin; p < end; ++p) {
      read_cache(storage.k_format, cache_row(storage, token.sequence, p, Part::kKey, kv_head), key_or_value);
      weights.push_back(scale * std::inner_product(query.begin(), query.end(), key_or_value.begin(), 0.0));
    }
  };
  score(cache, token.key_begin, floats);
  score(recent, floats, token.key_end);
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);

  std::vector<double> out(q.size());
  const auto weigh = [&](const KvLayer& storage, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      read_cache(storage.v_format, cache_row(storage, token.sequence, p, Part::kValue, kv_head), key_or_value);
      const double weight = weights[static_cast<size_t>(p - token.key_begin)] / sum;
      for (size_t d = 0; d < out.size(); ++d) out[d] += weight * key_or_value[d];
    }
    restore(storage.v_format, out);
  };
  weigh(cache, token.key_begin, floats);
  weigh(recent, floats, token.key_end);
  return out;
}

}  // namespace

void finish_qkv(const QkvArgs& args) {
  const int head_dim = args.cache.head_dim;
  const int kv_heads = args.cache.kv_heads;
  Rows q(args.q, args.rows * args.heads, head_dim);
  for (int64_t i = 0; i < q.count(); ++i) {
    normalise(q[i], args.q_norm);
    rotate(q[i], *args.rope, args.tokens[static_cast<size_t>(i / args.heads)].position);
  }
  store(q.all(), args.q);
  if (args.k == nullptr) return;

  Rows k(args.k, args.rows * kv_heads, head_dim);
  Rows v(args.v, args.rows * kv_heads, head_dim);
  for (int64_t i = 0; i < k.count(); ++i) {
    const TokenRow& token = args.tokens[static_cast<size_t>(i / kv_heads)];
    const int kv_head = static_cast<int>(i % kv_heads);
    normalise(k[i], args.k_norm);
    rotate(k[i], *args.rope, token.position);
    if (args.v_norm) normalise(v[i], *args.v_norm);
    const auto write = [&](const KvLayer& storage) {
      write_cache(storage.k_format, k[i], cache_row(storage, token.sequence, token.position, Part::kKey, kv_head));
      write_cache(storage.v_format, v[i], cache_row(storage, token.sequence, token.position, Part::kValue, kv_head));
    };
    write(args.cache);
    if (args.cache.recent.positions > 0) write(args.cache.recent_layer());
  }
}

void attention(const AttentionArgs& args) {
  const int head_dim = args.cache.head_dim;
  const Rows q(args.q, args.rows * args.heads, head_dim);
  for (int64_t i = 0; i < q.count(); ++i) {
    const TokenRow& token = args.tokens[static_cast<size_t>(i / args.heads)];
    const int kv_head = static_cast<int>(i % args.heads) * args.cache.kv_heads / args.heads;
    store(attend(q[i], args.scale, args.cache, token, kv_head), args.out + i * head_dim);
  }
}

}  // namespace carat::reference

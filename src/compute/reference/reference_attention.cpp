// Attention: what enters the cache, and what a query reads from it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/half.h"
#include "compute/reference/reference_math.h"
#include "compute/reference/reference_operations.h"

namespace carat::reference {
namespace {

enum class Part { kKey = 0, kValue = 1 };

/// Where one head's key or value at a position is stored.
std::byte* cache_row(const KvLayer& cache, int sequence, int64_t position, Part part, int kv_head) {
  const KvSequence& storage = cache.sequences[static_cast<size_t>(sequence)];
  std::byte* block = storage.blocks[(position / kKvBlock) % storage.ring];
  const int64_t row = (static_cast<int64_t>(part) * cache.kv_heads + kv_head) * kKvBlock + position % kKvBlock;
  return block + static_cast<size_t>(row * cache.head_dim) * kv_element_bytes(cache.format);
}

void write_cache(KvFormat format, std::span<const double> x, std::byte* row) {
  for (const double value : x) {
    const auto single = static_cast<float>(value);
    const uint16_t half = format == KvFormat::kF16 ? f32_to_f16(single) : f32_to_bf16(single);
    if (format == KvFormat::kF32) {
      std::memcpy(row, &single, sizeof single);
    } else {
      std::memcpy(row, &half, sizeof half);
    }
    row += kv_element_bytes(format);
  }
}

void read_cache(KvFormat format, const std::byte* row, std::span<double> x) {
  for (double& value : x) {
    if (format == KvFormat::kF32) {
      float single;
      std::memcpy(&single, row, sizeof single);
      value = single;
    } else {
      uint16_t half;
      std::memcpy(&half, row, sizeof half);
      value = format == KvFormat::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    row += kv_element_bytes(format);
  }
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

/// softmax(scale * q k^T) v over the keys that `token` sees.
std::vector<double> attend(std::span<const double> q, double scale, const KvLayer& cache, const TokenRow& token,
                           int kv_head) {
  std::vector<double> key_or_value(q.size());
  std::vector<double> weights;
  for (int64_t p = token.key_begin; p < token.key_end; ++p) {
    read_cache(cache.format, cache_row(cache, token.sequence, p, Part::kKey, kv_head), key_or_value);
    weights.push_back(scale * std::inner_product(q.begin(), q.end(), key_or_value.begin(), 0.0));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);

  std::vector<double> out(q.size());
  for (int64_t p = token.key_begin; p < token.key_end; ++p) {
    read_cache(cache.format, cache_row(cache, token.sequence, p, Part::kValue, kv_head), key_or_value);
    const double weight = weights[static_cast<size_t>(p - token.key_begin)] / sum;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * key_or_value[d];
  }
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
    write_cache(args.cache.format, k[i], cache_row(args.cache, token.sequence, token.position, Part::kKey, kv_head));
    write_cache(args.cache.format, v[i], cache_row(args.cache, token.sequence, token.position, Part::kValue, kv_head));
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

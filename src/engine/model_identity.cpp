#include "engine/model_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/digest.h"

namespace carat {
namespace {

/// Raised when the same files give other keys and values than before: other sums, other codes, other scales.
constexpr int kArithmetic = 2;
constexpr int64_t kSample = 64;

void add(Digest& digest, const std::string& text) {
  digest.update(std::as_bytes(std::span(text)));
}

std::string rope_text(const RopeConfig& rope) {
  return fmt::format("{} {} {} {}", static_cast<int>(rope.type), rope.theta, rope.partial, rope.factor);
}

std::string config_text(const ModelConfig& c) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} [{}] [{}] {} {} {} {} {} {}\n", static_cast<int>(c.family),
                                 c.hidden, c.heads, c.vocab, c.window, c.attention_scale, c.norm_eps, c.norm_plus_one,
                                 rope_text(c.rope_sliding), rope_text(c.rope_full), c.kv_shared_layers, c.pli_width,
                                 c.pli_vocab, c.experts, c.experts_per_token, c.expert_width);
  for (const AttentionConfig& layer : c.layers) {
    text += fmt::format("{} {} {} {}\n", static_cast<int>(layer.kind), layer.head_dim, layer.kv_heads, layer.k_eq_v);
  }
  return text + fmt::format("{}\n", fmt::join(c.mlp_width, " "));
}

void add_sample(Digest& digest, const Matrix& matrix) {
  const int64_t bytes = matrix.rows * static_cast<int64_t>(matrix.row_bytes);
  if (matrix.data == nullptr || bytes == 0) return;
  const int64_t count = std::min(kSample, bytes);
  digest.update({matrix.data + (bytes - count) / 2, static_cast<size_t>(count)});
}

}  // namespace

std::string model_identity(const Checkpoint& checkpoint, Precision precision, std::string_view adapter) {
  Digest digest = Digest::sha256();
  add(digest, fmt::format("{}\n", kArithmetic));
  add(digest, config_text(checkpoint.config()));
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.canonical.empty()) continue;
    add(digest,
        fmt::format("{} {} [{}] {}\n", tensor.canonical, tensor.format, fmt::join(tensor.shape, ","), tensor.bytes));
    if (const auto matrix = checkpoint.matrix(tensor.canonical)) add_sample(digest, *matrix);
    if (const auto stack = checkpoint.stack(tensor.canonical)) add_sample(digest, stack->all);
  }
  std::string identity = fmt::format("carat {}, {}, {}", CARAT_VERSION,
                                     precision == Precision::kExact ? "exact" : "fast", digest.finish());
  if (!adapter.empty()) identity += fmt::format(", adapter {}", adapter);
  return identity;
}

}  // namespace carat

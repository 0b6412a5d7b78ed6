#include "engine/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "base/search.h"
#include "checkpoint/tensor_names.h"
#include "engine/cached_sequence.h"
#include "model/cache_spec.h"
#include "model/kv_choice.h"

namespace carat {
namespace {

// Measured on x86-64 with glibc: `carat generate` on a model of a tenth of a megabyte, less what the plan counts.
constexpr size_t kProcess = 14'700'000;
// Of a vocabulary of Gemma's with its merges, in the tables that encode with it.
constexpr size_t kTokenizerBytesPerPiece = 46;
// The system maps the neighbours of a page that is touched, as far as they are cached.
constexpr double kFaultAround = 65536.0;

size_t product(int64_t a, int64_t b, size_t c = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * c;
}

/// Different tokens in a text of `length`, as English and Markdown have them (Heaps' law).
int64_t different_tokens(int64_t length, int64_t vocab) {
  const auto law = static_cast<int64_t>(6.0 * std::pow(static_cast<double>(length), 0.62));
  return std::min({length, law, vocab});
}

/// Memory that `tokens` different rows of a table bring in, spread as evenly as a vocabulary's.
size_t touched(const TensorInfo& table, int64_t tokens) {
  const auto bytes = static_cast<double>(table.bytes);
  const double row = bytes / static_cast<double>(std::max<int64_t>(1, table.shape.front()));
  const double neighbourhoods = std::max(1.0, bytes / kFaultAround);
  const double touches = static_cast<double>(tokens) * (1.0 + row / kFaultAround);
  return static_cast<size_t>(bytes * -std::expm1(-touches / neighbourhoods));
}

/// The buffers of Model and of the CPU backend, as far as prompts read in batches of `rows` rows touch them: behind the
/// last layer that owns keys and values only the row that wants logits goes on.
size_t activation_bytes(const ModelConfig& c, const ModelPlan& plan, int64_t rows, Precision precision) {
  int64_t head_width = 0;
  int64_t kv_width = 0;
  int64_t mlp_width = 0;
  for (int i = 0; i <= plan.last_owner; ++i) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    kv_width = std::max(kv_width, int64_t{layer.kv_heads} * layer.head_dim);
    if (i == plan.last_owner) continue;
    head_width = std::max(head_width, int64_t{c.heads} * layer.head_dim);
    mlp_width = std::max(mlp_width, int64_t{layer.mlp_width});
  }
  const int64_t hidden = c.hidden;
  const int64_t pli = int64_t{plan.last_owner} * c.pli_width;
  // x, gathered, normed, projected; q, attended; k, v; activated; per-layer inputs.
  size_t bytes = product(rows, 4 * hidden + 2 * head_width + 2 * kv_width + mlp_width + pli, sizeof(float));
  if (c.has_moe()) {
    const int64_t pairs = rows * c.experts_per_token;
    bytes += product(rows, hidden + c.experts, sizeof(float)) + product(pairs, hidden + c.expert_width, sizeof(float));
  }
  // Activations as integers: two planes of bytes and one of 16 bits, sums of groups; tiles for the matrix kernels.
  const int64_t widest = std::max({hidden, head_width, mlp_width});
  if (precision == Precision::kFast) bytes += product(rows, widest, 4 + 4) + product(rows, widest / 32, 8);
  // Logits; candidates of the sampler.
  return bytes + product(c.vocab, 1, sizeof(float) + 8);
}

}  // namespace

size_t adapter_scratch_bytes(int64_t rows, int rank) {
  // A x of the projections that are computed together: queries, keys and values at most.
  return product(rows, 3, static_cast<size_t>(rank) * sizeof(float));
}

MemoryPlan plan_memory(const Checkpoint& checkpoint, const MemoryRequest& request) {
  const ModelConfig& c = checkpoint.config();
  const ModelPlan plan = make_plan(c);
  MemoryPlan memory;
  memory.mapped = checkpoint.bytes_on_disk();
  size_t tensors = 0;
  const int64_t tokens = different_tokens(request.context, c.vocab);
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    tensors += tensor.bytes;
    if (tensor.canonical.empty() || tensor.shape.empty()) continue;
    const bool by_rows = is_read_by_row(c, tensor.canonical);
    (by_rows ? memory.rows : memory.weights) += by_rows ? touched(tensor, tokens) : tensor.bytes;
  }
  memory.headers = memory.mapped - std::min(memory.mapped, tensors);
  memory.tokenizer = product(c.vocab, 1, kTokenizerBytesPerPiece);
  const int64_t rows = std::min<int64_t>(request.options.chunk, std::max<int64_t>(request.context, 1));
  int rank = 0;
  for (const AdapterSize& adapter : request.adapters) {
    memory.adapters += adapter.bytes;
    rank += adapter.rank;
  }
  memory.activations = activation_bytes(c, plan, rows, request.options.precision) + adapter_scratch_bytes(rows, rank);
  const KvChoice choice = kv_choice_for(request.options, checkpoint);
  const KvCacheSpec spec = make_cache_spec(c, plan, choice, request.options.chunk);
  memory.kv_per_sequence = KvCache::bytes_taken(spec, request.context, 1);
  memory.kv = KvCache::bytes_taken(spec, request.context, request.sequences);
  for (size_t i = 0; i < plan.owners.size(); ++i) {
    if (spec.layers[i].window == 0) memory.kv_per_token += kv_bytes_per_position(choice, plan, plan.owners[i]);
  }
  memory.prefix_cache = request.options.prefix_cache_bytes.value_or(default_prefix_cache_bytes());
  memory.process = kProcess;
  return memory;
}

int64_t longest_context(const Checkpoint& checkpoint, MemoryRequest request, size_t memory) {
  return largest(checkpoint.config().max_positions, [&](int64_t context) {
    request.context = context;
    return plan_memory(checkpoint, request).peak() <= memory;
  });
}

int64_t most_sequences(const Checkpoint& checkpoint, MemoryRequest request, size_t memory) {
  constexpr int64_t kMost = 65536;
  return largest(kMost, [&](int64_t sequences) {
    request.sequences = sequences;
    return plan_memory(checkpoint, request).peak() <= memory;
  });
}

}  // namespace carat

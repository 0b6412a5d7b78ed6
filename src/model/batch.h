// The flat list of rows that one forward computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace carat {

class Adapter;

/// One row: a token, or a row of embeddings, of one sequence. Its position is the sequence's length when the batch
/// starts plus the number of earlier rows of the same sequence in the batch.
struct BatchRow {
  int sequence = 0;
  int token = 0;                // also names the row of the per-layer embedding table
  int64_t embedding = -1;       // >= 0: row of Batch::embeddings that replaces the token's embedding
  bool mask_per_layer = false;  // the per-layer input uses token 0 (soft tokens of images and audio)
  bool wants_logits = false;
  bool wants_taps = false;
  // Rows with the same span (in absolute positions) see each other whatever their order; empty for causal rows. A span
  // must lie inside one batch.
  int64_t span_begin = 0;
  int64_t span_end = 0;
  int adapter = -1;  // index into Batch::adapters; -1: the model as it is
};

/// Rows of one sequence are consecutive. Prefill, chunked prefill, decode, mixtures of them over many sequences, and
/// verification of drafts are all batches; nothing else distinguishes them.
struct Batch {
  std::vector<BatchRow> rows;
  std::span<const float> embeddings;     // [n, hidden], unscaled: multiplied by sqrt(hidden) like table rows
  std::vector<const Adapter*> adapters;  // of the model that computes the batch; must outlive the forward
  std::vector<int> taps;  // layers whose output residual is wanted, ascending; layer_count() is after the final norm

  void add(int sequence, std::span<const int> tokens, bool logits_of_last, int adapter = -1) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      rows.push_back({.sequence = sequence,
                      .token = tokens[i],
                      .wants_logits = logits_of_last && i + 1 == tokens.size(),
                      .adapter = adapter});
    }
  }
};

/// What a forward returns, in host memory, reused from call to call.
struct ForwardResult {
  std::vector<float> logits;             // [rows that want logits, vocab], in batch order
  std::vector<std::vector<float>> taps;  // per tap: [rows that want taps, hidden]
};

}  // namespace carat

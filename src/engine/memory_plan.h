// What a model takes of the memory, before it is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "carat/options.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/checkpoint.h"

namespace carat {

struct MemoryRequest {
  int64_t context = 0;                     // tokens of each sequence
  int64_t sequences = 1;                   // at once
  EngineOptions options;                   // kv, precision, chunk, prefix_cache_bytes
  std::vector<AdapterSize> adapters = {};  // that every token uses together
};

/// Bytes. What is mapped from files is counted where it is read: the system can take such pages back, but reads them
/// again for the next token.
struct MemoryPlan {
  size_t mapped = 0;   // files of the model, whole
  size_t weights = 0;  // of them: what is read for every token
  size_t rows = 0;     // of them: what the tokens of one context touch of tables that are read by rows
  size_t headers = 0;  // of them: names, shapes and vocabulary
  size_t tokenizer = 0;
  size_t adapters = 0;     // as they are loaded, not in their files
  size_t activations = 0;  // of a forward: residual stream, projections, scratch of the kernels, logits
  size_t kv_per_sequence = 0;
  size_t kv_per_token = 0;  // of one more token where rings are full: growing layers alone
  size_t kv = 0;            // of all sequences, in the slabs in which a cache takes memory
  size_t prefix_cache = 0;  // when it is full
  size_t process = 0;       // the program itself, its libraries, stacks and heap: a constant

  /// Of one process, at the end of `sequences` contexts.
  size_t peak() const {
    return weights + rows + headers + tokenizer + adapters + activations + kv + prefix_cache + process;
  }
};

/// What a forward of `rows` rows takes beside its other buffers while adapters up to that rank correct it.
size_t adapter_scratch_bytes(int64_t rows, int rank);

/// Looks at headers alone. Throws Error for a format that the model's heads do not fit.
MemoryPlan plan_memory(const Checkpoint& checkpoint, const MemoryRequest& request);

/// The longest context, at most the model's, with which the request's peak stays within `memory`; 0 when none does.
int64_t longest_context(const Checkpoint& checkpoint, MemoryRequest request, size_t memory);
/// The most sequences of the request's context; 0 when not even one fits.
int64_t most_sequences(const Checkpoint& checkpoint, MemoryRequest request, size_t memory);

}  // namespace carat

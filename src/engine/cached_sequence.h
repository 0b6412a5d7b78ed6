// The sequence that is being continued, and the prefixes kept for others.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_file.h"
#include "cache/kv_cache.h"
#include "cache/prefix_tree.h"

namespace carat {

/// A tenth of the memory, at most 1 GiB.
size_t default_prefix_cache_bytes();

/// One sequence of the cache after another: each begins with what is known of its prompt. A prompt that continues or
/// cuts the current sequence goes on in place; one that begins like an earlier prompt shares that one's blocks;
/// whatever is left behind stays in the tree. Results are those of a sequence computed from nothing, bit for bit. Not
/// thread-safe.
class CachedSequence {
 public:
  /// `prefix_bytes` is the budget of the tree, 0 for none. `name_space` says what the keys and values depend on beside
  /// the tokens: adapters.
  CachedSequence(KvCache& cache, size_t prefix_bytes, std::string name_space);

  /// Makes a sequence that holds the beginning of `prompt`, as long as can be had, and at least one token short of it.
  /// Returns its length.
  int64_t begin(std::span<const int> prompt);

  /// Id of the sequence in the cache. Valid until the next begin() or restore().
  int id() const { return id_; }
  /// The tokens whose keys and values it holds.
  const std::vector<int>& tokens() const { return tokens_; }
  void reserve(size_t tokens) { tokens_.reserve(tokens); }

  /// Records tokens that a forward has appended to the sequence; those of the prompt leave checkpoints in the tree.
  void append(std::span<const int> tokens);

  PrefixTreeStats stats() const { return tree_.stats(); }

  /// What a cache file holds of the sequence, checkpoints of its beginnings included.
  CacheContents contents();
  /// Replaces the sequence. Throws Error when the contents do not make one.
  void restore(CacheContents contents);

 private:
  /// The next length after `length` at which a checkpoint is wanted.
  int64_t next_checkpoint(int64_t length) const;

  KvCache& cache_;
  PrefixTree tree_;
  std::string name_space_;
  int id_;
  std::vector<int> tokens_;
  int64_t prompt_ = 0;  // tokens of the current prompt
  int64_t known_ = 0;   // where it leaves what the tree knows
};

}  // namespace carat

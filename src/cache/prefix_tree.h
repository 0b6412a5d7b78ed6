// Keys and values of prompts that have been read, for prompts that begin alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"

namespace carat {

struct PrefixTreeStats {
  size_t entries = 0;  // checkpoints; in a cache without rings the longest prefixes
  size_t bytes = 0;    // of the blocks that the tree holds; shared ones count once
  size_t max_bytes = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t tokens_reused = 0;
};

/// What match() found.
struct PrefixMatch {
  int sequence = -1;   // of the KV cache, the caller's to remove; -1: nothing
  int64_t length = 0;  // its positions
  /// Tokens that the tree knows of the prompt, >= length. Where it is larger, rings are missing for what lies between:
  /// a checkpoint put at `known` while the prompt is read serves the next prompt that branches there.
  int64_t known = 0;
};

/// Of every ring the blocks that the row at `length` reads, and one before them where shorter lengths need it.
struct PrefixCheckpoint {
  int64_t length = 0;
  std::vector<KvPlacedBlock> blocks;
};

/// A radix tree over blocks of kKvBlock tokens. A node stands for a prefix and holds the prefix's last block of every
/// growing layer. Nodes end at block boundaries, except for tails: leaves that hold a partly filled block. Where a node
/// is a checkpoint it also holds, of every ring, the blocks that cover the windows before every length that ends within
/// the node's block. Only a prefix that ends in a checkpoint's block (in any node's, in a cache without rings) can be
/// returned by match, so a hit is exact for both kinds of layer. All blocks are shared by reference with sequences and
/// among checkpoints: nothing is copied, until a sequence goes on in a partly filled block.
///
/// Checkpoints are made where insert() is called; whoever reads a prompt decides where that is (checkpoint_stride()
/// says how often is worth it). What has not been used for longest is evicted first, once the blocks of the tree take
/// more bytes than its budget.
///
/// Namespaces keep apart what must not be mixed: adapters, formats. Must not outlive the cache. Not thread-safe.
class PrefixTree {
 public:
  /// A budget of 0 makes a tree that keeps nothing.
  PrefixTree(KvCache& cache, size_t max_bytes);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// Keeps the sequence's blocks as far as `tokens` go: those of its positions from 0 on, at most its length. At their
  /// end, and where that is a tail at the boundary before it, are checkpoints. Nothing is kept when the sequence's
  /// rings no longer hold the window before the end. Throws Error when there are more tokens than positions.
  void insert(std::string_view name_space, int sequence, std::span<const int> tokens);

  /// The longest prefix of `prompt` that can be used, at most prompt.size() - 1 tokens, as a new sequence. It may end
  /// anywhere in what was inserted.
  PrefixMatch match(std::string_view name_space, std::span<const int> prompt);

  /// The same without a sequence, and without being counted or remembered as a use.
  PrefixMatch look_up(std::string_view name_space, std::span<const int> prompt) const;

  /// The checkpoints at all prefixes of `tokens`, the shortest first.
  std::vector<PrefixCheckpoint> checkpoints(std::string_view name_space, std::span<const int> tokens) const;

  /// Tokens between checkpoints of a long prompt, such that rings take no more bytes than growing layers; a multiple of
  /// kKvBlock. 0: checkpoints on the way are of no use (there are no rings), or never worth it (nothing grows).
  int64_t checkpoint_stride() const;

  /// Evicts until the tree's blocks take at most `bytes`.
  void shrink(size_t bytes);
  void clear() { shrink(0); }

  PrefixTreeStats stats() const;

 private:
  struct Node;
  /// Compares blocks of tokens, whoever owns them.
  struct TokenOrder {
    using is_transparent = void;
    bool operator()(std::span<const int> a, std::span<const int> b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  using Children = std::map<std::vector<int>, std::unique_ptr<Node>, TokenOrder>;
  /// What the tree knows of a prompt.
  struct Path {
    std::vector<Node*> nodes;  // whole blocks, from the first on
    int64_t known = 0;         // tokens, those of a partly known block included
    Node* source = nullptr;    // whose checkpoint makes the longest prefix that can be used; null: none can
    int64_t usable = 0;        // tokens of that prefix
  };

  Path find(std::string_view name_space, std::span<const int> tokens) const;
  Path find_for(std::string_view name_space, std::span<const int> prompt) const;
  bool find_in_block(const Node& parent, std::span<const int> rest, Path& path) const;
  bool can_be_used(const Node& node, int64_t length) const;
  bool is_worth_keeping(const Node& node) const;
  Node* child_that_covers(const Node& parent, std::span<const int> tokens) const;
  Node& add_child(Node& parent, std::span<const int> tokens, int sequence);
  void add_checkpoint(Node& node, int sequence);
  void remove_tails_within(const Node& node);
  void touch(Node& node);
  void evict(Node& node);
  void remove(Node& leaf);
  void hold(const KvBlockRef& block);
  void let_go(const KvBlockRef& block);
  size_t path_bytes(int64_t length) const;

  KvCache& cache_;
  size_t max_bytes_;
  std::vector<int> growing_, rings_;  // layers
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;
  std::map<uint64_t, Node*> by_use_;             // what can be evicted, the longest unused first
  std::unordered_map<uint64_t, uint32_t> held_;  // layer << 32 | block -> references from the tree
  uint64_t clock_ = 0;
  size_t bytes_ = 0;
  uint64_t hits_ = 0, misses_ = 0, tokens_reused_ = 0;
};

}  // namespace carat

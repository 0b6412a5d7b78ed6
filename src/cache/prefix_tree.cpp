#include "cache/prefix_tree.h"

#include <utility>

#include "base/error.h"

namespace carat {

struct PrefixTree::Node {
  Node* parent = nullptr;
  Children::iterator self;            // in the parent's children; not of a root
  const std::string* name = nullptr;  // of a root: its namespace
  Children children;
  int64_t depth = 0;               // blocks from the first position to the node's boundary
  std::vector<KvBlockRef> blocks;  // of the growing layers
  std::vector<KvPlacedBlock> ring_blocks;
  bool is_checkpoint = false;
  uint64_t used = 0;  // by the clock; the key in by_use_ where the node is there
};

PrefixTree::PrefixTree(KvCache& cache, size_t max_bytes) : cache_(cache), max_bytes_(max_bytes) {
  for (int layer = 0; layer < cache.layer_count(); ++layer) {
    (cache.is_ring(layer) ? rings_ : growing_).push_back(layer);
  }
}

PrefixTree::~PrefixTree() {
  clear();  // one node at a time: chains of children are too long to be destroyed by recursion
}

/// In a model without rings every node can be used; only leaves can be evicted, though.
bool PrefixTree::is_usable(const Node& node) const {
  return rings_.empty() || node.is_checkpoint;
}

PrefixTree::Path PrefixTree::find(std::string_view name_space, std::span<const int> tokens) const {
  Path path;
  const auto root = roots_.find(name_space);
  if (root == roots_.end()) return path;
  const Node* node = root->second.get();
  constexpr auto kBlock = static_cast<size_t>(kKvBlock);
  for (size_t at = 0; at + kBlock <= tokens.size(); at += kBlock) {
    const auto child = node->children.find(tokens.subspan(at, kBlock));
    if (child == node->children.end()) break;
    node = child->second.get();
    path.nodes.push_back(child->second.get());
    if (is_usable(*node)) path.usable = path.nodes.size();
  }
  return path;
}

/// At least one token of a prompt is left to compute, or nobody would know what comes next.
PrefixTree::Path PrefixTree::find_for(std::string_view name_space, std::span<const int> prompt) const {
  return find(name_space, prompt.first(prompt.empty() ? 0 : prompt.size() - 1));
}

PrefixMatch PrefixTree::look_up(std::string_view name_space, std::span<const int> prompt) const {
  const Path path = find_for(name_space, prompt);
  return {.sequence = -1,
          .length = static_cast<int64_t>(path.usable) * kKvBlock,
          .known = static_cast<int64_t>(path.nodes.size()) * kKvBlock};
}

std::vector<PrefixCheckpoint> PrefixTree::checkpoints(std::string_view name_space, std::span<const int> tokens) const {
  std::vector<PrefixCheckpoint> all;
  for (const Node* node : find(name_space, tokens).nodes) {
    if (node->is_checkpoint) all.push_back({node->depth * kKvBlock, node->ring_blocks});
  }
  return all;
}

PrefixMatch PrefixTree::match(std::string_view name_space, std::span<const int> prompt) {
  PrefixMatch match;
  if (max_bytes_ == 0) return match;
  const Path path = find_for(name_space, prompt);
  match.known = static_cast<int64_t>(path.nodes.size()) * kKvBlock;
  if (path.usable == 0) {
    ++misses_;
    return match;
  }
  std::vector<KvPlacedBlock> blocks = path.nodes[path.usable - 1]->ring_blocks;
  for (size_t i = 0; i < path.usable; ++i) {
    for (const KvBlockRef& block : path.nodes[i]->blocks) blocks.push_back({static_cast<int64_t>(i), block});
  }
  match.length = static_cast<int64_t>(path.usable) * kKvBlock;
  match.sequence = cache_.add_sequence(match.length, blocks);
  if (rings_.empty()) {
    for (size_t i = 0; i < path.usable; ++i) touch(*path.nodes[i]);
  } else {
    touch(*path.nodes[path.usable - 1]);
  }
  ++hits_;
  tokens_reused_ += static_cast<uint64_t>(match.length);
  return match;
}

/// The last boundary up to `length` before which the sequence's rings hold the window; 0 when there is none.
int64_t PrefixTree::last_checkpoint(int sequence, int64_t length) {
  for (int64_t boundary = length / kKvBlock * kKvBlock; boundary > 0; boundary -= kKvBlock) {
    if (cache_.can_trim(sequence, boundary)) return boundary;
  }
  return 0;
}

/// Bytes of a prefix and its checkpoint by themselves.
size_t PrefixTree::path_bytes(int64_t length) const {
  size_t bytes = 0;
  for (const int layer : growing_) bytes += static_cast<size_t>(length / kKvBlock) * cache_.block_bytes(layer);
  for (const int layer : rings_) {
    bytes += static_cast<size_t>(length / kKvBlock - cache_.first_block(layer, length)) * cache_.block_bytes(layer);
  }
  return bytes;
}

void PrefixTree::insert(std::string_view name_space, int sequence, std::span<const int> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length > cache_.length(sequence)) {
    fail("a prefix of {} tokens is longer than its sequence of {} positions", length, cache_.length(sequence));
  }
  if (max_bytes_ == 0) return;
  const int64_t boundary = last_checkpoint(sequence, length);
  // What could not stay would only drive out the rest.
  if (boundary == 0 || path_bytes(boundary) > max_bytes_) return;
  auto root = roots_.find(name_space);
  if (root == roots_.end()) {
    root = roots_.emplace(std::string(name_space), std::make_unique<Node>()).first;
    root->second->name = &root->first;
  }
  Node* node = root->second.get();
  for (int64_t at = 0; at < boundary; at += kKvBlock) {
    const std::span<const int> block = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(kKvBlock));
    const auto child = node->children.find(block);
    node = child != node->children.end() ? child->second.get() : &add_child(*node, block, sequence);
    if (rings_.empty()) touch(*node);
  }
  if (!rings_.empty()) {
    if (!node->is_checkpoint) add_checkpoint(*node, sequence);
    touch(*node);
  }
  shrink(max_bytes_);
}

PrefixTree::Node& PrefixTree::add_child(Node& parent, std::span<const int> tokens, int sequence) {
  auto node = std::make_unique<Node>();
  node->parent = &parent;
  node->depth = parent.depth + 1;
  for (const int layer : growing_) node->blocks.push_back(cache_.block(sequence, layer, parent.depth));
  const auto self = parent.children.emplace(std::vector<int>(tokens.begin(), tokens.end()), std::move(node)).first;
  Node& added = *self->second;
  added.self = self;
  for (const KvBlockRef& block : added.blocks) hold(block);
  if (rings_.empty()) by_use_.erase(parent.used);  // no longer a leaf
  return added;
}

void PrefixTree::add_checkpoint(Node& node, int sequence) {
  const int64_t length = node.depth * kKvBlock;
  for (const int layer : rings_) {
    for (int64_t b = cache_.first_block(layer, length); b < node.depth; ++b) {
      node.ring_blocks.push_back({b, cache_.block(sequence, layer, b)});
      hold(node.ring_blocks.back().block);
    }
  }
  node.is_checkpoint = true;
}

void PrefixTree::touch(Node& node) {
  by_use_.erase(node.used);
  node.used = ++clock_;
  if (node.is_checkpoint || (rings_.empty() && node.children.empty())) by_use_[node.used] = &node;
}

void PrefixTree::shrink(size_t bytes) {
  while (!by_use_.empty() && (bytes_ > bytes || bytes == 0)) evict(*by_use_.begin()->second);
}

/// Takes from the tree what only this node makes worth holding.
void PrefixTree::evict(Node& node) {
  by_use_.erase(node.used);
  for (const KvPlacedBlock& placed : node.ring_blocks) let_go(placed.block);
  node.ring_blocks.clear();
  node.is_checkpoint = false;
  Node* leaf = &node;
  do {
    if (!leaf->children.empty()) return;
    Node* const parent = leaf->parent;
    remove(*leaf);
    leaf = parent;
  } while (leaf->parent != nullptr && !is_usable(*leaf));
  if (leaf->parent == nullptr) {
    if (leaf->children.empty()) roots_.erase(*leaf->name);
  } else if (rings_.empty() && leaf->children.empty()) {
    by_use_[leaf->used] = leaf;
  }
}

void PrefixTree::remove(Node& leaf) {
  for (const KvBlockRef& block : leaf.blocks) let_go(block);
  leaf.parent->children.erase(leaf.self);
}

void PrefixTree::hold(const KvBlockRef& block) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(block.layer())} << 32 | block.id();
  if (++held_[key] == 1) bytes_ += cache_.block_bytes(block.layer());
}

void PrefixTree::let_go(const KvBlockRef& block) {
  const auto held = held_.find(uint64_t{static_cast<uint32_t>(block.layer())} << 32 | block.id());
  if (--held->second > 0) return;
  held_.erase(held);
  bytes_ -= cache_.block_bytes(block.layer());
}

int64_t PrefixTree::checkpoint_stride() const {
  size_t growing = 0;  // bytes of one block of all layers
  size_t rings = 0;    // bytes of a checkpoint far from the beginning
  for (const int layer : growing_) growing += cache_.block_bytes(layer);
  for (const int layer : rings_) {
    const int64_t window = cache_.spec().layers[static_cast<size_t>(layer)].window;
    rings += static_cast<size_t>((window + kKvBlock - 2) / kKvBlock) * cache_.block_bytes(layer);
  }
  if (rings == 0 || growing == 0) return 0;
  return static_cast<int64_t>((rings + growing - 1) / growing) * kKvBlock;
}

PrefixTreeStats PrefixTree::stats() const {
  return {.entries = by_use_.size(),
          .bytes = bytes_,
          .max_bytes = max_bytes_,
          .hits = hits_,
          .misses = misses_,
          .tokens_reused = tokens_reused_};
}

}  // namespace carat

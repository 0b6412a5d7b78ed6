#include "cache/prefix_tree.h"

#include <iterator>
#include <utility>

#include "base/error.h"

namespace carat {
namespace {

constexpr auto kBlock = static_cast<size_t>(kKvBlock);

}  // namespace

struct PrefixTree::Node {
  Node* parent = nullptr;
  Children::iterator self;            // in the parent's children; not of a root
  const std::string* name = nullptr;  // of a root: its namespace
  Children children;                  // none of a tail
  int64_t begin = 0;                  // positions before the node's block, a multiple of kKvBlock
  int64_t length = 0;                 // of the prefix
  std::vector<KvBlockRef> blocks;     // of the growing layers
  bool is_checkpoint = false;
  int64_t serves_from = 0;  // of a checkpoint: the shortest length whose windows it holds, > begin
  std::vector<KvPlacedBlock> ring_blocks;
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

/// Whether the prefix of `length`, which ends in the node's block, has all that a sequence needs.
bool PrefixTree::can_be_used(const Node& node, int64_t length) const {
  return rings_.empty() || (node.is_checkpoint && node.serves_from <= length);
}

/// In a model without rings every node can be used; only leaves can be evicted, though.
bool PrefixTree::is_worth_keeping(const Node& node) const {
  return rings_.empty() || node.is_checkpoint;
}

PrefixTree::Path PrefixTree::find(std::string_view name_space, std::span<const int> tokens) const {
  Path path;
  const auto root = roots_.find(name_space);
  if (root == roots_.end()) return path;
  const Node* node = root->second.get();
  const auto block = [&](const Node& parent) {
    const std::span<const int> rest = tokens.subspan(static_cast<size_t>(parent.length));
    return rest.first(std::min(rest.size(), kBlock));
  };
  for (;;) {
    const auto child = block(*node).size() == kBlock ? node->children.find(block(*node)) : node->children.end();
    if (child == node->children.end()) break;
    node = child->second.get();
    path.nodes.push_back(child->second.get());
    if (can_be_used(*node, node->length)) {
      path.source = child->second.get();
      path.usable = node->length;
    }
  }
  // Where a whole block cannot be used, a part of it or of another that begins like it may be.
  for (; !find_in_block(*node, block(*node), path) && node->length > path.usable; node = node->parent) {
  }
  return path;
}

/// Looks for a child of `parent`, a node of the path, that begins like `rest` and can be used. Those that share most
/// with it lie next to its place among them.
bool PrefixTree::find_in_block(const Node& parent, std::span<const int> rest, Path& path) const {
  const Children& children = parent.children;
  const auto shared = [&](Children::const_iterator child) {
    return std::mismatch(rest.begin(), rest.end(), child->first.begin(), child->first.end()).first - rest.begin();
  };
  auto after = children.lower_bound(rest);
  auto before = after;
  for (;;) {
    const int64_t shared_after = after != children.end() ? shared(after) : 0;
    const int64_t shared_before = before != children.begin() ? shared(std::prev(before)) : 0;
    const int64_t most = std::max(shared_after, shared_before);
    path.known = std::max(path.known, parent.length + most);
    if (most == 0) return false;
    const auto child = shared_after == most ? after++ : --before;
    if (can_be_used(*child->second, parent.length + most)) {
      path.source = child->second.get();
      path.usable = parent.length + most;
      return true;
    }
  }
}

/// At least one token of a prompt is left to compute, or nobody would know what comes next.
PrefixTree::Path PrefixTree::find_for(std::string_view name_space, std::span<const int> prompt) const {
  return find(name_space, prompt.first(prompt.empty() ? 0 : prompt.size() - 1));
}

PrefixMatch PrefixTree::look_up(std::string_view name_space, std::span<const int> prompt) const {
  const Path path = find_for(name_space, prompt);
  return {.sequence = -1, .length = path.usable, .known = path.known};
}

std::vector<PrefixCheckpoint> PrefixTree::checkpoints(std::string_view name_space, std::span<const int> tokens) const {
  std::vector<PrefixCheckpoint> all;
  const auto root = roots_.find(name_space);
  const Node* node = root != roots_.end() ? root->second.get() : nullptr;
  while (node != nullptr) {
    const Node* next = nullptr;
    for (size_t count = 1; count <= std::min(tokens.size(), kBlock); ++count) {  // tails, then the whole block
      const auto child = node->children.find(tokens.first(count));
      if (child == node->children.end()) continue;
      next = child->second.get();
      if (next->is_checkpoint) all.push_back({next->length, next->ring_blocks});
    }
    if (next == nullptr || next->length % kKvBlock != 0) break;
    node = next;
    tokens = tokens.subspan(kBlock);
  }
  return all;
}

PrefixMatch PrefixTree::match(std::string_view name_space, std::span<const int> prompt) {
  PrefixMatch match;
  if (max_bytes_ == 0) return match;
  const Path path = find_for(name_space, prompt);
  match.known = path.known;
  if (path.source == nullptr) {
    ++misses_;
    return match;
  }
  std::vector<KvPlacedBlock> blocks = path.source->ring_blocks;
  const auto take = [&](const Node& node) {
    for (const KvBlockRef& block : node.blocks) blocks.push_back({node.begin / kKvBlock, block});
  };
  const auto whole = static_cast<size_t>(path.usable / kKvBlock);
  for (size_t i = 0; i < whole; ++i) take(*path.nodes[i]);
  if (path.usable % kKvBlock != 0) take(*path.source);
  match.length = path.usable;
  match.sequence = cache_.add_sequence(match.length, blocks);
  if (rings_.empty()) {
    for (size_t i = 0; i < whole; ++i) touch(*path.nodes[i]);
  }
  touch(*path.source);
  ++hits_;
  tokens_reused_ += static_cast<uint64_t>(match.length);
  return match;
}

/// Bytes of a prefix and the checkpoint at its end by themselves.
size_t PrefixTree::path_bytes(int64_t length) const {
  const int64_t end = (length + kKvBlock - 1) / kKvBlock;  // in blocks
  size_t bytes = 0;
  for (const int layer : growing_) bytes += static_cast<size_t>(end) * cache_.block_bytes(layer);
  for (const int layer : rings_) {
    const int64_t first = cache_.first_block(layer, (end - 1) * kKvBlock + 1);
    bytes += static_cast<size_t>(end - first) * cache_.block_bytes(layer);
  }
  return bytes;
}

void PrefixTree::insert(std::string_view name_space, int sequence, std::span<const int> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length > cache_.length(sequence)) {
    fail("a prefix of {} tokens is longer than its sequence of {} positions", length, cache_.length(sequence));
  }
  // What could not stay would only drive out the rest.
  if (max_bytes_ == 0 || length == 0 || path_bytes(length) > max_bytes_) return;
  if (!cache_.can_trim(sequence, length)) return;
  auto root = roots_.find(name_space);
  if (root == roots_.end()) {
    root = roots_.emplace(std::string(name_space), std::make_unique<Node>()).first;
    root->second->name = &root->first;
  }
  Node* node = root->second.get();
  for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock)) {
    const std::span<const int> block = tokens.first(kBlock);
    const auto child = node->children.find(block);
    node = child != node->children.end() ? child->second.get() : &add_child(*node, block, sequence);
    if (rings_.empty()) touch(*node);
  }
  // What ends at the last boundary is served by no tail behind it.
  if (node->length > 0 && cache_.can_trim(sequence, node->length)) add_checkpoint(*node, sequence);
  if (!tokens.empty()) {
    if (Node* const known = child_that_covers(*node, tokens)) {
      touch(*known);
    } else {
      const auto tail = node->children.find(tokens);
      add_checkpoint(tail != node->children.end() ? *tail->second : add_child(*node, tokens, sequence), sequence);
    }
  }
  shrink(max_bytes_);
}

/// A child that serves whatever a tail of these tokens would.
PrefixTree::Node* PrefixTree::child_that_covers(const Node& parent, std::span<const int> tokens) const {
  for (auto child = parent.children.lower_bound(tokens); child != parent.children.end(); ++child) {
    if (child->first.size() < tokens.size() || !std::equal(tokens.begin(), tokens.end(), child->first.begin())) break;
    if (can_be_used(*child->second, parent.length + 1)) return child->second.get();
  }
  return nullptr;
}

PrefixTree::Node& PrefixTree::add_child(Node& parent, std::span<const int> tokens, int sequence) {
  auto node = std::make_unique<Node>();
  node->parent = &parent;
  node->begin = parent.length;
  node->length = parent.length + static_cast<int64_t>(tokens.size());
  for (const int layer : growing_) node->blocks.push_back(cache_.block(sequence, layer, parent.length / kKvBlock));
  const auto self = parent.children.emplace(std::vector<int>(tokens.begin(), tokens.end()), std::move(node)).first;
  Node& added = *self->second;
  added.self = self;
  for (const KvBlockRef& block : added.blocks) hold(block);
  if (rings_.empty()) {
    by_use_.erase(parent.used);  // no longer a leaf
    remove_tails_within(added);
  }
  return added;
}

/// Makes the node a checkpoint, or one that serves more, and the one used last. In a model without rings there is
/// nothing to add.
void PrefixTree::add_checkpoint(Node& node, int sequence) {
  int64_t from = node.length;
  while (from - 1 > node.begin && cache_.can_trim(sequence, from - 1)) --from;
  if (!rings_.empty() && (!node.is_checkpoint || from < node.serves_from)) {
    std::vector<KvPlacedBlock> blocks;
    for (const int layer : rings_) {
      for (int64_t b = cache_.first_block(layer, from); b * kKvBlock < node.length; ++b) {
        blocks.push_back({b, cache_.block(sequence, layer, b)});
        hold(blocks.back().block);
      }
    }
    for (const KvPlacedBlock& placed : node.ring_blocks) let_go(placed.block);
    node.ring_blocks = std::move(blocks);
    node.serves_from = from;
    node.is_checkpoint = true;
    if (from == node.begin + 1) remove_tails_within(node);
  }
  touch(node);
}

/// Removes the tails that end within the node's tokens: it serves all that they do.
void PrefixTree::remove_tails_within(const Node& node) {
  const std::span<const int> tokens = node.self->first;
  for (size_t count = 1; count < tokens.size(); ++count) {
    const auto tail = node.parent->children.find(tokens.first(count));
    if (tail != node.parent->children.end()) remove(*tail->second);
  }
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
  } while (leaf->parent != nullptr && !is_worth_keeping(*leaf));
  if (leaf->parent == nullptr) {
    if (leaf->children.empty()) roots_.erase(*leaf->name);
  } else if (rings_.empty() && leaf->children.empty()) {
    by_use_[leaf->used] = leaf;
  }
}

void PrefixTree::remove(Node& leaf) {
  by_use_.erase(leaf.used);
  for (const KvBlockRef& block : leaf.blocks) let_go(block);
  for (const KvPlacedBlock& placed : leaf.ring_blocks) let_go(placed.block);
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
    const KvLayerSpec& ring = cache_.spec().layers[static_cast<size_t>(layer)];
    const int64_t positions = ring.window + ring.window_step - 1;
    rings += static_cast<size_t>((positions + 2 * kKvBlock - 3) / kKvBlock) * cache_.block_bytes(layer);
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

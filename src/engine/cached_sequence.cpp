#include "engine/cached_sequence.h"

#include <algorithm>
#include <utility>

#include "base/memory.h"

namespace carat {

size_t default_prefix_cache_bytes() {
  return std::min(usable_memory() / 10, size_t{1} << 30);
}

CachedSequence::CachedSequence(KvCache& cache, size_t prefix_bytes, std::string name_space)
    : cache_(cache), tree_(cache, prefix_bytes), name_space_(std::move(name_space)), id_(cache.add_sequence()) {}

int64_t CachedSequence::begin(std::span<const int> prompt) {
  const std::span<const int> usable = prompt.first(prompt.size() - 1);
  const auto shared =
      std::mismatch(tokens_.begin(), tokens_.end(), usable.begin(), usable.end()).first - tokens_.begin();
  const bool leaving = shared < static_cast<int64_t>(tokens_.size());
  if (leaving) tree_.insert(name_space_, id_, tokens_);

  const PrefixMatch in_tree = tree_.look_up(name_space_, prompt);
  known_ = in_tree.known;
  prompt_ = static_cast<int64_t>(prompt.size());
  if (shared >= in_tree.length && cache_.can_trim(id_, shared)) {
    cache_.trim(id_, shared);
    tokens_.resize(static_cast<size_t>(shared));
    if (leaving) tree_.insert(name_space_, id_, tokens_);  // others may branch here, too
    return shared;
  }
  const PrefixMatch match = tree_.match(name_space_, prompt);
  const int next = match.sequence >= 0 ? match.sequence : cache_.add_sequence();
  cache_.remove_sequence(std::exchange(id_, next));
  tokens_.assign(prompt.begin(), prompt.begin() + match.length);
  return match.length;
}

/// Checkpoints are wanted where the prompt leaves what the tree knows (others will branch there, too), at its end (what
/// is generated may be dropped, edited or made again), and on the way as often as they pay.
int64_t CachedSequence::next_checkpoint(int64_t length) const {
  int64_t next = prompt_;
  if (length < known_) next = std::min(next, known_);
  if (const int64_t stride = tree_.checkpoint_stride(); stride > 0) {
    next = std::min(next, (length / stride + 1) * stride);
  }
  return next;
}

void CachedSequence::append(std::span<const int> tokens) {
  const auto before = static_cast<int64_t>(tokens_.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const auto after = static_cast<int64_t>(tokens_.size());
  for (int64_t at = before; at < prompt_;) {
    at = next_checkpoint(at);
    if (at > after) break;
    tree_.insert(name_space_, id_, std::span(tokens_).first(static_cast<size_t>(at)));
  }
}

CacheContents CachedSequence::contents() {
  CacheContents contents{.tokens = tokens_, .blocks = blocks_of(cache_, id_), .checkpoints = {}};
  std::vector<PrefixCheckpoint> checkpoints = tree_.checkpoints(name_space_, tokens_);
  for (const PrefixCheckpoint& checkpoint : checkpoints) contents.checkpoints.push_back(checkpoint.length);
  // The longest first: what ends within a block holds less of it than what goes on.
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    for (KvPlacedBlock& placed : checkpoint->blocks) contents.blocks.push_back(std::move(placed));
  }
  return contents;
}

void CachedSequence::restore(CacheContents contents) {
  const auto length = static_cast<int64_t>(contents.tokens.size());
  const int restored = cache_.add_sequence(length, contents.blocks);
  cache_.remove_sequence(std::exchange(id_, restored));
  tokens_ = std::move(contents.tokens);
  prompt_ = known_ = 0;
  for (const int64_t checkpoint : contents.checkpoints) {
    if (checkpoint < 1 || checkpoint > length) continue;
    std::vector<KvPlacedBlock> blocks;
    for (const KvPlacedBlock& placed : contents.blocks) {
      if (placed.number < (checkpoint + kKvBlock - 1) / kKvBlock) blocks.push_back(placed);
    }
    const int sequence = cache_.add_sequence(checkpoint, blocks);
    tree_.insert(name_space_, sequence, std::span(tokens_).first(static_cast<size_t>(checkpoint)));
    cache_.remove_sequence(sequence);
  }
}

}  // namespace carat

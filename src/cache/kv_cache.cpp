#include "cache/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

constexpr int64_t kSlabBlocks = 4;

int64_t blocks_of(int64_t positions) {
  return (positions + kKvBlock - 1) / kKvBlock;
}

}  // namespace

KvCache::KvCache(Device& device, KvCacheSpec spec) : device_(device), spec_(std::move(spec)) {
  for (const KvLayerSpec& layer : spec_.layers) {
    Pool pool;
    pool.block_bytes = 2 * static_cast<size_t>(layer.kv_heads) * kKvBlock * static_cast<size_t>(layer.head_dim) *
                       kv_element_bytes(spec_.format);
    // The rows of one batch and the window before the first of them, wherever they lie against the block borders.
    if (layer.window > 0) pool.ring = blocks_of(layer.window - 1 + spec_.max_rows) + 1;
    pools_.push_back(std::move(pool));
  }
  views_.resize(spec_.layers.size());
}

const KvCache::Sequence& KvCache::sequence(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= sequences_.size() || !sequences_[static_cast<size_t>(id)].used) {
    fail("the KV cache has no sequence {}", id);
  }
  return sequences_[static_cast<size_t>(id)];
}

KvCache::Sequence& KvCache::sequence(int id) {
  return const_cast<Sequence&>(static_cast<const KvCache*>(this)->sequence(id));
}

int KvCache::add_sequence() {
  const auto unused = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.used; });
  const auto id = static_cast<int>(unused - sequences_.begin());
  if (unused == sequences_.end()) sequences_.emplace_back();
  Sequence& added = sequences_[static_cast<size_t>(id)];
  added.used = true;
  added.length = 0;
  added.highest = 0;
  added.blocks.assign(pools_.size(), {});
  for (size_t i = 0; i < pools_.size(); ++i) added.blocks[i].assign(static_cast<size_t>(pools_[i].ring), nullptr);
  refresh_views(id);
  return id;
}

void KvCache::remove_sequence(int id) {
  Sequence& removed = sequence(id);
  for (size_t i = 0; i < pools_.size(); ++i) {
    for (std::byte* block : removed.blocks[i]) {
      if (block != nullptr) pools_[i].free.push_back(block);
    }
  }
  removed = {};
}

std::byte* KvCache::take_block(Pool& pool) {
  if (pool.free.empty()) {
    const size_t bytes = static_cast<size_t>(kSlabBlocks) * pool.block_bytes;
    DeviceArray<std::byte> slab(device_, bytes);
    // Kernels may read rows of a block that nobody wrote, with weight zero: they must be finite.
    const std::vector<std::byte> zeros(bytes);
    device_.upload(slab.data(), zeros.data(), bytes);
    for (int64_t i = kSlabBlocks; i-- > 0;)
      pool.free.push_back(slab.data() + static_cast<size_t>(i) * pool.block_bytes);
    pool.slabs.push_back(std::move(slab));
    bytes_ += bytes;
  }
  std::byte* block = pool.free.back();
  pool.free.pop_back();
  return block;
}

void KvCache::make_room(Sequence& s, int64_t positions) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    std::vector<std::byte*>& blocks = s.blocks[i];
    const int64_t needed = blocks_of(positions);
    if (pool.ring > 0) {
      for (int64_t b = 0; b < std::min(needed, pool.ring); ++b) {
        if (blocks[static_cast<size_t>(b)] == nullptr) blocks[static_cast<size_t>(b)] = take_block(pool);
      }
    } else {
      while (static_cast<int64_t>(blocks.size()) < needed) blocks.push_back(take_block(pool));
    }
  }
}

void KvCache::extend(int id, int64_t rows) {
  Sequence& s = sequence(id);
  if (rows < 0 || rows > spec_.max_rows) {
    fail("a batch of {} rows of one sequence does not fit a KV cache made for {}", rows, spec_.max_rows);
  }
  make_room(s, s.length + rows);
  s.length += rows;
  s.highest = std::max(s.highest, s.length);
  refresh_views(id);
}

void KvCache::reserve(int id, int64_t positions) {
  make_room(sequence(id), positions);
  refresh_views(id);
}

bool KvCache::can_trim(int id, int64_t length) const {
  const Sequence& s = sequence(id);
  if (length < 0 || length > s.length) return false;
  if (length == s.length) return true;
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].ring == 0 || s.highest == 0) continue;
    // The next row, at `length`, reads back to this position; its block must not have been reused for a later one.
    const int64_t oldest = std::max<int64_t>(0, length - spec_.layers[i].window + 1);
    if (oldest / kKvBlock + pools_[i].ring <= (s.highest - 1) / kKvBlock) return false;
  }
  return true;
}

void KvCache::trim(int id, int64_t length) {
  if (!can_trim(id, length)) {
    fail("cannot cut a sequence of {} positions to {}: a sliding layer no longer holds the window before it",
         sequence(id).length, length);
  }
  sequence(id).length = length;
}

void KvCache::refresh_views(int id) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    std::vector<KvSequence>& views = views_[i];
    if (views.size() < sequences_.size()) views.resize(sequences_.size());
    KvSequence& view = views[static_cast<size_t>(id)];
    view.blocks = sequences_[static_cast<size_t>(id)].blocks[i].data();
    view.ring = pools_[i].ring > 0 ? pools_[i].ring : INT64_MAX;
  }
}

KvLayer KvCache::layer(int index) const {
  const auto i = static_cast<size_t>(index);
  return {spec_.format, spec_.layers[i].kv_heads, spec_.layers[i].head_dim, views_[i]};
}

size_t KvCache::bytes_for(int64_t length) const {
  size_t bytes = 0;
  for (const Pool& pool : pools_) {
    const int64_t blocks = blocks_of(length);
    bytes += pool.block_bytes * static_cast<size_t>(pool.ring > 0 ? std::min(blocks, pool.ring) : blocks);
  }
  return bytes;
}

}  // namespace carat

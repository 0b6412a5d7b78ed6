#include "cache/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

int64_t blocks_of(int64_t positions) {
  return (positions + kKvBlock - 1) / kKvBlock;
}

size_t block_bytes_of(const KvLayerSpec& layer) {
  return static_cast<size_t>(layer.kv_heads) * kKvBlock *
         (kv_row_bytes(layer.k_format, layer.head_dim) + kv_row_bytes(layer.v_format, layer.head_dim));
}

/// Blocks of the layer's ring; 0 when it grows. The rows of one batch and the window before the first of them fit,
/// wherever they lie against the borders of blocks and steps.
int64_t ring_of(const KvLayerSpec& layer, int64_t max_rows) {
  return layer.window > 0 ? blocks_of(layer.window - 1 + layer.window_step - 1 + max_rows) + 1 : 0;
}

void check_recent(const KvCacheSpec& spec, size_t index) {
  const KvLayerSpec& layer = spec.layers[index];
  if (layer.recent < 0) return;
  const bool exists = static_cast<size_t>(layer.recent) < spec.layers.size();
  const KvLayerSpec ring = exists ? spec.layers[static_cast<size_t>(layer.recent)] : KvLayerSpec{};
  if (layer.window > 0 || ring.window < 1 || ring.window_step != kRecentStep || ring.kv_heads != layer.kv_heads ||
      ring.head_dim != layer.head_dim || ring.k_format.is_coded() || ring.v_format.is_coded()) {
    fail("layer {} of the KV cache cannot have its latest positions in layer {}", index, layer.recent);
  }
}

}  // namespace

KvBlockRef::KvBlockRef(KvCache& cache, int layer, uint32_t id) : cache_(&cache), layer_(layer), id_(id) {
  cache.retain(cache.pools_[static_cast<size_t>(layer)], id);
}

KvBlockRef::KvBlockRef(const KvBlockRef& other) : cache_(other.cache_), layer_(other.layer_), id_(other.id_) {
  if (cache_ != nullptr) cache_->retain(cache_->pools_[static_cast<size_t>(layer_)], id_);
}

KvBlockRef::~KvBlockRef() {
  if (cache_ != nullptr) cache_->release(cache_->pools_[static_cast<size_t>(layer_)], id_);
}

KvCache::KvCache(Device& device, KvCacheSpec spec) : device_(device), spec_(std::move(spec)) {
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    check_recent(spec_, i);
    const KvLayerSpec& layer = spec_.layers[i];
    Pool pool;
    pool.block_bytes = block_bytes_of(layer);
    pool.ring = ring_of(layer, spec_.max_rows);
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

const KvCache::Pool& KvCache::pool(int layer) const {
  if (layer < 0 || layer >= layer_count()) fail("the KV cache has {} layers; layer {} is none", layer_count(), layer);
  return pools_[static_cast<size_t>(layer)];
}

int KvCache::add_sequence() {
  const auto unused = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.used; });
  const auto id = static_cast<int>(unused - sequences_.begin());
  if (unused == sequences_.end()) sequences_.emplace_back();
  Sequence& added = sequences_[static_cast<size_t>(id)];
  added.used = true;
  added.length = 0;
  added.tables.assign(pools_.size(), {});
  for (size_t i = 0; i < pools_.size(); ++i) {
    const auto ring = static_cast<size_t>(pools_[i].ring);
    added.tables[i] = {std::vector(ring, kNone), std::vector<std::byte*>(ring, nullptr),
                       std::vector<int64_t>(ring, -1)};
  }
  refresh_views(id);
  return id;
}

int KvCache::fork(int id) {
  Sequence copy = sequence(id);
  const int added = add_sequence();
  for (size_t i = 0; i < pools_.size(); ++i) {
    for (const uint32_t block : copy.tables[i].ids) {
      if (block != kNone) retain(pools_[i], block);
    }
  }
  sequence(added) = std::move(copy);
  refresh_views(added);
  return added;
}

int KvCache::add_sequence(int64_t length, std::span<const KvPlacedBlock> blocks) {
  if (length < 0) fail("a sequence of {} positions cannot be", length);
  const int id = add_sequence();
  try {
    Sequence& s = sequence(id);
    for (size_t i = 0; i < pools_.size(); ++i) {
      if (pools_[i].ring > 0) continue;
      s.tables[i].ids.assign(static_cast<size_t>(blocks_of(length)), kNone);
      s.tables[i].data.assign(static_cast<size_t>(blocks_of(length)), nullptr);
    }
    for (const KvPlacedBlock& placed : blocks) {
      if (!placed.block || placed.block.cache_ != this || placed.number < 0 || placed.number >= blocks_of(length)) {
        fail("block {} does not belong into a sequence of {} positions", placed.number, length);
      }
      const auto layer = static_cast<size_t>(placed.block.layer());
      Pool& pool = pools_[layer];
      Table& table = s.tables[layer];
      const auto slot = static_cast<size_t>(pool.ring > 0 ? placed.number % pool.ring : placed.number);
      if (pool.ring > 0) {
        if (table.numbers[slot] > placed.number) continue;  // an older block than the ring can hold beside the newer
        table.numbers[slot] = placed.number;
      }
      retain(pool, placed.block.id());
      put(pool, table, slot, placed.block.id());
    }
    for (size_t i = 0; i < pools_.size(); ++i) {
      const std::vector<uint32_t>& ids = s.tables[i].ids;
      if (pools_[i].ring == 0 && std::find(ids.begin(), ids.end(), kNone) != ids.end()) {
        fail("a sequence of {} positions lacks block {} of layer {}", length,
             std::find(ids.begin(), ids.end(), kNone) - ids.begin(), i);
      }
    }
    if (!holds_window(s, length)) fail("a sequence of {} positions lacks blocks of the window before them", length);
    s.length = length;
    refresh_views(id);
  } catch (...) {
    remove_sequence(id);
    throw;
  }
  return id;
}

void KvCache::remove_sequence(int id) {
  Sequence& removed = sequence(id);
  for (size_t i = 0; i < pools_.size(); ++i) {
    for (const uint32_t block : removed.tables[i].ids) {
      if (block != kNone) release(pools_[i], block);
    }
  }
  removed = {};
}

/// A block with one reference.
uint32_t KvCache::take_block(Pool& pool) {
  if (pool.free.empty()) {
    const size_t bytes = static_cast<size_t>(kSlabBlocks) * pool.block_bytes;
    const bool again = !pool.given_back.empty();
    const auto number = again ? pool.given_back.back() : static_cast<uint32_t>(pool.slabs.size());
    const auto first = static_cast<uint32_t>(number * kSlabBlocks);
    if (first > kNone - kSlabBlocks - 1) fail("a layer of the KV cache cannot have more than {} blocks", first);
    DeviceArray<std::byte> slab(device_, bytes);
    // Kernels may read rows of a block that nobody wrote, with weight zero: they must be finite.
    const std::vector<std::byte> zeros(bytes);
    device_.upload(slab.data(), zeros.data(), bytes);
    if (again) {
      pool.slabs[number] = std::move(slab);
      pool.given_back.pop_back();
    } else {
      pool.slabs.push_back(std::move(slab));
      pool.free.reserve(first + kSlabBlocks);  // all blocks: release() never allocates
      pool.references.resize(first + kSlabBlocks);
    }
    for (uint32_t i = kSlabBlocks; i-- > 0;) pool.free.push_back(first + i);
    bytes_ += bytes;
  }
  const uint32_t id = pool.free.back();
  pool.free.pop_back();
  pool.references[id] = 1;
  return id;
}

void KvCache::release(Pool& pool, uint32_t id) noexcept {
  if (--pool.references[id] == 0) pool.free.push_back(id);
}

void KvCache::give_back() {
  for (Pool& pool : pools_) {
    std::vector<int64_t> idle(pool.slabs.size());  // blocks
    for (const uint32_t id : pool.free) ++idle[id / kSlabBlocks];
    std::erase_if(pool.free, [&](uint32_t id) { return idle[id / kSlabBlocks] == kSlabBlocks; });
    for (size_t i = 0; i < idle.size(); ++i) {
      if (idle[i] < kSlabBlocks) continue;
      pool.slabs[i] = {};
      pool.given_back.push_back(static_cast<uint32_t>(i));
      bytes_ -= static_cast<size_t>(kSlabBlocks) * pool.block_bytes;
    }
  }
}

/// Puts a block, with the reference that the caller has to it, into an unshared or empty slot.
void KvCache::put(Pool& pool, Table& table, size_t slot, uint32_t id) {
  if (table.ids[slot] != kNone) release(pool, table.ids[slot]);
  table.ids[slot] = id;
  table.data[slot] = pool.data(id);
}

/// Leaves in the slot a block that nobody else holds.
void KvCache::make_own(Pool& pool, Table& table, size_t slot, bool keep_content) {
  const uint32_t before = table.ids[slot];
  if (before != kNone && pool.references[before] == 1) return;
  const uint32_t own = take_block(pool);
  if (before != kNone && keep_content) device_.copy(pool.data(own), pool.data(before), pool.block_bytes);
  put(pool, table, slot, own);
}

/// Blocks for `positions`, whoever else holds them.
void KvCache::make_room(Sequence& s, int64_t positions) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    Table& table = s.tables[i];
    auto needed = static_cast<size_t>(blocks_of(positions));
    if (pool.ring > 0) needed = std::min(needed, static_cast<size_t>(pool.ring));
    for (size_t b = pool.ring > 0 ? 0 : table.ids.size(); b < needed; ++b) {
      if (b >= table.ids.size()) {
        table.ids.push_back(kNone);
        table.data.push_back(nullptr);
      }
      if (table.ids[b] == kNone) put(pool, table, b, take_block(pool));
    }
  }
}

/// Blocks of its own for positions [begin, end), where begin is the sequence's length.
void KvCache::make_writable(Sequence& s, int64_t begin, int64_t end) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    Table& table = s.tables[i];
    for (int64_t b = begin / kKvBlock; b < blocks_of(end); ++b) {
      const auto slot = static_cast<size_t>(pool.ring > 0 ? b % pool.ring : b);
      if (slot >= table.ids.size()) {
        table.ids.push_back(kNone);
        table.data.push_back(nullptr);
      }
      make_own(pool, table, slot, b * kKvBlock < begin);
      if (pool.ring > 0) table.numbers[slot] = b;
    }
  }
}

size_t KvCache::bytes_to_extend(int id, int64_t rows) const {
  const Sequence& s = sequence(id);
  size_t bytes = 0;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    const std::vector<uint32_t>& ids = s.tables[i].ids;
    const int64_t first = s.length / kKvBlock;
    int64_t end = rows > 0 ? blocks_of(s.length + rows) : first;
    if (pool.ring > 0) end = std::min(end, first + pool.ring);
    for (int64_t b = first; b < end; ++b) {
      const auto slot = static_cast<size_t>(pool.ring > 0 ? b % pool.ring : b);
      const bool own = slot < ids.size() && ids[slot] != kNone && pool.references[ids[slot]] == 1;
      if (!own) bytes += pool.block_bytes;
    }
  }
  return bytes;
}

void KvCache::extend(int id, int64_t rows) {
  Sequence& s = sequence(id);
  if (rows < 0 || rows > spec_.max_rows) {
    fail("a batch of {} rows of one sequence does not fit a KV cache made for {}", rows, spec_.max_rows);
  }
  if (rows == 0) return;
  make_writable(s, s.length, s.length + rows);
  s.length += rows;
  refresh_views(id);
}

void KvCache::reserve(int id, int64_t positions) {
  make_room(sequence(id), positions);
  refresh_views(id);
}

int64_t KvCache::first_block(int layer, int64_t length) const {
  return spec_.layers[static_cast<size_t>(layer)].first_read(length) / kKvBlock;
}

/// Whether every ring still holds what the row at `length` reads.
bool KvCache::holds_window(const Sequence& s, int64_t length) const {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].ring == 0) continue;
    for (int64_t b = first_block(static_cast<int>(i), length); b < blocks_of(length); ++b) {
      if (s.tables[i].numbers[static_cast<size_t>(b % pools_[i].ring)] != b) return false;
    }
  }
  return true;
}

bool KvCache::can_trim(int id, int64_t length) const {
  const Sequence& s = sequence(id);
  return length >= 0 && length <= s.length && holds_window(s, length);
}

void KvCache::trim(int id, int64_t length) {
  if (!can_trim(id, length)) {
    fail("cannot cut a sequence of {} positions to {}: a ring no longer holds the window before it",
         sequence(id).length, length);
  }
  Sequence& s = sequence(id);
  s.length = length;
  // What follows goes back to the pools. A ring keeps its blocks: they are few, and will be written again.
  for (size_t i = 0; i < pools_.size(); ++i) {
    Table& table = s.tables[i];
    if (pools_[i].ring > 0) continue;
    while (static_cast<int64_t>(table.ids.size()) > blocks_of(length)) {
      release(pools_[i], table.ids.back());
      table.ids.pop_back();
      table.data.pop_back();
    }
  }
  refresh_views(id);
}

KvBlockRef KvCache::block(int id, int layer, int64_t number) {
  const Sequence& s = sequence(id);
  const Pool& from = pool(layer);
  const Table& table = s.tables[static_cast<size_t>(layer)];
  if (number < 0 || number >= blocks_of(s.length)) return {};
  const auto slot = static_cast<size_t>(from.ring > 0 ? number % from.ring : number);
  if (from.ring > 0 && table.numbers[slot] != number) return {};
  return {*this, layer, table.ids[slot]};
}

KvBlockRef KvCache::new_block(int layer, std::span<const std::byte> content) {
  if (content.size() != block_bytes(layer)) {
    fail("a block of layer {} has {} bytes, not {}", layer, block_bytes(layer), content.size());
  }
  Pool& from = pools_[static_cast<size_t>(layer)];
  const uint32_t id = take_block(from);
  KvBlockRef block(*this, layer, id);
  release(from, id);  // the reference is the block's only one
  device_.upload(from.data(id), content.data(), content.size());
  return block;
}

void KvCache::download(const KvBlockRef& block, std::byte* out) const {
  if (block.cache_ != this) fail("a block of another KV cache cannot be read here");
  const Pool& from = pool(block.layer());
  device_.download(out, from.data(block.id()), from.block_bytes);
}

void KvCache::refresh_views(int id) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    std::vector<KvSequence>& views = views_[i];
    if (views.size() < sequences_.size()) views.resize(sequences_.size());
    KvSequence& view = views[static_cast<size_t>(id)];
    view.blocks = sequences_[static_cast<size_t>(id)].tables[i].data.data();
    view.ring = pools_[i].ring > 0 ? pools_[i].ring : INT64_MAX;
  }
}

KvLayer KvCache::layer(int index) const {
  const auto i = static_cast<size_t>(index);
  const KvLayerSpec& layer = spec_.layers[i];
  KvLayer view{layer.k_format, layer.v_format, layer.kv_heads, layer.head_dim, views_[i], {}};
  if (layer.recent >= 0) {
    const auto ring = static_cast<size_t>(layer.recent);
    view.recent = {spec_.layers[ring].window, spec_.layers[ring].k_format, spec_.layers[ring].v_format, views_[ring]};
  }
  return view;
}

size_t KvCache::bytes_in_use() const {
  size_t bytes = 0;
  for (const Pool& pool : pools_) {
    const size_t blocks = (pool.slabs.size() - pool.given_back.size()) * static_cast<size_t>(kSlabBlocks);
    bytes += (blocks - pool.free.size()) * pool.block_bytes;
  }
  return bytes;
}

size_t KvCache::bytes_for(int64_t length) const {
  size_t bytes = 0;
  for (const Pool& pool : pools_) {
    const int64_t blocks = blocks_of(length);
    bytes += pool.block_bytes * static_cast<size_t>(pool.ring > 0 ? std::min(blocks, pool.ring) : blocks);
  }
  return bytes;
}

size_t KvCache::bytes_taken(const KvCacheSpec& spec, int64_t length, int64_t sequences) {
  size_t bytes = 0;
  for (const KvLayerSpec& layer : spec.layers) {
    const int64_t ring = ring_of(layer, spec.max_rows);
    const int64_t blocks = sequences * (ring > 0 ? std::min(blocks_of(length), ring) : blocks_of(length));
    bytes += static_cast<size_t>((blocks + kSlabBlocks - 1) / kSlabBlocks * kSlabBlocks) * block_bytes_of(layer);
  }
  return bytes;
}

}  // namespace carat

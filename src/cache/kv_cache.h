// Keys and values of many sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compute/device.h"

namespace carat {

/// One layer that owns keys and values, or a ring beside one.
struct KvLayerSpec {
  int kv_heads = 0;
  int head_dim = 0;
  int64_t window = 0;  // 0: every position is kept; else a query at p reads back to p - window + 1 at most
  KvFormat k_format = KvFormat::kF16;
  KvFormat v_format = KvFormat::kF16;
  int64_t window_step = 1;  // windows begin at multiples of it: what is read begins at the last one before them
  int recent = -1;          // the layer that keeps the latest positions of this one as KvRecent has it; -1: none does

  /// The first position that the row at `length` reads.
  int64_t first_read(int64_t length) const {
    return window > 0 ? std::max<int64_t>(0, length - window + 1) / window_step * window_step : 0;
  }
};

struct KvCacheSpec {
  std::vector<KvLayerSpec> layers;
  int64_t max_rows = 512;  // largest extend() of one sequence
};

class KvCache;

/// A reference to one block of one layer. While references exist no sequence changes what the block held when the first
/// of them was taken. Must not outlive its cache. Not thread-safe.
class KvBlockRef {
 public:
  KvBlockRef() = default;
  KvBlockRef(const KvBlockRef& other);
  KvBlockRef(KvBlockRef&& other) noexcept { swap(other); }
  KvBlockRef& operator=(KvBlockRef other) noexcept {
    swap(other);
    return *this;
  }
  ~KvBlockRef();

  explicit operator bool() const { return cache_ != nullptr; }
  int layer() const { return layer_; }
  /// Unique among the blocks of the layer that are in use.
  uint32_t id() const { return id_; }

 private:
  friend class KvCache;
  KvBlockRef(KvCache& cache, int layer, uint32_t id);
  void swap(KvBlockRef& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(layer_, other.layer_);
    std::swap(id_, other.id_);
  }

  KvCache* cache_ = nullptr;
  int layer_ = 0;
  uint32_t id_ = 0;
};

/// A block and the place where it belongs: positions [number * kKvBlock, (number + 1) * kKvBlock).
struct KvPlacedBlock {
  int64_t number = 0;
  KvBlockRef block;
};

/// Storage in blocks of kKvBlock positions. Layers without a window grow block by block and never move; layers with one
/// are rings that hold the window and one batch beside it, so that every row of a batch still finds its whole window.
/// Blocks come from per-layer pools and return there. Layers that share another layer's keys and values have none here:
/// they read their donor's by its index. The latest positions of a coded layer, kept as floats, are a ring like any
/// other, so that whatever makes, cuts, shares or restores a sequence treats both alike.
///
/// Blocks are counted by reference: sequences made by fork() or of placed blocks share them, and write to none that
/// somebody else holds. A partly filled block is copied before its next row is written; a block of a ring that would be
/// overwritten is left to its other holders. The content of a block is opaque here. Not thread-safe.
class KvCache {
 public:
  /// Throws Error where a layer's `recent` is no ring of floats of the same heads with windows as recent_begin() has
  /// them.
  KvCache(Device& device, KvCacheSpec spec);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  /// A new, empty sequence. Ids are small and reused.
  int add_sequence();
  /// A new sequence with all positions of `id`. Costs no memory until one of the two writes.
  int fork(int id);
  /// A new sequence of `length` positions that consists of `blocks`: of each layer without a window all, of each ring
  /// those that the row at `length` reads; of a ring more may be given. Throws Error when one is missing or does not
  /// belong there.
  int add_sequence(int64_t length, std::span<const KvPlacedBlock> blocks);
  void remove_sequence(int id);

  /// Number of positions of the sequence.
  int64_t length(int id) const { return sequence(id).length; }

  /// Makes room for `rows` more positions, whose keys and values the caller then writes. Throws Error when rows >
  /// max_rows.
  void extend(int id, int64_t rows);

  /// Bytes of blocks that extend(id, rows) would put in use.
  size_t bytes_to_extend(int id, int64_t rows) const;

  /// Whether the sequence can be cut to `length`: rings must still hold the window before it.
  bool can_trim(int id, int64_t length) const;
  /// Forgets the positions from `length` on. Throws Error where can_trim says no.
  void trim(int id, int64_t length);

  /// Makes room for `positions` of the sequence in advance.
  void reserve(int id, int64_t positions);

  /// What the device needs to read and write layer `index`. Valid until the next call that changes the cache.
  KvLayer layer(int index) const;

  const KvCacheSpec& spec() const { return spec_; }
  int layer_count() const { return static_cast<int>(pools_.size()); }
  bool is_ring(int layer) const { return pool(layer).ring > 0; }
  size_t block_bytes(int layer) const { return pool(layer).block_bytes; }
  /// Number of the first block that the row at `length` reads in the layer.
  int64_t first_block(int layer, int64_t length) const;

  /// The sequence's block `number` of a layer; empty when it has none, or its ring no longer holds it.
  KvBlockRef block(int id, int layer, int64_t number);
  /// A new block that holds `content`, block_bytes(layer) bytes of host memory.
  KvBlockRef new_block(int layer, std::span<const std::byte> content);
  /// Copies a block to host memory, block_bytes(block.layer()) bytes.
  void download(const KvBlockRef& block, std::byte* out) const;

  /// Returns to the device what no block uses, in the pieces in which it was taken.
  void give_back();

  /// Bytes taken from the device.
  size_t bytes() const { return bytes_; }
  /// Bytes of blocks that a sequence or a reference holds; shared ones count once.
  size_t bytes_in_use() const;
  /// Bytes that one sequence of `length` positions takes.
  size_t bytes_for(int64_t length) const;
  /// Bytes that a cache takes from its device for that many sequences of `length` positions, none of them shared.
  static size_t bytes_taken(const KvCacheSpec& spec, int64_t length, int64_t sequences);

 private:
  friend class KvBlockRef;

  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int64_t kSlabBlocks = 4;

  struct Pool {
    size_t block_bytes = 0;
    int64_t ring = 0;  // blocks of a ring; 0 for growing layers
    std::vector<DeviceArray<std::byte>> slabs;
    std::vector<uint32_t> given_back;  // slabs without memory
    std::vector<uint32_t> references;  // per block
    std::vector<uint32_t> free;        // blocks with memory that nobody holds

    std::byte* data(uint32_t id) const { return slabs[id / kSlabBlocks].data() + (id % kSlabBlocks) * block_bytes; }
  };
  /// A sequence's blocks of one layer. A ring's table has its full size, filled on first use.
  struct Table {
    std::vector<uint32_t> ids;
    std::vector<std::byte*> data;  // where they are: what kernels read
    std::vector<int64_t> numbers;  // rings: which block each slot holds; -1 for none
  };
  struct Sequence {
    bool used = false;
    int64_t length = 0;
    std::vector<Table> tables;  // per layer
  };

  const Sequence& sequence(int id) const;
  Sequence& sequence(int id) { return const_cast<Sequence&>(static_cast<const KvCache*>(this)->sequence(id)); }
  const Pool& pool(int layer) const;
  uint32_t take_block(Pool& pool);
  void retain(Pool& pool, uint32_t id) { ++pool.references[id]; }
  void release(Pool& pool, uint32_t id) noexcept;
  void put(Pool& pool, Table& table, size_t slot, uint32_t id);
  void make_room(Sequence& sequence, int64_t positions);
  void make_writable(Sequence& sequence, int64_t begin, int64_t end);
  void make_own(Pool& pool, Table& table, size_t slot, bool keep_content);
  bool holds_window(const Sequence& sequence, int64_t length) const;
  void refresh_views(int id);

  Device& device_;
  KvCacheSpec spec_;
  std::vector<Pool> pools_;  // per layer
  std::vector<Sequence> sequences_;
  std::vector<std::vector<KvSequence>> views_;  // per layer, indexed by sequence id
  size_t bytes_ = 0;
};

}  // namespace carat

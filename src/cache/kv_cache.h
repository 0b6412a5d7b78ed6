// Keys and values of many sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compute/device.h"

namespace carat {

/// One layer that owns keys and values.
struct KvLayerSpec {
  int kv_heads = 0;
  int head_dim = 0;
  int64_t window = 0;  // 0: every position is kept; else a query at p reads back to p - window + 1 at most
};

struct KvCacheSpec {
  std::vector<KvLayerSpec> layers;
  KvFormat format = KvFormat::kF16;
  int64_t max_rows = 512;  // largest extend() of one sequence
};

/// Storage in blocks of kKvBlock positions. Layers without a window grow block by block and never move; layers with one
/// are rings that hold the window and one batch beside it, so that every row of a batch still finds its whole window.
/// Blocks come from per-layer pools and return there. Not thread-safe.
class KvCache {
 public:
  KvCache(Device& device, KvCacheSpec spec);

  /// A new, empty sequence. Ids are small and reused.
  int add_sequence();
  void remove_sequence(int id);

  /// Number of positions of the sequence.
  int64_t length(int id) const { return sequence(id).length; }

  /// Makes room for `rows` more positions, whose keys and values the caller then writes. Throws Error when rows >
  /// max_rows.
  void extend(int id, int64_t rows);

  /// Whether the sequence can be cut to `length`: rings must still hold the window before it.
  bool can_trim(int id, int64_t length) const;
  /// Forgets the positions from `length` on. Throws Error where can_trim says no.
  void trim(int id, int64_t length);

  /// Makes room for `positions` of the sequence in advance.
  void reserve(int id, int64_t positions);

  /// What the device needs to read and write layer `index`. Valid until the next call that changes the cache.
  KvLayer layer(int index) const;

  const KvCacheSpec& spec() const { return spec_; }
  /// Bytes taken from the device.
  size_t bytes() const { return bytes_; }
  /// Bytes that one sequence of `length` positions takes.
  size_t bytes_for(int64_t length) const;

 private:
  struct Sequence {
    bool used = false;
    int64_t length = 0;
    int64_t highest = 0;                          // positions ever written: what a ring may have overwritten
    std::vector<std::vector<std::byte*>> blocks;  // per layer; a ring's table has its full size, filled on first use
  };
  struct Pool {
    size_t block_bytes = 0;
    int64_t ring = 0;  // blocks of a ring; 0 for growing layers
    std::vector<DeviceArray<std::byte>> slabs;
    std::vector<std::byte*> free;
  };

  const Sequence& sequence(int id) const;
  Sequence& sequence(int id);
  std::byte* take_block(Pool& pool);
  void make_room(Sequence& sequence, int64_t positions);
  void refresh_views(int id);

  Device& device_;
  KvCacheSpec spec_;
  std::vector<Pool> pools_;  // per layer
  std::vector<Sequence> sequences_;
  std::vector<std::vector<KvSequence>> views_;  // per layer, indexed by sequence id
  size_t bytes_ = 0;
};

}  // namespace carat

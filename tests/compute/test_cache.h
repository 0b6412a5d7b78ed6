// A KV cache of a few sequences. Until it is set, every float, scale and bias is NaN.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compute/device.h"

namespace carat {

enum class CachePart { kKey = 0, kValue = 1 };

class TestCache {
 public:
  /// Groups are narrowed to the heads, as models do. Where formats.recent is more than 0 there is a cache of the latest
  /// positions, too.
  TestCache(const KvFormats& formats, int kv_heads, int head_dim) {
    layer_.k_format = fit_kv_format(formats.k, head_dim);
    layer_.v_format = fit_kv_format(formats.v, head_dim);
    layer_.kv_heads = kv_heads;
    layer_.head_dim = head_dim;
    if (formats.recent == 0) return;
    layer_.recent.positions = formats.recent;
    recent_ = std::make_unique<TestCache>(recent_formats(formats), kv_heads, head_dim);
  }

  /// A sequence that holds positions [begin, end) in a table without end. Blocks before `begin` are null: a sliding
  /// window has left them behind. Its latest positions are all of these.
  int add_sequence(int64_t begin, int64_t end) {
    if (recent_) recent_->add_sequence(begin, end);
    return add(begin / kKvBlock, (end + kKvBlock - 1) / kKvBlock, INT64_MAX);
  }
  /// A sequence whose table wraps after `ring` blocks.
  int add_ring(int64_t ring) {
    if (recent_) recent_->add_ring(ring);
    return add(0, ring, ring);
  }
  /// A sequence of positions [0, end) whose latest ones are in a table that wraps after `ring` blocks.
  int add_sequence_with_ring(int64_t end, int64_t ring) {
    recent_->add_ring(ring);
    return add(0, (end + kKvBlock - 1) / kKvBlock, INT64_MAX);
  }

  /// The latest positions; only where there are such.
  TestCache& recent() { return *recent_; }
  const TestCache& recent() const { return *recent_; }

  void set(int sequence, int64_t position, CachePart part, int kv_head, std::span<const float> values) {
    store_kv_row(values, format(part), address(sequence, position, part, kv_head));
  }

  /// What is stored: of rotated formats, the rotated values.
  std::vector<float> get(int sequence, int64_t position, CachePart part, int kv_head) const {
    std::vector<float> values(static_cast<size_t>(head_dim()));
    load_kv_row(address(sequence, position, part, kv_head), format(part), values);
    return values;
  }

  /// A row's bytes.
  std::span<std::byte> row(int sequence, int64_t position, CachePart part, int kv_head) {
    return {address(sequence, position, part, kv_head), kv_row_bytes(format(part), head_dim())};
  }

  /// Every byte of every block of a sequence.
  std::vector<std::byte> bytes(int sequence) const {
    std::vector<std::byte> all;
    for (const std::vector<std::byte>& block : storage_[static_cast<size_t>(sequence)]->blocks) {
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }

  KvLayer layer() const {
    KvLayer layer = layer_;
    layer.sequences = sequences_;
    if (recent_) {
      layer.recent.k_format = recent_->layer_.k_format;
      layer.recent.v_format = recent_->layer_.v_format;
      layer.recent.sequences = recent_->sequences_;
    }
    return layer;
  }
  KvFormat format(CachePart part) const { return part == CachePart::kKey ? layer_.k_format : layer_.v_format; }
  int kv_heads() const { return layer_.kv_heads; }
  int head_dim() const { return layer_.head_dim; }

 private:
  struct Storage {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<std::byte*> table;
  };

  int add(int64_t first, int64_t end, int64_t ring) {
    storage_.push_back(std::make_unique<Storage>());
    Storage& storage = *storage_.back();
    const size_t block_bytes =
        static_cast<size_t>(kv_heads() * kKvBlock) * (layer_.k_row_bytes() + layer_.v_row_bytes());
    for (int64_t block = 0; block < end; ++block) {
      if (block >= first) storage.blocks.emplace_back(block_bytes, std::byte{0xff});  // NaN in all formats
      storage.table.push_back(block >= first ? storage.blocks.back().data() : nullptr);
    }
    sequences_.push_back({storage.table.data(), ring});
    return static_cast<int>(sequences_.size()) - 1;
  }

  std::byte* address(int sequence, int64_t position, CachePart part, int kv_head) const {
    const KvSequence& s = sequences_[static_cast<size_t>(sequence)];
    return s.blocks[position / kKvBlock % s.ring] +
           (part == CachePart::kKey ? layer_.k_offset(kv_head, position) : layer_.v_offset(kv_head, position));
  }

  static KvFormats recent_formats(const KvFormats& formats) {
    return {formats.k.is_coded() ? KvFormat::kF16 : formats.k, formats.v.is_coded() ? KvFormat::kF16 : formats.v};
  }

  KvLayer layer_;
  std::vector<std::unique_ptr<Storage>> storage_;
  std::vector<KvSequence> sequences_;
  std::unique_ptr<TestCache> recent_;
};

/// Every kind of format, of every loader that attention has, alike and mixed.
inline std::vector<KvFormats> all_kv_formats() {
  return {KvFormat::kF32,
          KvFormat::kF16,
          KvFormat::kBF16,
          KvFormat::spread(8),
          KvFormat::spread(8, 64),
          KvFormat::spread(4, 64),
          KvFormat::spread(2),
          KvFormat::spread(6, 16),
          KvFormat::affine(8),
          KvFormat::affine(3, 64),
          KvFormat::affine(5),
          {KvFormat::spread(8), KvFormat::affine(4)},
          {KvFormat::spread(8), KvFormat::kF16},
          {KvFormat::kBF16, KvFormat::spread(8)}};
}
/// Those with rotated values, for heads of 2^n numbers.
inline std::vector<KvFormats> rotated_kv_formats() {
  std::vector<KvFormats> formats = {{KvFormat::kF32, KvFormat::rotated(4)}};
  for (const int bits : {2, 3, 4, 5, 8}) formats.emplace_back(KvFormat::spread(8), KvFormat::rotated(bits));
  return formats;
}

/// Coded formats of every kind whose latest positions are floats.
inline std::vector<KvFormats> recent_kv_formats() {
  std::vector<KvFormats> all;
  for (const int recent : {1, 100, 256, 257}) {
    all.emplace_back(KvFormat::spread(4), KvFormat::spread(4), recent);
    all.emplace_back(KvFormat::spread(8), KvFormat::rotated(3), recent);
  }
  all.emplace_back(KvFormat::affine(8), KvFormat::affine(8), 60);
  all.emplace_back(KvFormat::spread(2, 64), KvFormat::kF32, 60);
  all.emplace_back(KvFormat::kBF16, KvFormat::rotated(2), 60);
  return all;
}

/// For the names of tests.
inline std::string test_name(const KvFormats& formats) {
  std::string name =
      formats.k == formats.v ? kv_format_name(formats.k) : kv_format_name(formats.k) + "_" + kv_format_name(formats.v);
  if (formats.recent > 0) name += "_recent" + std::to_string(formats.recent);
  return name;
}

}  // namespace carat

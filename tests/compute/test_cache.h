// A KV cache of a few sequences, every byte of which is NaN until it is set.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "compute/device.h"

namespace carat {

enum class CachePart { kKey = 0, kValue = 1 };

class TestCache {
 public:
  TestCache(KvFormat format, int kv_heads, int head_dim) : format_(format), kv_heads_(kv_heads), head_dim_(head_dim) {}

  /// A sequence that holds positions [begin, end) in a table without end. Blocks before `begin` are null: a sliding
  /// window has left them behind.
  int add_sequence(int64_t begin, int64_t end) {
    return add(begin / kKvBlock, (end + kKvBlock - 1) / kKvBlock, INT64_MAX);
  }
  /// A sequence whose table wraps after `ring` blocks.
  int add_ring(int64_t ring) { return add(0, ring, ring); }

  void set(int sequence, int64_t position, CachePart part, int kv_head, std::span<const float> values) {
    std::byte* at = address(sequence, position, part, kv_head);
    for (const float value : values) {
      const uint16_t half = format_ == KvFormat::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(at, format_ == KvFormat::kF32 ? static_cast<const void*>(&value) : &half, kv_element_bytes(format_));
      at += kv_element_bytes(format_);
    }
  }

  std::vector<float> get(int sequence, int64_t position, CachePart part, int kv_head) const {
    const std::byte* at = address(sequence, position, part, kv_head);
    std::vector<float> values;
    for (int d = 0; d < head_dim_; ++d) {
      values.push_back(load(at));
      at += kv_element_bytes(format_);
    }
    return values;
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
    KvLayer layer;
    layer.format = format_;
    layer.kv_heads = kv_heads_;
    layer.head_dim = head_dim_;
    layer.sequences = sequences_;
    return layer;
  }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }

 private:
  struct Storage {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<std::byte*> table;
  };

  float load(const std::byte* at) const {
    if (format_ == KvFormat::kF32) {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    return format_ == KvFormat::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }

  int add(int64_t first, int64_t end, int64_t ring) {
    storage_.push_back(std::make_unique<Storage>());
    Storage& storage = *storage_.back();
    const size_t block_bytes = static_cast<size_t>(2 * kv_heads_ * kKvBlock * head_dim_) * kv_element_bytes(format_);
    for (int64_t block = 0; block < end; ++block) {
      if (block >= first) storage.blocks.emplace_back(block_bytes, std::byte{0xff});  // NaN in all three formats
      storage.table.push_back(block >= first ? storage.blocks.back().data() : nullptr);
    }
    sequences_.push_back({storage.table.data(), ring});
    return static_cast<int>(sequences_.size()) - 1;
  }

  std::byte* address(int sequence, int64_t position, CachePart part, int kv_head) const {
    const KvSequence& s = sequences_[static_cast<size_t>(sequence)];
    const int64_t in_block = position & (kKvBlock - 1);
    const int64_t element = ((static_cast<int>(part) * kv_heads_ + kv_head) * kKvBlock + in_block) * head_dim_;
    return s.blocks[position / kKvBlock % s.ring] + static_cast<size_t>(element) * kv_element_bytes(format_);
  }

  KvFormat format_;
  int kv_heads_, head_dim_;
  std::vector<std::unique_ptr<Storage>> storage_;
  std::vector<KvSequence> sequences_;
};

inline const char* kv_format_name(KvFormat format) {
  return format == KvFormat::kF32 ? "f32" : format == KvFormat::kF16 ? "f16" : "bf16";
}

}  // namespace carat

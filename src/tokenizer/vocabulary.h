// The pieces of a vocabulary: id -> bytes in one arena, bytes -> id through one open-addressing hash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

/// Built once (reserve, add ...), then read from many threads.
class Vocabulary {
 public:
  static constexpr int kNone = -1;
  /// Ids are below this, so that no file can ask for absurd tables (Gemma's have 262,144).
  static constexpr int kMaxIds = 1 << 22;

  /// Makes room for `pieces` pieces of `bytes` bytes together; more may follow.
  void reserve(size_t pieces, size_t bytes);

  enum class Added : uint8_t { kNew, kIdTaken, kPieceTaken };
  /// Gives the piece to `id` (0 <= id < kMaxIds). An id that has a piece keeps it. A piece that already has an id is
  /// stored, but find() keeps answering with the first.
  Added add(int id, std::string_view piece);
  /// The same, but find() does not know the piece.
  Added add_unlisted(int id, std::string_view piece);

  /// The id of a piece; kNone when there is none.
  int find(std::string_view piece) const {
    if (slots_.empty()) return kNone;
    const uint64_t hash = hash_of(piece);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id == kNone) return kNone;
      if (slot.tag == tag_of(hash) && this->piece(slot.id) == piece) return slot.id;
    }
  }

  bool has(int id) const { return id >= 0 && id < size() && pieces_[static_cast<size_t>(id)].offset != kAbsent; }
  /// REQUIRES has(id).
  std::string_view piece(int id) const {
    const Piece& piece = pieces_[static_cast<size_t>(id)];
    return {arena_.data() + piece.offset, piece.length};
  }
  /// One more than the largest id.
  int size() const { return static_cast<int>(pieces_.size()); }
  /// Bytes of the longest piece.
  size_t longest() const { return longest_; }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct Piece {
    uint32_t offset = kAbsent;
    uint32_t length = 0;
  };
  struct Slot {
    uint32_t tag = 0;  // hash bits that the slot's place does not tell: most misses end here, without reading the piece
    int32_t id = kNone;
  };

  static uint64_t hash_of(std::string_view bytes);
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  void rehash(size_t slots);

  std::string arena_;
  std::vector<Piece> pieces_;  // by id
  std::vector<Slot> slots_;    // a power of two, at most three quarters full
  size_t mask_ = 0;
  size_t used_ = 0;
  size_t longest_ = 0;
};

}  // namespace carat

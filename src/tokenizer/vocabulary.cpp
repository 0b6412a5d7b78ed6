#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace carat {
namespace {

template <typename T>
uint64_t load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t Vocabulary::hash_of(std::string_view bytes) {
  const char* at = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = left;
  for (; left > 8; at += 8, left -= 8) hash = mix(hash, load<uint64_t>(at));
  uint64_t tail = 0;
  if (left >= 4) {  // two loads that overlap cover 4 to 8 bytes
    tail = load<uint32_t>(at) | load<uint32_t>(at + left - 4) << 32;
  } else if (left > 0) {
    tail = load<uint8_t>(at) | load<uint8_t>(at + left / 2) << 8 | load<uint8_t>(at + left - 1) << 16;
  }
  // A second round spreads the tail into the low bits (the slot) and the high bits (the tag).
  return mix(mix(hash, tail), 0x2545F4914F6CDD1Du);
}

void Vocabulary::reserve(size_t pieces, size_t bytes) {
  arena_.reserve(bytes);
  pieces_.reserve(std::min<size_t>(pieces, kMaxIds));
  const size_t slots = std::bit_ceil(std::min<size_t>(pieces, kMaxIds) * 4 / 3 + 2);
  if (slots > slots_.size()) rehash(slots);
}

Vocabulary::Added Vocabulary::add_unlisted(int id, std::string_view piece) {
  if (arena_.size() + piece.size() >= kAbsent) fail("the vocabulary's pieces have more than 4 GiB of text");
  const auto index = static_cast<size_t>(id);
  if (index >= pieces_.size()) pieces_.resize(index + 1);
  if (pieces_[index].offset != kAbsent) return Added::kIdTaken;
  pieces_[index] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(piece.size())};
  arena_.append(piece);
  return Added::kNew;
}

Vocabulary::Added Vocabulary::add(int id, std::string_view piece) {
  if (add_unlisted(id, piece) == Added::kIdTaken) return Added::kIdTaken;
  if ((used_ + 1) * 4 > slots_.size() * 3) rehash(std::max<size_t>(1024, slots_.size() * 2));
  longest_ = std::max(longest_, piece.size());
  const uint64_t hash = hash_of(piece);
  size_t i = hash & mask_;
  for (; slots_[i].id != kNone; i = (i + 1) & mask_) {
    if (slots_[i].tag == tag_of(hash) && this->piece(slots_[i].id) == piece) return Added::kPieceTaken;
  }
  slots_[i] = {tag_of(hash), id};
  ++used_;
  return Added::kNew;
}

void Vocabulary::rehash(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  mask_ = slots - 1;
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    size_t i = hash_of(piece(slot.id)) & mask_;
    while (slots_[i].id != kNone) i = (i + 1) & mask_;
    slots_[i] = slot;
  }
}

}  // namespace carat

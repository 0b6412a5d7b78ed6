// Byte-pair encoding with byte fallback, as the Hugging Face `tokenizers` library computes it.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merges.h"
#include "tokenizer/vocabulary.h"

namespace carat {

/// U+2581, which stands for a space inside pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

struct BpeOptions {
  int unknown_id = Vocabulary::kNone;  // for characters without piece and bytes; they vanish when there is none
  bool fuse_unknown = false;           // neighbouring unknown characters become one unknown token
  bool byte_fallback = false;          // a character that is no piece becomes its bytes' <0xHH>, when all of them exist
  bool ignore_merges = false;          // a text that is a piece as a whole is that piece
};

/// The byte that a piece like "<0x0A>" stands for; -1 for any other piece.
int byte_of_piece(std::string_view piece);

/// The model: pieces and merges. Immutable; safe to use from many threads.
class BpeModel {
 public:
  BpeModel(Vocabulary vocabulary, Merges merges, BpeOptions options);

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  friend class BpeEncoder;

  Vocabulary vocabulary_;
  Merges merges_;
  BpeOptions options_;
  std::array<int, 256> byte_ids_;   // <0xHH>
  std::array<int, 128> ascii_ids_;  // of one-character pieces
  bool splits_words_ = false;       // a text may be cut before space marks ...
  std::bitset<256> glued_bytes_;    // ... except after these bytes: some piece has them before a space mark
};

/// The scratch memory of one encoding. Not thread-safe.
class BpeEncoder {
 public:
  /// Caches the ids of words when `text_bytes`, the size of what will be encoded, makes that worth while.
  BpeEncoder(const BpeModel& model, size_t text_bytes);

  /// Appends the ids of a text whose spaces are space marks already. Time O(n log n) in its bytes.
  /// REQUIRES that `ids` is the same vector in all calls and only grows (the word cache refers to it).
  void encode(std::string_view text, std::vector<int>& ids);

 private:
  struct Symbol {
    uint32_t begin;       // in the word
    uint32_t bytes;       // 0: merged into the symbol before it
    uint32_t characters;  // 0: a raw byte or unknown, which never merges
    int32_t id;
  };
  struct Pair {
    Merges::Priority priority = Merges::kNever;
    int32_t result = Vocabulary::kNone;

    bool before(const Pair& other) const {
      return priority != other.priority ? priority < other.priority : result < other.result;
    }
  };
  struct Link {
    uint32_t previous;
    uint32_t next;
  };
  struct Proposal {
    Pair pair;
    uint32_t left;   // index of the left symbol
    uint32_t bytes;  // of the result; tells a proposal that newer merges have overtaken
  };
  struct CachedWord {
    uint64_t hash = 0;
    uint32_t text = 0;  // offset in cached_text_
    uint32_t bytes = 0;
    size_t first_id = 0;  // index in the caller's ids
    uint32_t ids = 0;
  };

  void encode_word(std::string_view word, std::vector<int>& ids);
  void split_into_symbols(std::string_view word);
  Pair pair(std::string_view word, const Symbol& left, const Symbol& right) const;
  void merge_few(std::string_view word);
  void merge_many(std::string_view word);

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  std::vector<Pair> pairs_;          // merge_few: of symbol i and i + 1
  std::vector<Link> links_;          // merge_many
  std::vector<Proposal> proposals_;  // merge_many: a heap
  std::vector<CachedWord> cache_;    // direct-mapped; empty for short texts
  std::string cached_text_;
};

}  // namespace carat

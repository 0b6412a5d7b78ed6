// Which two neighbouring pieces may become one, and which pair goes first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace carat {

/// The merges of a BPE model. A pair of neighbours is known by the piece that they form and by where it is cut, so no
/// table of pairs is built: a vocabulary file with 515,000 merges costs one look-up per merged piece at load, and one
/// that has scores instead of merges costs nothing. Immutable once built; safe to read from many threads.
class Merges {
 public:
  /// Lower goes first; among equals the one whose result has the lower id, then the leftmost.
  using Priority = uint64_t;
  static constexpr Priority kNever = UINT64_MAX;

  /// One side of a cut.
  struct Part {
    uint32_t bytes = 0;
    uint32_t characters = 0;
  };

  /// Merges by rank, as tokenizer.json and Gemma 4's GGUF files list them. Feed the list in order.
  class RankedBuilder {
   public:
    /// `vocabulary` must outlive the builder and be complete.
    explicit RankedBuilder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
    void reserve(size_t merges);
    /// False when the vocabulary lacks left + right; the merge then never applies (its rank is still used up).
    bool add(std::string_view left, std::string_view right);
    Merges build();

   private:
    struct Merge {
      int32_t result;
      uint32_t cut;
      uint32_t rank;
    };
    const Vocabulary& vocabulary_;
    std::vector<Merge> merges_;
    std::string joined_, previous_;
    int previous_result_ = Vocabulary::kNone;
    uint32_t rank_ = 0;
  };

  /// Merges by score, as SentencePiece vocabularies imply them: any two pieces that form a third may merge, the best
  /// score first, then the longer left side, then the longer right side (in characters). It is the order in which
  /// transformers writes a SentencePiece vocabulary's merges, hence the same ids as the model's tokenizer.json.
  /// One score an id.
  static Merges scored(std::vector<float> scores);

  /// The priority of making `result` out of two neighbours cut like this.
  Priority priority(int result, Part left, Part right) const;

 private:
  struct Cut {
    uint32_t at;  // bytes of the left side
    uint32_t rank;
  };
  std::vector<uint32_t> first_cut_;  // by result id, one more than ids: cuts_[first_cut_[id] .. first_cut_[id + 1])
  std::vector<Cut> cuts_;            // by result, then by rank
  std::vector<float> scores_;        // by result id; empty when ranked
};

}  // namespace carat

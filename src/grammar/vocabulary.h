// The tokens of a model as bytes: a trie to walk automata over, control tokens kept apart.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/local_mask.h"

namespace carat {

/// The bytes of tokens in preorder: a subtree is a range, so that a walk is one loop and a dead branch one jump.
struct TokenTrie {
  struct Node {
    uint32_t skip = 0;   // the first node behind this subtree
    int32_t token = -1;  // the first of the tokens that end here; twins follow in GrammarVocabulary::next_twin
    uint8_t byte = 0;
    uint8_t depth = 0;   // bytes from the root, whose depth is 0
    uint8_t height = 0;  // bytes to the deepest node below it
  };
  std::vector<Node> nodes;  // [0] is the root

  /// REQUIRES: `tokens` sorted by bytes; none empty. `twins` takes the chains of tokens with equal bytes.
  void build(std::span<const std::pair<std::string_view, int>> tokens, std::vector<int32_t>& twins);
};

/// Tokens that are whole characters, none of which ends or escapes a text of one syntax.
struct PlainTokens {
  std::vector<uint64_t> mask;      // all of them
  std::vector<int32_t> by_length;  // ascending in characters
  std::vector<uint32_t> ends;      // [characters]: how many in by_length have at most so many
  TokenTrie others;                // the tokens that are not plain
};

class GrammarVocabulary {
 public:
  /// Longer tokens are never allowed; walks keep a state a byte.
  static constexpr size_t kMaxTokenBytes = 255;

  GrammarVocabulary(const Tokenizer& tokenizer, int vocab, std::vector<int> stop_ids);

  size_t words() const { return (static_cast<size_t>(vocab_) + 63) / 64; }
  int vocab() const { return vocab_; }
  const std::vector<int>& stop_ids() const { return stop_ids_; }
  bool is_stop(int token) const;
  /// The id of a control token; nullopt where the vocabulary lacks it.
  std::optional<int> control(std::string_view piece) const;
  /// The same; throws Error naming it when there is none.
  int require_control(std::string_view piece) const;
  /// Empty for control tokens, stop tokens and ids without a piece.
  std::string_view bytes(int token) const;
  const TokenTrie& trie() const { return trie_; }
  const PlainTokens& plain(Syntax syntax) const { return plain_[static_cast<size_t>(syntax)]; }
  int32_t next_twin(int32_t token) const { return twins_[static_cast<size_t>(token)]; }
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }
  /// All tokens with bytes, and <channel|>: what may be said in a thought.
  const std::vector<uint64_t>& thought_mask() const { return thought_mask_; }
  /// All tokens without bytes: control tokens, stop tokens, ids without a piece.
  const std::vector<uint64_t>& silent_mask() const { return silent_mask_; }

  /// Masks inside free texts are the same for all grammars.
  LocalMaskCache& text_masks() const { return text_masks_; }

 private:
  int vocab_;
  std::vector<int> stop_ids_;
  std::map<std::string, int, std::less<>> controls_;
  std::string arena_;
  std::vector<uint32_t> offsets_;  // [vocab + 1]
  std::vector<int32_t> twins_;     // [vocab]
  TokenTrie trie_;
  std::array<PlainTokens, 2> plain_;  // by Syntax
  size_t longest_ = 0;
  std::vector<uint64_t> thought_mask_;
  std::vector<uint64_t> silent_mask_;
  mutable LocalMaskCache text_masks_;
};

}  // namespace carat

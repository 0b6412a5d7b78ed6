// Tokens that are cut out of a text before BPE sees it: control tokens and pieces the vocabulary's makers added whole.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

/// Finds added tokens in a text, the leftmost first and of those the longest. Built once (add ..., build), then read
/// from many threads.
class AddedTokens {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int id = 0;
    bool special = false;
  };

  /// An empty content never matches; of equal contents the first added counts.
  void add(std::string_view content, int id, bool special);
  void build();

  bool empty() const { return tokens_.empty(); }
  /// The first match that begins at `from` or later.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Token {
    std::string content;
    int id;
    bool special;
  };
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  std::vector<Token> tokens_;               // sorted by content after build()
  std::array<Range, 256> by_first_byte_{};  // of tokens_
};

}  // namespace carat

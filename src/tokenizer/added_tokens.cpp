#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace carat {

void AddedTokens::add(std::string_view content, int id, bool special) {
  if (!content.empty()) tokens_.push_back({std::string(content), id, special});
}

void AddedTokens::build() {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const Token& a, const Token& b) { return a.content < b.content; });
  const auto equal = [](const Token& a, const Token& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), equal), tokens_.end());
  by_first_byte_ = {};
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<uint8_t>(tokens_[i].content[0])];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    auto [low, high] = by_first_byte_[static_cast<uint8_t>(text[begin])];
    if (low == high) continue;
    const Token* longest = nullptr;
    // tokens_[low, high) are those that start with the text's next `depth` bytes; one that ends there sorts first.
    for (size_t depth = 1; low < high; ++depth) {
      if (tokens_[low].content.size() == depth) longest = &tokens_[low++];
      if (begin + depth == text.size()) break;
      const auto next = static_cast<uint8_t>(text[begin + depth]);
      const auto byte = [depth](const Token& token) { return static_cast<uint8_t>(token.content[depth]); };
      const auto first = std::partition_point(tokens_.begin() + low, tokens_.begin() + high,
                                              [&](const Token& token) { return byte(token) < next; });
      const auto last =
          std::partition_point(first, tokens_.begin() + high, [&](const Token& token) { return byte(token) == next; });
      low = static_cast<uint32_t>(first - tokens_.begin());
      high = static_cast<uint32_t>(last - tokens_.begin());
    }
    if (longest) return Match{begin, begin + longest->content.size(), longest->id, longest->special};
  }
  return std::nullopt;
}

}  // namespace carat

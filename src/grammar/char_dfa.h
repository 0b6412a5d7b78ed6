// Languages of characters: patterns, formats, lengths and numbers before they become bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carat {

/// A deterministic automaton over Unicode characters. Every state leads to acceptance, unless the language is empty:
/// then there is no state at all.
struct CharDfa {
  static constexpr uint32_t kLastCharacter = 0x10ffff;
  static constexpr size_t kMaxStates = 8'000;

  struct Edge {
    uint32_t first = 0, last = 0;  // characters
    uint32_t to = 0;
  };
  struct State {
    std::vector<Edge> edges;  // ascending, disjoint
    bool accepting = false;
  };
  std::vector<State> states;  // [0] is the start

  bool empty() const { return states.empty(); }
  bool accepts(std::string_view utf8) const;
};

/// What both accept. Throws Error beyond kMaxStates.
CharDfa both(const CharDfa& a, const CharDfa& b);
/// Texts with a number of characters in [shortest, longest]; no limit for nullopt. Throws Error beyond kMaxStates.
CharDfa of_length(uint64_t shortest, std::optional<uint64_t> longest);
/// What `dfa` accepts save `words`.
CharDfa without(const CharDfa& dfa, const std::vector<std::string>& words);
/// Drops states that lead nowhere.
void trim(CharDfa& dfa);

/// The texts in which an ECMAScript pattern (with the flag u) is found. The subset stands in docs/structured-output.md;
/// Error for what lies beyond it, named by `where`.
CharDfa pattern_dfa(std::string_view pattern, const std::string& where);

/// The texts of a format of JSON Schema; null for formats that constrain nothing here.
std::shared_ptr<const CharDfa> format_dfa(std::string_view format);

}  // namespace carat

// Numbers within bounds, as text.
#pragma once

#include <compare>
#include <optional>
#include <string>

#include "chat/chat.h"
#include "grammar/char_dfa.h"

namespace carat {

/// A decimal number, exactly.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  /// REQUIRES value.is_number(); a double is the shortest decimal that reads as it.
  static Decimal of(const Json& value);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal& other) const { return (*this <=> other) == 0; }
};

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;  // the bound itself is outside

  void at_least(const Decimal& bound, bool open);
  void at_most(const Decimal& bound, bool open);
  bool bounded() const { return low || high; }
  bool contain(const Decimal& value) const;
};

/// Integers of at most 18 digits (19 where the bounds lie beyond), or decimals without exponent and with at most 15
/// digits, which doubles tell apart. Throws Error naming `where` when all of them would need more digits.
CharDfa number_dfa(const NumberBounds& bounds, bool integer, const std::string& where);

}  // namespace carat

#include "grammar/number.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carat {
namespace {

std::strong_ordering compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
  if (const auto order = a.whole <=> b.whole; order != 0) return order;
  return a.fraction <=> b.fraction;
}

Decimal magnitude(Decimal value) {
  value.negative = false;
  return value;
}

/// How the digits read so far compare with those of a bound; `kEqual` so far.
enum class Order : uint8_t { kLess, kEqual, kGreater };

Order next_order(Order order, char digit, char bound) {
  if (order != Order::kEqual || digit == bound) return order;
  return digit < bound ? Order::kLess : Order::kGreater;
}

/// One magnitude as it is compared with a bound digit by digit.
struct Comparison {
  const Decimal* bound = nullptr;  // null: none

  Order whole_digit(Order order, size_t index, char digit) const {
    if (bound == nullptr) return order;
    return index < bound->whole.size() ? next_order(order, digit, bound->whole[index]) : Order::kGreater;
  }
  Order whole_end(Order order, size_t digits) const {
    return bound != nullptr && digits < bound->whole.size() ? Order::kLess : order;
  }
  Order fraction_digit(Order order, size_t index, char digit) const {
    if (bound == nullptr) return order;
    return next_order(order, digit, index < bound->fraction.size() ? bound->fraction[index] : '0');
  }
  Order end(Order order, size_t fraction_digits) const {
    const bool more = bound != nullptr && fraction_digits < bound->fraction.size();
    return order == Order::kEqual && more ? Order::kLess : order;
  }
};

/// Magnitudes in a range, behind an optional sign.
struct Stretch {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;
};

class NumberWriter {
 public:
  NumberWriter(size_t whole_digits, size_t all_digits, bool integer)
      : whole_digits_(whole_digits), all_digits_(all_digits), integer_(integer) {}

  void add(const Stretch& stretch, bool negative) { stretches_[negative ? 1 : 0] = stretch; }

  CharDfa write() {
    state_of({});
    for (size_t i = 0; i < keys_.size(); ++i) {
      const Key key = keys_[i];
      CharDfa::State state;
      state.accepting = accepting(key);
      static constexpr std::string_view kAlphabet = "-.0123456789";  // ascending
      for (const char c : kAlphabet) {
        if (const auto next = step(key, c)) {
          const auto code = static_cast<uint32_t>(c);
          const uint32_t to = state_of(*next);
          if (!state.edges.empty() && state.edges.back().to == to && state.edges.back().last + 1 == code) {
            state.edges.back().last = code;
          } else {
            state.edges.push_back({code, code, to});
          }
        }
      }
      out_.states.push_back(std::move(state));
    }
    trim(out_);
    return std::move(out_);
  }

 private:
  enum class Part : uint8_t { kStart, kSign, kZero, kWhole, kPoint, kFraction };
  struct Key {
    Part part = Part::kStart;
    bool negative = false;
    size_t whole = 0, fraction = 0;  // digits
    Order low = Order::kEqual, high = Order::kEqual;
    auto operator<=>(const Key&) const = default;
  };

  Comparison low(const Key& key) const { return comparison(stretches_[key.negative ? 1 : 0]->low); }
  Comparison high(const Key& key) const { return comparison(stretches_[key.negative ? 1 : 0]->high); }
  static Comparison comparison(const std::optional<Decimal>& bound) { return {bound ? &*bound : nullptr}; }

  uint32_t state_of(const Key& key) {
    const auto [it, added] = ids_.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (added) keys_.push_back(key);
    return it->second;
  }

  std::optional<Key> step(Key key, char c) const {
    if (c == '-') {
      if (key.part != Part::kStart || !stretches_[1]) return std::nullopt;
      key.part = Part::kSign;
      key.negative = true;
      return key;
    }
    if (!stretches_[key.negative ? 1 : 0]) return std::nullopt;
    if (c == '.') {
      const bool behind_whole = key.part == Part::kZero || key.part == Part::kWhole;
      if (integer_ || !behind_whole || key.whole >= all_digits_) return std::nullopt;
      key.low = low(key).whole_end(key.low, key.whole);
      key.high = high(key).whole_end(key.high, key.whole);
      key.part = Part::kPoint;
      return key;
    }
    switch (key.part) {
      case Part::kStart:
      case Part::kSign:
      case Part::kWhole:
        if (key.whole >= whole_digits_) return std::nullopt;
        key.low = low(key).whole_digit(key.low, key.whole, c);
        key.high = high(key).whole_digit(key.high, key.whole, c);
        key.part = key.whole == 0 && c == '0' ? Part::kZero : Part::kWhole;
        ++key.whole;
        return key;
      case Part::kZero:
        return std::nullopt;
      case Part::kPoint:
      case Part::kFraction:
        if (key.whole + key.fraction >= all_digits_) return std::nullopt;
        key.low = low(key).fraction_digit(key.low, key.fraction, c);
        key.high = high(key).fraction_digit(key.high, key.fraction, c);
        key.part = Part::kFraction;
        ++key.fraction;
        return key;
    }
    return std::nullopt;
  }

  bool accepting(const Key& key) const {
    const bool whole = key.part == Part::kZero || key.part == Part::kWhole;
    if (!whole && key.part != Part::kFraction) return false;
    const Stretch& stretch = *stretches_[key.negative ? 1 : 0];
    const auto order = [&](Order so_far, const Comparison& comparison) {
      if (comparison.bound == nullptr) return Order::kEqual;
      if (whole) so_far = comparison.whole_end(so_far, key.whole);
      return comparison.end(so_far, key.fraction);
    };
    if (stretch.low) {
      const Order low_order = order(key.low, low(key));
      if (low_order == Order::kLess || (low_order == Order::kEqual && stretch.low_open)) return false;
    }
    if (stretch.high) {
      const Order high_order = order(key.high, high(key));
      if (high_order == Order::kGreater || (high_order == Order::kEqual && stretch.high_open)) return false;
    }
    return true;
  }

  size_t whole_digits_, all_digits_;
  bool integer_;
  std::optional<Stretch> stretches_[2];  // without and with a sign
  std::map<Key, uint32_t> ids_;
  std::vector<Key> keys_;
  CharDfa out_;
};

}  // namespace

Decimal Decimal::of(const Json& value) {
  Decimal out;
  std::string text;
  if (value.is_number_float()) {
    text = fmt::format("{}", value.get<double>());
  } else if (value.is_number_unsigned()) {
    text = std::to_string(value.get<uint64_t>());
  } else {
    text = std::to_string(value.get<int64_t>());
  }
  size_t at = 0;
  if (text[0] == '-') {
    out.negative = true;
    at = 1;
  }
  std::string digits;
  int point = -1;
  int exponent = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '.') {
      point = static_cast<int>(digits.size());
    } else if (text[at] == 'e' || text[at] == 'E') {
      const char* begin = text.data() + at + 1 + (text[at + 1] == '+' ? 1 : 0);
      std::from_chars(begin, text.data() + text.size(), exponent);
      break;
    } else {
      digits += text[at];
    }
  }
  point = (point < 0 ? static_cast<int>(digits.size()) : point) + exponent;
  if (point < 0) {
    digits.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (static_cast<size_t>(point) > digits.size()) digits.append(static_cast<size_t>(point) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.fraction = digits.substr(static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole.assign(1, '0');
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative != other.negative) return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  const auto order = compare_magnitudes(*this, other);
  return negative ? 0 <=> order : order;
}

void NumberBounds::at_least(const Decimal& bound, bool open) {
  if (low && (*low > bound || (*low == bound && low_open))) return;
  low = bound;
  low_open = open;
}

void NumberBounds::at_most(const Decimal& bound, bool open) {
  if (high && (*high < bound || (*high == bound && high_open))) return;
  high = bound;
  high_open = open;
}

bool NumberBounds::contain(const Decimal& value) const {
  if (low && (value < *low || (low_open && value == *low))) return false;
  return !high || !(value > *high || (high_open && value == *high));
}

CharDfa number_dfa(const NumberBounds& bounds, bool integer, const std::string& where) {
  const size_t usual = integer ? 18 : 15;
  size_t whole_digits = usual;
  std::optional<Stretch> positive = Stretch{Decimal{}, std::nullopt, false, false};
  std::optional<Stretch> negative = positive;
  if (bounds.high) {
    if (bounds.high->negative) {
      positive.reset();
      negative->low = magnitude(*bounds.high);
      negative->low_open = bounds.high_open;
    } else {
      positive->high = *bounds.high;
      positive->high_open = bounds.high_open;
      negative->low_open = bounds.high->is_zero() && bounds.high_open;
    }
  }
  if (bounds.low) {
    if (!bounds.low->negative) {
      negative.reset();
      if (positive) {
        positive->low = *bounds.low;
        positive->low_open = bounds.low_open;
      }
    } else if (negative) {
      negative->high = magnitude(*bounds.low);
      negative->high_open = bounds.low_open;
    }
  }
  if (integer && negative && negative->low->is_zero()) negative->low_open = true;  // no -0
  // Where everything allowed is that large.
  const size_t needed = std::max(positive   ? 0
                                 : negative ? negative->low->whole.size()
                                            : 0,
                                 negative   ? 0
                                 : positive ? positive->low->whole.size()
                                            : 0);
  if (needed > usual && integer && needed <= 19) whole_digits = 19;
  if (needed > whole_digits)
    fail("{}: bounds of more than {} digits before the point are not supported", where, whole_digits);

  NumberWriter writer(whole_digits, integer ? whole_digits : usual, integer);
  if (positive) writer.add(*positive, false);
  if (negative) writer.add(*negative, true);
  return writer.write();
}

}  // namespace carat

#include "tokenizer/utf8.h"

#include <algorithm>

namespace carat {

Utf8Unit utf8_unit(std::string_view text, size_t at) {
  using Kind = Utf8Unit::Kind;
  const auto byte = [&](size_t offset) { return static_cast<uint8_t>(text[at + offset]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kIllFormed, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte's range depends on the lead: it excludes overlong forms, surrogates and what is past U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  const size_t available = std::min(length, text.size() - at);
  for (size_t i = 1; i < available; ++i) {
    if (byte(i) < low || byte(i) > high) return {Kind::kIllFormed, i};
    low = 0x80;
    high = 0xBF;
  }
  if (available < length) return {Kind::kCut, available};
  return {Kind::kCharacter, length};
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const Utf8Unit unit = utf8_unit(text, at);
    at += unit.kind == Utf8Unit::Kind::kCharacter ? unit.length : 1;
  }
  return count;
}

}  // namespace carat

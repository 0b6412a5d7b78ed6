#include "chat/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "chat/unicode_tables.h"

namespace carat::unicode {
namespace {

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

std::string convert(std::string_view text, char first_ascii, char last_ascii, std::span<const CaseRun> runs,
                    std::span<const CaseExpansion> expansions) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    const uint32_t code = next(text, position);
    if (code < 0x80) {
      const char byte = static_cast<char>(code);
      out += byte >= first_ascii && byte <= last_ascii ? static_cast<char>(byte ^ 0x20) : byte;
      continue;
    }
    const auto run = std::ranges::lower_bound(runs, code, {}, &CaseRun::last);
    if (run != runs.end() && code >= run->first && (code - run->first) % run->stride == 0) {
      append(out, static_cast<uint32_t>(static_cast<int32_t>(code) + run->delta));
      continue;
    }
    const auto expansion = std::ranges::lower_bound(expansions, code, {}, &CaseExpansion::from);
    if (expansion != expansions.end() && expansion->from == code) {
      out += expansion->to;
    } else {
      out += text.substr(start, position - start);
    }
  }
  return out;
}

}  // namespace

uint32_t next(std::string_view text, size_t& position) {
  const auto lead = static_cast<unsigned char>(text[position++]);
  if (lead < 0x80) return lead;
  const size_t tail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - position < tail) return kInvalid;
  uint32_t code = lead & (0x3fu >> tail);
  for (size_t i = 0; i < tail; ++i) {
    if (!is_continuation(text[position + i])) return kInvalid;
    code = code << 6 | (static_cast<unsigned char>(text[position + i]) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[tail] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return kInvalid;
  position += tail;
  return code;
}

void append(std::string& text, uint32_t code) {
  const auto byte = [&](uint32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
}

bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
         code == 0x205f || code == 0x3000;
}

bool is_printable(uint32_t code) {
  if (code < 0x20) return false;
  const auto range = std::ranges::lower_bound(kUnprintable, code, {}, &CodeRange::last);
  return range == std::end(kUnprintable) || code < range->first;
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    size_t position = 0;
    if (!is_space(next(text, position))) break;
    text.remove_prefix(position);
  }
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && is_continuation(text[start])) --start;
    size_t position = start;
    if (!is_space(next(text, position)) || position != text.size()) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::string upper(std::string_view text) {
  return convert(text, 'a', 'z', kUpperRuns, kUpperExpansions);
}

std::string lower(std::string_view text) {
  return convert(text, 'A', 'Z', kLowerRuns, kLowerExpansions);
}

}  // namespace carat::unicode

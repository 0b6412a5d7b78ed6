// Unicode as Python's str methods see it: the templates were written for them, and equal bytes need equal answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace carat::unicode {

/// What next() gives for a byte that begins no valid UTF-8 sequence.
inline constexpr uint32_t kInvalid = 0xffffffff;

/// The code point at `position`, which moves behind it; kInvalid moves one byte on. REQUIRES: position < text.size().
uint32_t next(std::string_view text, size_t& position);
void append(std::string& text, uint32_t code);

/// str.isspace for one code point.
bool is_space(uint32_t code);
/// str.isprintable for one code point.
bool is_printable(uint32_t code);

/// str.strip(): without the white space at both ends.
std::string_view strip(std::string_view text);
/// str.upper(). Bytes that are not UTF-8 stay as they are.
std::string upper(std::string_view text);
/// str.lower(), save that a capital sigma at the end of a word becomes the ordinary small one (it only serves sorting).
std::string lower(std::string_view text);

}  // namespace carat::unicode

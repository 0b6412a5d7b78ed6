// One step through bytes that may or may not be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace carat {

/// What stands at one place of a text.
struct Utf8Unit {
  enum class Kind : uint8_t {
    kCharacter,  // a whole well-formed character
    kIllFormed,  // a maximal ill-formed sequence: one U+FFFD in every decoder that follows the Unicode standard
    kCut,        // the text ends inside what may still become a character
  };
  Kind kind = Kind::kCharacter;
  size_t length = 0;  // bytes, 1 to 4
};

/// The unit that starts at text[at]; REQUIRES at < text.size(). Surrogates, overlong forms and values above U+10FFFF
/// are ill-formed.
Utf8Unit utf8_unit(std::string_view text, size_t at);

/// The character U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Number of characters of a text; bytes of ill-formed sequences count one each.
size_t utf8_length(std::string_view text);

}  // namespace carat

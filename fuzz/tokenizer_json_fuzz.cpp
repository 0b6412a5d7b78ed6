// A tokenizer.json, then after a zero byte a text for it (without one: the file's own last bytes).
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  const std::string_view text =
      zero == input.npos ? input.substr(size - std::min<size_t>(size, 64)) : input.substr(zero + 1);
  try {
    const auto tokenizer = carat::Tokenizer::from_json_text(json, "input");
    for (const auto specials : {carat::Tokenizer::Specials::kParse, carat::Tokenizer::Specials::kText}) {
      const auto ids = tokenizer->encode(text, specials);
      tokenizer->decode(ids, true);
      carat::StreamDecoder decoder(tokenizer, specials == carat::Tokenizer::Specials::kParse);
      for (const int id : ids) {
        // Every id that encoding yields is one of the vocabulary's.
        if (!tokenizer->id(tokenizer->piece(id))) std::abort();
        decoder.push(id);
      }
      decoder.finish();
    }
  } catch (const carat::Error&) {
  }
  return 0;
}

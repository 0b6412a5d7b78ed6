#include <utility>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace carat {

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool with_specials)
    : tokenizer_(std::move(tokenizer)), with_specials_(with_specials) {}

std::string StreamDecoder::push(int id) {
  pending_ += tokenizer_->decode({id}, with_specials_);
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Unit unit = utf8_unit(pending_, at);
    if (unit.kind == Utf8Unit::Kind::kCut) break;
    if (unit.kind == Utf8Unit::Kind::kCharacter) {
      text.append(pending_, at, unit.length);
    } else {
      text += kReplacementCharacter;
    }
    at += unit.length;
  }
  pending_.erase(0, at);
  return text;
}

std::string StreamDecoder::finish() {
  // What is pending is the beginning of one character: one maximal ill-formed sequence.
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace carat

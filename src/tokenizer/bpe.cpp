#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace carat {
namespace {

// Up to this many symbols, looking at all pairs for the best is faster than a heap.
constexpr size_t kFewSymbols = 32;

constexpr size_t kCachedWords = 4096;         // a power of two
constexpr size_t kLongestCachedWord = 32;     // bytes
constexpr size_t kShortestCachedText = 2048;  // bytes

constexpr uint32_t kNoSymbol = UINT32_MAX;

bool is_mark_at(std::string_view text, size_t at) {
  return text.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
}
bool is_mark_before(std::string_view text, size_t at) {
  return at >= kSpaceMark.size() && is_mark_at(text, at - kSpaceMark.size());
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

BpeModel::BpeModel(Vocabulary vocabulary, Merges merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
  }
  for (size_t c = 0; c < ascii_ids_.size(); ++c) {
    const char character = static_cast<char>(c);
    ascii_ids_[c] = vocabulary_.find({&character, 1});
  }
  // A text may be cut where no merge can reach across. No piece of Gemma's continues with a space mark after something
  // else, save ">▁</", so words can be encoded one by one (and remembered). The mark itself must be a piece: an unknown
  // one could fuse with unknown characters before it.
  splits_words_ = vocabulary_.find(kSpaceMark) != Vocabulary::kNone;
  for (int id = 0; id < vocabulary_.size(); ++id) {
    if (!vocabulary_.has(id)) continue;
    const std::string_view piece = vocabulary_.piece(id);
    for (size_t at = piece.find(kSpaceMark, 1); at != piece.npos; at = piece.find(kSpaceMark, at + 1)) {
      if (!is_mark_before(piece, at)) glued_bytes_.set(static_cast<uint8_t>(piece[at - 1]));
    }
  }
}

BpeEncoder::BpeEncoder(const BpeModel& model, size_t text_bytes) : model_(model) {
  if (text_bytes >= kShortestCachedText && model.splits_words_) cache_.resize(kCachedWords);
}

void BpeEncoder::encode(std::string_view text, std::vector<int>& ids) {
  // Symbols and heap entries count bytes in 32 bits.
  if (text.size() >= UINT32_MAX) fail("a text of {} bytes is too long to tokenize; the limit is 4 GiB", text.size());
  if (model_.options_.ignore_merges) {
    if (const int whole = model_.vocabulary_.find(text); whole != Vocabulary::kNone) {
      ids.push_back(whole);
      return;
    }
  }
  size_t begin = 0;
  while (model_.splits_words_ && begin < text.size()) {
    size_t end = begin + 1;
    do {
      end = text.find(kSpaceMark, end);
      if (end == text.npos) break;
      if (!is_mark_before(text, end) && !model_.glued_bytes_[static_cast<uint8_t>(text[end - 1])]) break;
      ++end;
    } while (true);
    if (end == text.npos) break;
    encode_word(text.substr(begin, end - begin), ids);
    begin = end;
  }
  if (begin < text.size()) encode_word(text.substr(begin), ids);
}

void BpeEncoder::encode_word(std::string_view word, std::vector<int>& ids) {
  CachedWord* slot = nullptr;
  if (!cache_.empty() && word.size() <= kLongestCachedWord) {
    const uint64_t hash = std::hash<std::string_view>{}(word);
    slot = &cache_[hash & (kCachedWords - 1)];
    if (slot->hash == hash && word == std::string_view(cached_text_).substr(slot->text, slot->bytes)) {
      for (size_t i = 0; i < slot->ids; ++i) ids.push_back(ids[slot->first_id + i]);
      return;
    }
    // What a slot forgets stays in the buffer; a text without repetitions stops being remembered at its limit.
    if (cached_text_.size() + word.size() < UINT32_MAX) {
      *slot = {hash, static_cast<uint32_t>(cached_text_.size()), static_cast<uint32_t>(word.size()), ids.size(), 0};
      cached_text_.append(word);
    } else {
      slot = nullptr;
    }
  }
  split_into_symbols(word);
  if (symbols_.size() <= kFewSymbols) {
    merge_few(word);
  } else {
    merge_many(word);
  }
  const size_t before = ids.size();
  for (const Symbol& symbol : symbols_) {
    if (symbol.bytes > 0) ids.push_back(symbol.id);
  }
  if (slot) slot->ids = static_cast<uint32_t>(ids.size() - before);
}

void BpeEncoder::split_into_symbols(std::string_view word) {
  symbols_.clear();
  const BpeOptions& options = model_.options_;
  // An unknown character waits until the next piece, so that its neighbours can join it. Bytes do not end the wait
  // (they overtake it): that is what the reference does.
  Symbol unknown{0, 0, 0, options.unknown_id};
  const auto flush = [&] {
    if (unknown.bytes > 0) symbols_.push_back(unknown);
    unknown.bytes = 0;
  };
  for (uint32_t at = 0; at < word.size();) {
    const Utf8Unit unit = utf8_unit(word, at);
    const bool is_character = unit.kind == Utf8Unit::Kind::kCharacter;
    const uint32_t bytes = is_character ? static_cast<uint32_t>(unit.length) : 1;
    const std::string_view text = word.substr(at, bytes);
    int id = Vocabulary::kNone;
    if (is_character) {
      id = bytes == 1 ? model_.ascii_ids_[static_cast<uint8_t>(text[0])] : model_.vocabulary_.find(text);
    }
    if (id != Vocabulary::kNone) {
      flush();
      symbols_.push_back({at, bytes, 1, id});
    } else if (options.byte_fallback && std::ranges::all_of(text, [&](char byte) {
                 return model_.byte_ids_[static_cast<uint8_t>(byte)] != Vocabulary::kNone;
               })) {
      for (uint32_t i = 0; i < bytes; ++i) {
        symbols_.push_back({at + i, 1, 0, model_.byte_ids_[static_cast<uint8_t>(text[i])]});
      }
    } else if (options.unknown_id != Vocabulary::kNone) {
      if (!options.fuse_unknown) flush();
      unknown.bytes += bytes;
    }
    at += bytes;
  }
  flush();
}

BpeEncoder::Pair BpeEncoder::pair(std::string_view word, const Symbol& left, const Symbol& right) const {
  if (left.characters == 0 || right.characters == 0) return {};
  const size_t bytes = size_t{left.bytes} + right.bytes;
  if (bytes > model_.vocabulary_.longest()) return {};
  const int result = model_.vocabulary_.find(word.substr(left.begin, bytes));
  if (result == Vocabulary::kNone) return {};
  return {model_.merges_.priority(result, {left.bytes, left.characters}, {right.bytes, right.characters}), result};
}

void BpeEncoder::merge_few(std::string_view word) {
  if (symbols_.size() < 2) return;
  pairs_.resize(symbols_.size() - 1);
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] = pair(word, symbols_[i], symbols_[i + 1]);
  while (!pairs_.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < pairs_.size(); ++i) {
      if (pairs_[i].before(pairs_[best])) best = i;
    }
    if (pairs_[best].priority == Merges::kNever) return;
    Symbol& left = symbols_[best];
    const Symbol& right = symbols_[best + 1];
    left = {left.begin, left.bytes + right.bytes, left.characters + right.characters, pairs_[best].result};
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) pairs_[best - 1] = pair(word, symbols_[best - 1], symbols_[best]);
    if (best < pairs_.size()) pairs_[best] = pair(word, symbols_[best], symbols_[best + 1]);
  }
}

void BpeEncoder::merge_many(std::string_view word) {
  const auto count = static_cast<uint32_t>(symbols_.size());
  const auto later = [](const Proposal& a, const Proposal& b) {
    if (a.pair.before(b.pair)) return false;
    return b.pair.before(a.pair) || a.left > b.left;
  };
  const auto propose = [&](uint32_t left, uint32_t right) {
    const Pair found = pair(word, symbols_[left], symbols_[right]);
    if (found.priority == Merges::kNever) return false;
    proposals_.push_back({found, left, symbols_[left].bytes + symbols_[right].bytes});
    return true;
  };
  links_.resize(count);
  proposals_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    links_[i] = {i == 0 ? kNoSymbol : i - 1, i + 1 == count ? kNoSymbol : i + 1};
    if (i + 1 < count) propose(i, i + 1);
  }
  std::make_heap(proposals_.begin(), proposals_.end(), later);
  while (!proposals_.empty()) {
    std::pop_heap(proposals_.begin(), proposals_.end(), later);
    const Proposal best = proposals_.back();
    proposals_.pop_back();
    Symbol& left = symbols_[best.left];
    const uint32_t next = links_[best.left].next;
    // Symbols only grow to the right: the pair is still the one proposed if its place and length are.
    if (left.bytes == 0 || next == kNoSymbol || left.bytes + symbols_[next].bytes != best.bytes) continue;
    left = {left.begin, best.bytes, left.characters + symbols_[next].characters, best.pair.result};
    symbols_[next].bytes = 0;
    const uint32_t after = links_[next].next;
    links_[best.left].next = after;
    if (after != kNoSymbol) {
      links_[after].previous = best.left;
      if (propose(best.left, after)) std::push_heap(proposals_.begin(), proposals_.end(), later);
    }
    if (const uint32_t before = links_[best.left].previous; before != kNoSymbol) {
      if (propose(before, best.left)) std::push_heap(proposals_.begin(), proposals_.end(), later);
    }
  }
}

}  // namespace carat

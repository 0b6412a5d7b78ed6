#include "grammar/vocabulary.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace carat {
namespace {

constexpr std::array<std::string_view, 12> kControls = {
    "<|tool_call>",     "<tool_call|>", "<|\"|>",  "<|channel>", "<channel|>", "<|tool_response>",
    "<tool_response|>", "<|tool>",      "<tool|>", "<|turn>",    "<turn|>",    "<|think|>"};

void set(std::vector<uint64_t>& mask, int token) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

/// The characters of `text`; nullopt when one is broken, or has a meaning inside a text of `syntax`.
std::optional<size_t> plain_characters(std::string_view text, Syntax syntax) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const Utf8Unit unit = utf8_unit(text, at);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return std::nullopt;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (syntax == Syntax::kJson && (byte < 0x20 || byte == '"' || byte == '\\')) return std::nullopt;
    at += unit.length;
  }
  return count;
}

/// Most comparisons need no more than the first eight bytes.
void sort_by_bytes(std::vector<std::pair<std::string_view, int>>& tokens) {
  struct Keyed {
    uint64_t head = 0;
    std::pair<std::string_view, int> token;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(tokens.size());
  for (const auto& token : tokens) {
    uint64_t head = 0;
    for (size_t i = 0; i < 8; ++i) {
      head = head << 8 | (i < token.first.size() ? static_cast<unsigned char>(token.first[i]) : 0u);
    }
    keyed.push_back({head, token});
  }
  std::ranges::sort(
      keyed, [](const Keyed& a, const Keyed& b) { return a.head != b.head ? a.head < b.head : a.token < b.token; });
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = keyed[i].token;
}

/// Empty for an id without a piece: vocabularies have few such holes.
std::string bytes_of(const Tokenizer& tokenizer, int id) {
  try {
    return tokenizer.token_bytes(id);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void TokenTrie::build(std::span<const std::pair<std::string_view, int>> tokens, std::vector<int32_t>& twins) {
  nodes.assign(1, Node{});
  std::vector<uint32_t> path = {0};  // the nodes of the text before
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      Node& closed = nodes[path.back()];
      Node& parent = nodes[path[path.size() - 2]];
      closed.skip = static_cast<uint32_t>(nodes.size());
      parent.height = std::max<uint8_t>(parent.height, static_cast<uint8_t>(closed.height + 1));
    }
  };
  for (const auto& [text, token] : tokens) {
    size_t common = 0;
    while (common < text.size() && common < before.size() && text[common] == before[common]) ++common;
    close_to(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      Node node;
      node.byte = static_cast<uint8_t>(text[depth]);
      node.depth = static_cast<uint8_t>(depth + 1);
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back(node);
    }
    twins[static_cast<size_t>(token)] = std::exchange(nodes[path.back()].token, token);
    before = text;
  }
  close_to(0);
  nodes[0].skip = static_cast<uint32_t>(nodes.size());
}

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, int vocab, std::vector<int> stop_ids)
    : vocab_(vocab), stop_ids_(std::move(stop_ids)) {
  if (vocab <= 0 || vocab > (1 << 24)) fail("a vocabulary of {} tokens cannot be constrained", vocab);
  std::erase_if(stop_ids_, [&](int id) { return id < 0 || id >= vocab; });
  std::ranges::sort(stop_ids_);
  if (stop_ids_.empty()) fail("constrained decoding needs a token that ends a reply, and the model names none");
  for (const std::string_view piece : kControls) {
    if (const auto id = tokenizer.id(piece); id && *id < vocab) controls_.emplace(piece, *id);
  }
  std::vector<bool> kept(static_cast<size_t>(vocab), true);
  for (const int id : stop_ids_) kept[static_cast<size_t>(id)] = false;
  for (const auto& [piece, id] : controls_) kept[static_cast<size_t>(id)] = false;

  const int known = std::min(vocab, tokenizer.vocab_size());
  offsets_.reserve(static_cast<size_t>(vocab) + 1);
  for (int id = 0; id < vocab; ++id) {
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
    if (id >= known || !kept[static_cast<size_t>(id)]) continue;
    const std::string text = bytes_of(tokenizer, id);
    if (text.size() <= kMaxTokenBytes) arena_ += text;
  }
  offsets_.push_back(static_cast<uint32_t>(arena_.size()));

  std::vector<std::pair<std::string_view, int>> tokens;
  tokens.reserve(static_cast<size_t>(vocab));
  thought_mask_.assign(words(), 0);
  silent_mask_.assign(words(), 0);
  for (int id = 0; id < vocab; ++id) {
    const std::string_view text = bytes(id);
    if (text.empty()) {
      set(silent_mask_, id);
      continue;
    }
    tokens.emplace_back(text, id);
    longest_ = std::max(longest_, text.size());
    set(thought_mask_, id);
  }
  if (const auto close = control("<channel|>")) set(thought_mask_, *close);
  sort_by_bytes(tokens);
  twins_.assign(static_cast<size_t>(vocab), -1);
  trie_.build(tokens, twins_);

  for (const Syntax syntax : {Syntax::kJson, Syntax::kCall}) {
    PlainTokens& plain = plain_[static_cast<size_t>(syntax)];
    plain.mask.assign(words(), 0);
    std::vector<std::pair<std::string_view, int>> others;
    std::vector<std::pair<uint32_t, int32_t>> lengths;
    for (const auto& [text, id] : tokens) {
      if (const auto characters = plain_characters(text, syntax)) {
        set(plain.mask, id);
        lengths.emplace_back(static_cast<uint32_t>(*characters), id);
      } else {
        others.emplace_back(text, id);
      }
    }
    std::ranges::sort(lengths);
    plain.ends.assign(longest_ + 1, 0);
    for (const auto& [characters, id] : lengths) {
      plain.by_length.push_back(id);
      ++plain.ends[characters];
    }
    for (size_t i = 1; i < plain.ends.size(); ++i) plain.ends[i] += plain.ends[i - 1];
    std::vector<int32_t> twins(twins_.size());  // the same chains again: equal bytes are plain or not together
    plain.others.build(others, twins);
  }
}

bool GrammarVocabulary::is_stop(int token) const {
  return std::ranges::binary_search(stop_ids_, token);
}

std::optional<int> GrammarVocabulary::control(std::string_view piece) const {
  const auto it = controls_.find(piece);
  return it == controls_.end() ? std::nullopt : std::optional(it->second);
}

int GrammarVocabulary::require_control(std::string_view piece) const {
  if (const auto id = control(piece)) return *id;
  fail("the vocabulary has no token {}: tool calls in Gemma 4's syntax and thoughts need it", piece);
}

std::string_view GrammarVocabulary::bytes(int token) const {
  if (token < 0 || token >= vocab_) return {};
  const auto i = static_cast<size_t>(token);
  return std::string_view(arena_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

std::shared_ptr<const GrammarVocabulary> make_grammar_vocabulary(const Tokenizer& tokenizer, int vocab,
                                                                 std::vector<int> stop_ids) {
  return std::make_shared<const GrammarVocabulary>(tokenizer, vocab, std::move(stop_ids));
}

}  // namespace carat

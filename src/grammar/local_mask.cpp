#include "grammar/local_mask.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace carat {
namespace {

constexpr size_t kMaxCacheBytes = size_t{32} << 20;

void set(std::span<uint64_t> mask, int token) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

void clear(std::span<uint64_t> mask, int token) {
  mask[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
}

bool is_body(const Automaton& automaton, uint32_t state) {
  return state == automaton.body[0] || state == automaton.body[1];
}

LocalMask make_mask(const Automaton& automaton, const GrammarVocabulary& vocabulary, LocalState state) {
  LocalMask mask;
  for (const Automaton::TokenStep& step : automaton.tokens_of(state.state)) {
    if (automaton.heights[step.to] > state.budget) continue;
    if (is_body(automaton, state.state) && state.needed > 0) continue;
    mask.tokens.push_back(step.token);
  }
  const TokenTrie* trie = &vocabulary.trie();
  const PlainTokens* plain = nullptr;
  if (is_body(automaton, state.state)) {
    plain = &vocabulary.plain(state.state == automaton.body[0] ? Syntax::kJson : Syntax::kCall);
    trie = &plain->others;
  }
  walk_subtree(automaton, vocabulary, *trie, 0, state, mask.tokens, mask.exits);
  std::ranges::stable_sort(mask.exits, {}, &LocalExit::state);

  const size_t few = vocabulary.words() * 2;  // as bytes: as many as the bits
  size_t more = 0;
  if (plain != nullptr) more = plain->ends[std::min<size_t>(state.remaining, plain->ends.size() - 1)];
  if (mask.tokens.size() + more < few) {
    if (plain != nullptr)
      mask.tokens.insert(mask.tokens.end(), plain->by_length.begin(),
                         plain->by_length.begin() + static_cast<ptrdiff_t>(more));
    mask.tokens.shrink_to_fit();
    return mask;
  }
  if (more * 2 > (plain == nullptr ? 0 : plain->by_length.size())) {
    mask.bits = plain->mask;
    for (size_t i = more; i < plain->by_length.size(); ++i) clear(mask.bits, plain->by_length[i]);
  } else {
    mask.bits.assign(vocabulary.words(), 0);
    for (size_t i = 0; i < more; ++i) set(mask.bits, plain->by_length[i]);
  }
  for (const int token : mask.tokens) set(mask.bits, token);
  mask.tokens = {};
  return mask;
}

}  // namespace

LocalState step(const Automaton& automaton, LocalState from, uint8_t byte) {
  const uint32_t to = automaton.next[from.state * automaton.width + automaton.classes[byte]];
  const auto dead = [] { return LocalState{}; };
  if (automaton.heights[to] > from.budget) return dead();
  if (from.state >= automaton.text_states) {
    from.state = to;
    return from;
  }
  if (is_body(automaton, from.state)) {
    const bool closes = to == automaton.done[0];
    if (closes ? from.needed > 0 : from.remaining == 0) return dead();
  }
  if (is_body(automaton, to) && from.state != automaton.open[0]) {
    if (from.remaining != LocalState::kNoLimit) --from.remaining;
    if (from.needed > 0) --from.needed;
  }
  from.state = to;
  return from;
}

void LocalMask::add_to(std::span<uint64_t> mask) const {
  for (size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
  for (const int token : tokens) set(mask, token);
}

void walk_subtree(const Automaton& automaton, const GrammarVocabulary& vocabulary, const TokenTrie& trie, uint32_t node,
                  LocalState from, std::vector<int32_t>& tokens, std::vector<LocalExit>& exits) {
  std::array<LocalState, GrammarVocabulary::kMaxTokenBytes + 1> path;
  const std::vector<TokenTrie::Node>& nodes = trie.nodes;
  const uint32_t base = nodes[node].depth;
  const uint32_t end = nodes[node].skip;
  path[0] = from;
  for (uint32_t i = node + 1; i < end;) {
    const TokenTrie::Node& at = nodes[i];
    const uint32_t depth = at.depth - base;
    const LocalState to = step(automaton, path[depth - 1], at.byte);
    if (to.state == 0) {
      i = at.skip;
      continue;
    }
    path[depth] = to;
    for (int32_t token = at.token; token >= 0; token = vocabulary.next_twin(token)) tokens.push_back(token);
    if (automaton.exits[to.state] && at.skip > i + 1) exits.push_back({to.state, i, &trie});
    ++i;
  }
}

LocalState normalized(const Automaton& automaton, const GrammarVocabulary& vocabulary, LocalState state) {
  const auto longest = static_cast<uint32_t>(vocabulary.longest());
  if (state.state < automaton.text_states) {
    if (state.remaining > longest) state.remaining = LocalState::kNoLimit;
    state.needed = std::min(state.needed, longest + 1);
    state.budget = 0;
  } else {
    state.budget = std::min(state.budget, automaton.tallest);
  }
  return state;
}

uint64_t key_of(LocalState state) {
  const uint64_t remaining = state.remaining == LocalState::kNoLimit ? 0xffff : state.remaining;
  return uint64_t{state.state} | remaining << 16 | uint64_t{state.needed} << 32 | uint64_t{state.budget} << 48;
}

std::shared_ptr<const LocalMask> LocalMaskCache::get(const Automaton& automaton, const GrammarVocabulary& vocabulary,
                                                     LocalState state) {
  const uint64_t key = key_of(state);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = masks_.find(key); it != masks_.end()) return it->second;
  }
  auto mask = std::make_shared<const LocalMask>(make_mask(automaton, vocabulary, state));
  const std::lock_guard lock(mutex_);
  if (bytes_ + mask->size_in_bytes() > kMaxCacheBytes) return mask;
  const auto [it, added] = masks_.try_emplace(key, mask);
  if (added) bytes_ += mask->size_in_bytes();
  return it->second;
}

}  // namespace carat

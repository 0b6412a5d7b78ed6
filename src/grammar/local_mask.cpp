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

/// The states that a rule is in while it is read, those before, between and behind what it calls.
std::vector<uint32_t> states_of(const Automaton& automaton, size_t rule) {
  std::vector<uint32_t> states = {automaton.rules[rule].start};
  std::vector<bool> seen(automaton.states());
  const auto meet = [&](uint32_t state) {
    if (state == 0 || seen[state]) return;
    seen[state] = true;
    states.push_back(state);
  };
  seen[states.front()] = true;
  for (size_t i = 0; i < states.size(); ++i) {
    const uint32_t state = states[i];
    for (size_t c = 0; c < automaton.width; ++c) meet(automaton.next[state * automaton.width + c]);
    for (const Automaton::TokenStep& step : automaton.tokens_of(state)) meet(step.to);
    for (const Automaton::Call& call : automaton.calls_of(state)) meet(call.back);
  }
  return states;
}

/// Of a state of a text around calls: all tokens with bytes, save those that reach into a call. Looks only where the
/// trie is deeper than it is to the call.
LocalMask make_text_mask(const Automaton& automaton, const GrammarVocabulary& vocabulary, LocalState from) {
  LocalMask mask;
  mask.bits = vocabulary.thought_mask();
  const TokenTrie& trie = vocabulary.trie();
  std::array<uint32_t, GrammarVocabulary::kMaxTokenBytes + 1> path;
  path[0] = from.state;
  for (uint32_t i = 1; i < trie.nodes.size();) {
    const TokenTrie::Node& at = trie.nodes[i];
    const uint32_t state = automaton.next[path[at.depth - 1u] * automaton.width + automaton.classes[at.byte]];
    path[at.depth] = state;
    if (automaton.distances[state] >= at.height) {
      i = at.skip;
      continue;
    }
    ++i;
    if (automaton.distances[state] > 0) continue;
    mask.exits.push_back({state, i - 1, &trie});
    for (; i < at.skip; ++i) {
      for (int32_t token = trie.nodes[i].token; token >= 0; token = vocabulary.next_twin(token))
        clear(mask.bits, token);
    }
  }
  std::ranges::stable_sort(mask.exits, {}, &LocalExit::state);
  if (mask.exits.empty()) return {.open = true, .bits = {}, .tokens = {}, .exits = {}};
  return mask;
}

LocalMask make_mask(const Automaton& automaton, const GrammarVocabulary& vocabulary, LocalState state) {
  if (!automaton.distances.empty() && automaton.distances[state.state] > 0) {
    return make_text_mask(automaton, vocabulary, state);
  }
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

std::vector<uint8_t> distances_to_calls(const Automaton& automaton, size_t root) {
  std::vector<uint8_t> distances(automaton.states(), 0);
  std::vector<uint32_t> near, left;
  for (const uint32_t state : states_of(automaton, root)) {
    (automaton.calls_of(state).empty() ? left : near).push_back(state);
  }
  for (const uint32_t state : left) distances[state] = 255;
  // Round by round those from which one byte leads to what the last round has found.
  for (uint8_t distance = 1; distance < 255 && !near.empty(); ++distance) {
    std::vector<bool> found(automaton.states());
    for (const uint32_t state : near) found[state] = true;
    near.clear();
    std::erase_if(left, [&](uint32_t state) {
      for (size_t c = 0; c < automaton.width; ++c) {
        if (!found[automaton.next[state * automaton.width + c]]) continue;
        distances[state] = distance;
        near.push_back(state);
        return true;
      }
      return false;
    });
  }
  return distances;
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

size_t LocalMaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace carat

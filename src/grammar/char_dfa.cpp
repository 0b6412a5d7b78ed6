#include "grammar/char_dfa.h"

#include <algorithm>
#include <map>
#include <utility>

#include "chat/unicode.h"

namespace carat {

bool CharDfa::accepts(std::string_view utf8) const {
  if (states.empty()) return false;
  uint32_t state = 0;
  for (size_t at = 0; at < utf8.size();) {
    const uint32_t code = unicode::next(utf8, at);
    const std::vector<Edge>& edges = states[state].edges;
    const auto edge = std::ranges::lower_bound(edges, code, {}, &Edge::last);
    if (edge == edges.end() || code < edge->first) return false;
    state = edge->to;
  }
  return states[state].accepting;
}

void trim(CharDfa& dfa) {
  const size_t n = dfa.states.size();
  std::vector<std::vector<uint32_t>> sources(n);
  std::vector<bool> alive(n, false);
  std::vector<uint32_t> pending;
  for (size_t i = 0; i < n; ++i) {
    for (const CharDfa::Edge& edge : dfa.states[i].edges) sources[edge.to].push_back(static_cast<uint32_t>(i));
    if (!dfa.states[i].accepting) continue;
    alive[i] = true;
    pending.push_back(static_cast<uint32_t>(i));
  }
  while (!pending.empty()) {
    const uint32_t state = pending.back();
    pending.pop_back();
    for (const uint32_t source : sources[state]) {
      if (alive[source]) continue;
      alive[source] = true;
      pending.push_back(source);
    }
  }
  if (n == 0 || !alive[0]) {
    dfa.states.clear();
    return;
  }
  std::vector<uint32_t> names(n, 0);
  uint32_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    if (alive[i]) names[i] = kept++;
  }
  for (size_t i = 0; i < n; ++i) {
    if (!alive[i]) continue;
    CharDfa::State state = std::move(dfa.states[i]);
    std::erase_if(state.edges, [&](const CharDfa::Edge& edge) { return !alive[edge.to]; });
    for (CharDfa::Edge& edge : state.edges) edge.to = names[edge.to];
    dfa.states[names[i]] = std::move(state);
  }
  dfa.states.resize(kept);
}

CharDfa both(const CharDfa& a, const CharDfa& b) {
  CharDfa out;
  if (a.empty() || b.empty()) return out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto state_of = [&](uint32_t x, uint32_t y) {
    const auto [it, added] = ids.try_emplace({x, y}, static_cast<uint32_t>(pairs.size()));
    if (added) {
      if (pairs.size() >= CharDfa::kMaxStates) {
        fail("a string's pattern, format and length together need more than {} states", CharDfa::kMaxStates);
      }
      pairs.emplace_back(x, y);
    }
    return it->second;
  };
  state_of(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [x, y] = pairs[i];
    CharDfa::State state;
    state.accepting = a.states[x].accepting && b.states[y].accepting;
    const std::vector<CharDfa::Edge>& left = a.states[x].edges;
    const std::vector<CharDfa::Edge>& right = b.states[y].edges;
    for (size_t l = 0, r = 0; l < left.size() && r < right.size();) {
      const uint32_t first = std::max(left[l].first, right[r].first);
      const uint32_t last = std::min(left[l].last, right[r].last);
      if (first <= last) state.edges.push_back({first, last, state_of(left[l].to, right[r].to)});
      (left[l].last < right[r].last ? l : r) += 1;
    }
    out.states.push_back(std::move(state));
  }
  trim(out);
  return out;
}

CharDfa of_length(uint64_t shortest, std::optional<uint64_t> longest) {
  const uint64_t count = longest.value_or(shortest);
  if (count >= CharDfa::kMaxStates) {
    fail("a string with a pattern or format may have length limits below {}, not {}", CharDfa::kMaxStates, count);
  }
  CharDfa out;
  for (uint64_t i = 0; i <= count; ++i) {
    CharDfa::State state;
    state.accepting = i >= shortest;
    if (i < count) state.edges.push_back({0, CharDfa::kLastCharacter, static_cast<uint32_t>(i + 1)});
    out.states.push_back(std::move(state));
  }
  if (!longest) out.states.back().edges.push_back({0, CharDfa::kLastCharacter, static_cast<uint32_t>(count)});
  trim(out);
  return out;
}

CharDfa without(const CharDfa& dfa, const std::vector<std::string>& words) {
  // The trie of the words, with an edge to "anything" beside every one of its edges.
  constexpr uint32_t kAnything = 0;
  struct Trie {
    std::map<uint32_t, uint32_t> next;
    bool word = false;
  };
  std::vector<Trie> trie(2);  // [0]: anything, [1]: the root
  for (const std::string& word : words) {
    uint32_t node = 1;
    for (size_t at = 0; at < word.size();) {
      const uint32_t code = unicode::next(word, at);
      const auto [it, added] = trie[node].next.try_emplace(code, static_cast<uint32_t>(trie.size()));
      node = it->second;
      if (added) trie.emplace_back();
    }
    trie[node].word = true;
  }
  std::swap(trie[0], trie[1]);  // the start comes first
  const auto renamed = [](uint32_t node) { return node == kAnything ? 1u : node == 1 ? 0u : node; };
  CharDfa complement;
  for (const Trie& node : trie) {
    CharDfa::State state;
    state.accepting = !node.word;
    uint32_t from = 0;
    for (const auto& [code, to] : node.next) {
      if (code > from) state.edges.push_back({from, code - 1, renamed(kAnything)});
      state.edges.push_back({code, code, renamed(to)});
      from = code + 1;
    }
    if (from <= CharDfa::kLastCharacter) state.edges.push_back({from, CharDfa::kLastCharacter, renamed(kAnything)});
    complement.states.push_back(std::move(state));
  }
  return both(dfa, complement);
}

}  // namespace carat

#include "grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace carat {
namespace {

using Node = Nfa::Node;

constexpr uint32_t kNever = 255;  // height of what cannot be ended
/// Edges looked at; a language that needs more would keep its client waiting.
constexpr size_t kMaxWork = 20'000'000;

struct NodesHash {
  size_t operator()(const std::vector<Node>& nodes) const {
    uint64_t hash = nodes.size();
    for (const Node node : nodes) hash = (hash ^ node) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
  }
};

struct ByteStep {
  uint8_t first = 0, last = 0;
  uint32_t to = 0;
};

struct DraftState {
  std::vector<ByteStep> bytes;
  std::vector<Automaton::Call> calls;
  std::vector<Automaton::TokenStep> tokens;
  bool accepting = false;
};

/// The subset construction, one rule after the other; states of all rules in one list.
class Determiniser {
 public:
  Determiniser() : states_(1) {}

  uint32_t add(const Nfa& nfa, Node start, Node end) {
    nfa_ = &nfa;
    end_ = end;
    ids_.clear();
    pending_.clear();
    const uint32_t first = state_of({start});
    for (size_t i = 0; i < pending_.size(); ++i) expand(pending_[i].first, pending_[i].second);
    return first;
  }

  /// The state of the rule added last that stands for this node alone; REQUIRES that there is one.
  uint32_t find(Node node) const { return ids_.at({node}); }

  std::vector<DraftState>& states() { return states_; }

 private:
  /// Follows empty edges; keeps what has others, and the end.
  void close(std::vector<Node>& nodes) {
    std::vector<Node> kept;
    stack_.assign(nodes.begin(), nodes.end());
    if (seen_.size() < nfa_->size()) seen_.resize(nfa_->size(), 0);
    ++mark_;
    for (const Node node : stack_) seen_[node] = mark_;
    while (!stack_.empty()) {
      const Node node = stack_.back();
      stack_.pop_back();
      bool keep = node == end_;
      for (uint32_t e = nfa_->first_edge(node); e != Nfa::kNone; e = nfa_->edge(e).next) {
        const Nfa::Edge& edge = nfa_->edge(e);
        if (++work_ > kMaxWork) fail("the language is too large to be compiled: too many alternatives at once");
        if (edge.kind != Nfa::Kind::kEmpty) {
          keep = true;
        } else if (std::exchange(seen_[edge.to], mark_) != mark_) {
          stack_.push_back(edge.to);
        }
      }
      if (keep) kept.push_back(node);
    }
    const std::set<Node>& commitments = nfa_->commitments();
    const auto commits = [&](Node node) { return commitments.contains(node); };
    if (!commitments.empty() && std::ranges::any_of(kept, commits)) {
      std::erase_if(kept, [&](Node node) { return !commits(node); });
    }
    std::ranges::sort(kept);
    nodes = std::move(kept);
  }

  uint32_t state_of(std::vector<Node> nodes) {
    close(nodes);
    const auto [it, added] = ids_.try_emplace(std::move(nodes), static_cast<uint32_t>(states_.size()));
    if (added) {
      if (states_.size() >= Automaton::kMaxStates) {
        fail("the language is too large to be compiled: more than {} states", Automaton::kMaxStates);
      }
      states_.emplace_back();
      pending_.emplace_back(it->second, it->first);
    }
    return it->second;
  }

  void expand(uint32_t state, const std::vector<Node>& subset) {
    const std::vector<Node> nodes = subset;  // pending_ grows
    std::vector<const Nfa::Edge*> byte_edges;
    std::map<int32_t, std::vector<Node>> calls, tokens;
    DraftState draft;
    for (const Node node : nodes) {
      draft.accepting |= node == end_;
      for (uint32_t e = nfa_->first_edge(node); e != Nfa::kNone; e = nfa_->edge(e).next) {
        const Nfa::Edge& edge = nfa_->edge(e);
        if (edge.kind == Nfa::Kind::kBytes) byte_edges.push_back(&edge);
        if (edge.kind == Nfa::Kind::kCall) calls[edge.value].push_back(edge.to);
        if (edge.kind == Nfa::Kind::kToken) tokens[edge.value].push_back(edge.to);
      }
    }
    for (auto& [rule, targets] : calls) draft.calls.push_back({static_cast<uint32_t>(rule), target(targets), 0});
    for (auto& [token, targets] : tokens) draft.tokens.push_back({token, target(targets)});

    std::bitset<257> cut;
    for (const Nfa::Edge* edge : byte_edges) {
      cut.set(edge->first);
      cut.set(edge->last + 1u);
    }
    for (size_t from = 0; from < 256;) {
      size_t to = from + 1;
      while (to < 256 && !cut[to]) ++to;
      std::vector<Node> targets;
      for (const Nfa::Edge* edge : byte_edges) {
        if (edge->first <= from && from <= edge->last) targets.push_back(edge->to);
      }
      work_ += byte_edges.size();
      if (!targets.empty()) {
        const uint32_t next = target(targets);
        const auto first = static_cast<uint8_t>(from);
        const auto last = static_cast<uint8_t>(to - 1);
        if (!draft.bytes.empty() && draft.bytes.back().to == next && draft.bytes.back().last + 1 == first) {
          draft.bytes.back().last = last;
        } else {
          draft.bytes.push_back({first, last, next});
        }
      }
      from = to;
    }
    states_[state] = std::move(draft);
  }

  uint32_t target(std::vector<Node>& nodes) {
    std::ranges::sort(nodes);
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return state_of(nodes);
  }

  const Nfa* nfa_ = nullptr;
  Node end_ = 0;
  std::unordered_map<std::vector<Node>, uint32_t, NodesHash> ids_;
  std::vector<std::pair<uint32_t, std::vector<Node>>> pending_;
  std::vector<DraftState> states_;
  std::vector<Node> stack_;
  std::vector<uint32_t> seen_;
  uint32_t mark_ = 0;
  size_t work_ = 0;
};

struct TextNodes {
  Node open = 0, body = 0, done = 0;
};

TextNodes write_json_text(Nfa& nfa) {
  const TextNodes text{nfa.add(), nfa.add(), nfa.add()};
  const auto hex = [&](Node from, Node to) {
    nfa.bytes(from, to, '0', '9');
    nfa.bytes(from, to, 'a', 'f');
    nfa.bytes(from, to, 'A', 'F');
  };
  nfa.bytes(text.open, text.body, '"', '"');
  nfa.bytes(text.body, text.done, '"', '"');
  nfa.characters(text.body, text.body, 0x20, 0x21);
  nfa.characters(text.body, text.body, 0x23, 0x5b);
  nfa.characters(text.body, text.body, 0x5d, 0x10ffff);
  const Node escape = nfa.add();
  nfa.bytes(text.body, escape, '\\', '\\');
  for (const char c : std::string_view("\"\\/bfnrt")) {
    nfa.bytes(escape, text.body, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  }
  // \uXXXX; a high surrogate only before a low one.
  const Node digits4 = nfa.literal(escape, "u");
  const Node digits3 = nfa.add(), digits2 = nfa.add(), digits1 = nfa.add(), d = nfa.add();
  nfa.bytes(digits4, digits3, '0', '9');
  for (const char base : {'a', 'A'}) {
    const auto letter = static_cast<uint8_t>(base);
    nfa.bytes(digits4, digits3, letter, letter + 2);
    nfa.bytes(digits4, d, letter + 3, letter + 3);
    nfa.bytes(digits4, digits3, letter + 4, letter + 5);
  }
  hex(digits3, digits2);
  hex(digits2, digits1);
  hex(digits1, text.body);
  nfa.bytes(d, digits2, '0', '7');
  const Node high2 = nfa.add(), high1 = nfa.add(), high0 = nfa.add(), low3 = nfa.add();
  nfa.bytes(d, high2, '8', '9');
  nfa.bytes(d, high2, 'a', 'b');
  nfa.bytes(d, high2, 'A', 'B');
  hex(high2, high1);
  hex(high1, high0);
  const Node low4 = nfa.literal(high0, "\\u");
  nfa.bytes(low4, low3, 'd', 'd');
  nfa.bytes(low4, low3, 'D', 'D');
  nfa.bytes(low3, digits2, 'c', 'f');
  nfa.bytes(low3, digits2, 'C', 'F');
  return text;
}

TextNodes write_raw_text(Nfa& nfa, int quote) {
  const TextNodes text{nfa.add(), nfa.add(), nfa.add()};
  nfa.token(text.open, text.body, quote);
  nfa.token(text.body, text.done, quote);
  nfa.characters(text.body, text.body, 0, 0x10ffff);
  return text;
}

uint32_t height_of(const std::vector<DraftState>& states, const std::vector<uint8_t>& heights,
                   const std::vector<Automaton::Rule>& rules, uint32_t state) {
  const DraftState& draft = states[state];
  if (draft.accepting) return 0;
  uint32_t height = kNever;
  for (const ByteStep& step : draft.bytes) height = std::min<uint32_t>(height, heights[step.to]);
  for (const Automaton::TokenStep& step : draft.tokens) height = std::min<uint32_t>(height, heights[step.to]);
  for (const Automaton::Call& call : draft.calls) {
    const uint32_t below = heights[rules[call.rule].start] + 1u;
    height = std::min(height, std::max<uint32_t>(below, heights[call.back]));
  }
  return height > Automaton::kMaxNesting ? kNever : height;
}

/// Levels that each state needs; kNever for those from which nothing finite follows.
std::vector<uint8_t> heights_of(const std::vector<DraftState>& states, const std::vector<Automaton::Rule>& rules) {
  std::vector<uint8_t> heights(states.size(), kNever);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = states.size() - 1; i > 0; --i) {
      const auto height = static_cast<uint8_t>(height_of(states, heights, rules, static_cast<uint32_t>(i)));
      changed |= height != std::exchange(heights[i], height);
    }
  }
  return heights;
}

void drop_dead(std::vector<DraftState>& states, const std::vector<uint8_t>& heights,
               const std::vector<Automaton::Rule>& rules) {
  for (DraftState& state : states) {
    std::erase_if(state.bytes, [&](const ByteStep& step) { return heights[step.to] == kNever; });
    std::erase_if(state.tokens, [&](const Automaton::TokenStep& step) { return heights[step.to] == kNever; });
    for (Automaton::Call& call : state.calls) {
      call.height = std::max<uint32_t>(heights[rules[call.rule].start] + 1u, heights[call.back]);
    }
    std::erase_if(state.calls, [&](const Automaton::Call& call) { return call.height > Automaton::kMaxNesting; });
  }
}

/// Orders rules so that callers at their very start come before what they call.
class Ranks {
 public:
  Ranks(const std::vector<DraftState>& states, const std::vector<Automaton::Rule>& rules)
      : states_(states), rules_(rules), ranks_(states.size(), UINT16_MAX), open_(states.size(), false) {
    for (const Automaton::Rule& rule : rules) rank(rule.start);
  }
  std::vector<uint16_t> take() { return std::move(ranks_); }

 private:
  uint16_t rank(uint32_t start) {
    if (ranks_[start] != UINT16_MAX) return ranks_[start];
    if (open_[start]) fail("a schema refers to itself without anything in between");
    if (++depth_ > 1000) fail("schemas refer to each other in a chain of more than 1000");
    open_[start] = true;
    uint16_t highest = 0;
    for (const Automaton::Call& call : states_[start].calls) {
      highest = std::max<uint16_t>(highest, static_cast<uint16_t>(rank(rules_[call.rule].start) + 1));
    }
    --depth_;
    open_[start] = false;
    return ranks_[start] = highest;
  }

  const std::vector<DraftState>& states_;
  const std::vector<Automaton::Rule>& rules_;
  std::vector<uint16_t> ranks_;
  std::vector<bool> open_;
  int depth_ = 0;
};

void fill_steps(const std::vector<DraftState>& states, Automaton& automaton) {
  std::bitset<257> cut;
  for (const DraftState& state : states) {
    for (const ByteStep& step : state.bytes) {
      cut.set(step.first);
      cut.set(step.last + 1u);
    }
  }
  uint8_t current = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && cut[byte]) ++current;
    automaton.classes[byte] = current;
  }
  automaton.width = current + 1u;
  automaton.next.assign(states.size() * automaton.width, 0);
  for (size_t i = 0; i < states.size(); ++i) {
    for (const ByteStep& step : states[i].bytes) {
      for (size_t c = automaton.classes[step.first]; c <= automaton.classes[step.last]; ++c) {
        automaton.next[i * automaton.width + c] = static_cast<uint16_t>(step.to);
      }
    }
  }
}

void fill_states(const std::vector<DraftState>& states, Automaton& automaton) {
  for (const DraftState& state : states) {
    automaton.accepting.push_back(state.accepting);
    automaton.exits.push_back(state.accepting || !state.calls.empty());
    automaton.steps.push_back(!state.bytes.empty() || !state.tokens.empty());
    automaton.first_call.push_back(static_cast<uint32_t>(automaton.calls.size()));
    automaton.first_token.push_back(static_cast<uint32_t>(automaton.tokens.size()));
    automaton.calls.insert(automaton.calls.end(), state.calls.begin(), state.calls.end());
    automaton.tokens.insert(automaton.tokens.end(), state.tokens.begin(), state.tokens.end());
  }
  automaton.first_call.push_back(static_cast<uint32_t>(automaton.calls.size()));
  automaton.first_token.push_back(static_cast<uint32_t>(automaton.tokens.size()));
}

}  // namespace

Nfa::Node Nfa::add() {
  if (heads_.size() >= kMaxNodes) fail("the language is too large to be compiled: more than {} nodes", kMaxNodes);
  heads_.push_back(kNone);
  return static_cast<Node>(heads_.size() - 1);
}

void Nfa::link(Node from, Edge edge) {
  if (edges_.size() >= 4 * kMaxNodes)
    fail("the language is too large to be compiled: more than {} edges", 4 * kMaxNodes);
  edge.next = heads_[from];
  heads_[from] = static_cast<uint32_t>(edges_.size());
  edges_.push_back(edge);
}

Nfa::Node Nfa::literal(Node from, std::string_view text) {
  for (const char c : text) {
    const Node to = add();
    bytes(from, to, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
    from = to;
  }
  return from;
}

void Nfa::characters(Node from, Node to, uint32_t first, uint32_t last) {
  struct Stretch {
    uint32_t first, last;
    int length;  // bytes behind the first
  };
  static constexpr Stretch kStretches[] = {
      {0, 0x7f, 0}, {0x80, 0x7ff, 1}, {0x800, 0xd7ff, 2}, {0xe000, 0xffff, 2}, {0x10000, 0x10ffff, 3}};
  for (const Stretch& stretch : kStretches) {
    const uint32_t low = std::max(first, stretch.first);
    const uint32_t high = std::min(last, stretch.last);
    if (low <= high) utf8(from, to, low, high, stretch.length);
  }
}

/// The bytes of [first, last], all of `length` + 1 bytes; the bits of the lead byte's mark are not among them.
void Nfa::utf8(Node from, Node to, uint32_t first, uint32_t last, int length) {
  static constexpr uint8_t kLeads[] = {0, 0xc0, 0xe0, 0xf0};
  // The recursion over continuation bytes, which all carry the same mark.
  const auto rest = [this, to](const auto& self, Node node, uint32_t low, uint32_t high, int left,
                               uint8_t mark) -> void {
    if (left == 0) return bytes(node, to, static_cast<uint8_t>(mark | low), static_cast<uint8_t>(mark | high));
    const uint32_t unit = 1u << (6 * left);
    uint32_t top = low / unit;
    uint32_t end = high / unit;
    const auto part = [&](uint32_t lead_first, uint32_t lead_last, uint32_t part_low, uint32_t part_high) {
      const Node middle = add();
      bytes(node, middle, static_cast<uint8_t>(mark | lead_first), static_cast<uint8_t>(mark | lead_last));
      self(self, middle, part_low, part_high, left - 1, 0x80);
    };
    if (top == end) return part(top, top, low % unit, high % unit);
    if (low % unit != 0) {
      part(top, top, low % unit, unit - 1);
      ++top;
    }
    if (high % unit != unit - 1) {
      part(end, end, 0, high % unit);
      --end;
    }
    if (top <= end) part(top, end, 0, unit - 1);
  };
  rest(rest, from, first, last, length, kLeads[length]);
}

int Rules::add() {
  if (rules.size() >= kMaxRules) fail("the language is too large to be compiled: more than {} schemas", kMaxRules);
  Rule rule;
  rule.start = nfa.add();
  rule.end = nfa.add();
  rules.push_back(rule);
  return static_cast<int>(rules.size() - 1);
}

int Rules::text(Syntax syntax, uint32_t shortest, uint32_t longest) {
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    if (rule.text && rule.syntax == syntax && rule.shortest == shortest && rule.longest == longest) {
      return static_cast<int>(i);
    }
  }
  const int rule = add();
  Rule& text = rules.back();
  text.text = true;
  text.syntax = syntax;
  text.shortest = shortest;
  text.longest = longest;
  return rule;
}

Automaton make_automaton(const Rules& rules, int root, int quote) {
  Automaton automaton;
  Determiniser determiniser;
  // Texts come first, so that their states are the same in all grammars.
  for (const Syntax syntax : {Syntax::kJson, Syntax::kCall}) {
    Nfa nfa;
    const TextNodes text = syntax == Syntax::kJson ? write_json_text(nfa) : write_raw_text(nfa, quote);
    const auto i = static_cast<size_t>(syntax);
    automaton.open[i] = determiniser.add(nfa, text.open, text.done);
    automaton.body[i] = determiniser.find(text.body);
    automaton.done[i] = determiniser.find(text.done);
  }
  automaton.text_states = static_cast<uint32_t>(determiniser.states().size());
  for (const Rules::Rule& rule : rules.rules) {
    if (rule.text) {
      automaton.rules.push_back({automaton.open[static_cast<size_t>(rule.syntax)], rule.longest, rule.shortest});
    } else {
      automaton.rules.push_back({determiniser.add(rules.nfa, rule.start, rule.end), 0, 0});
    }
  }

  std::vector<DraftState>& states = determiniser.states();
  automaton.heights = heights_of(states, automaton.rules);
  for (size_t i = 0; i < rules.rules.size(); ++i) {
    const bool is_root = i == static_cast<size_t>(root);
    const std::string& needed = rules.rules[i].needed;
    if ((!is_root && needed.empty()) || automaton.heights[automaton.rules[i].start] != kNever) continue;
    fail("{} accepts no value of finite size (or none nested less than {} deep)",
         needed.empty() ? "the schema" : needed, Automaton::kMaxNesting);
  }
  drop_dead(states, automaton.heights, automaton.rules);
  for (const uint8_t height : automaton.heights) {
    if (height != kNever) automaton.tallest = std::max<uint32_t>(automaton.tallest, height);
  }
  for (const DraftState& state : states) {
    for (const Automaton::Call& call : state.calls) automaton.tallest = std::max(automaton.tallest, call.height);
  }
  automaton.ranks = Ranks(states, automaton.rules).take();
  fill_steps(states, automaton);
  fill_states(states, automaton);
  return automaton;
}

}  // namespace carat

// A language as rules: deterministic automata over bytes and control tokens that call each other.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/local_mask.h"

namespace carat {

/// A grammar while it is being written: nodes, and edges that take bytes, a control token, a whole rule, or nothing.
class Nfa {
 public:
  using Node = uint32_t;
  enum class Kind : uint8_t { kEmpty, kBytes, kToken, kCall };
  struct Edge {
    Node to = 0;
    uint32_t next = 0;  // of the same node; kNone ends the list
    int32_t value = 0;  // token or rule
    Kind kind = Kind::kEmpty;
    uint8_t first = 0, last = 0;  // bytes
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kMaxNodes = 400'000;

  /// Throws Error when the grammar has become too large.
  Node add();
  void empty(Node from, Node to) { link(from, {to, kNone, 0, Kind::kEmpty, 0, 0}); }
  void bytes(Node from, Node to, uint8_t first, uint8_t last) { link(from, {to, kNone, 0, Kind::kBytes, first, last}); }
  void token(Node from, Node to, int token) { link(from, {to, kNone, token, Kind::kToken, 0, 0}); }
  void call(Node from, Node to, int rule) { link(from, {to, kNone, rule, Kind::kCall, 0, 0}); }
  /// A text that leads to this node is read in no other way.
  void commit(Node node) { commitments_.insert(node); }
  const std::set<Node>& commitments() const { return commitments_; }
  /// The node behind `text`, written byte by byte.
  Node literal(Node from, std::string_view text);
  void literal(Node from, Node to, std::string_view text) { empty(literal(from, text), to); }
  /// One character of [first, last], whose bytes UTF-8 gives; surrogates are left out.
  void characters(Node from, Node to, uint32_t first, uint32_t last);

  uint32_t first_edge(Node node) const { return heads_[node]; }
  const Edge& edge(uint32_t index) const { return edges_[index]; }
  size_t size() const { return heads_.size(); }

 private:
  void link(Node from, Edge edge);
  void utf8(Node from, Node to, uint32_t first, uint32_t last, int length);
  std::vector<uint32_t> heads_;
  std::vector<Edge> edges_;
  std::set<Node> commitments_;
};

/// Rules of a grammar being written. No rule may take the empty text.
struct Rules {
  struct Rule {
    Nfa::Node start = 0, end = 0;
    bool text = false;  // a text of `syntax` with a number of characters in [shortest, longest]; start, end unused
    Syntax syntax = Syntax::kJson;
    uint32_t shortest = 0, longest = LocalState::kNoLimit;
    std::string needed = {};  // not empty: its language must not be empty, and this says whose it is
  };
  static constexpr size_t kMaxRules = 10'000;

  Nfa nfa;
  std::vector<Rule> rules;

  /// A new rule; throws Error when there are too many.
  int add();
  /// The rule of a text with these limits, its delimiters included.
  int text(Syntax syntax, uint32_t shortest, uint32_t longest);
};

/// Rules made deterministic. States of all rules are numbered together; 0 is dead, and from every other state the
/// rule's end can be reached. Immutable.
struct Automaton {
  /// Rules called by rules; what nests deeper is not in the language.
  static constexpr uint32_t kMaxNesting = 100;
  static constexpr size_t kMaxStates = 60'000;

  struct Call {
    uint32_t rule = 0;
    uint32_t back = 0;    // the state after it
    uint32_t height = 0;  // levels that it and what follows need
  };
  struct TokenStep {
    int token = 0;
    uint32_t to = 0;
  };
  struct Rule {
    uint32_t start = 0;
    uint32_t remaining = 0, needed = 0;  // of texts
  };

  std::array<uint8_t, 256> classes{};  // of bytes that no state tells apart
  size_t width = 0;                    // classes
  std::vector<uint16_t> next;          // [states, width]
  std::vector<uint8_t> accepting;      // [states]
  std::vector<uint8_t> exits;          // [states]: accepting, or with calls
  std::vector<uint8_t> steps;          // [states]: with bytes or tokens that may follow
  std::vector<uint8_t> heights;        // [states]: levels below its own that it takes at least to reach the end
  std::vector<uint16_t> ranks;         // [states]: in calls without a byte between, callers have higher ranks
  std::vector<uint32_t> first_call;    // [states + 1]
  std::vector<Call> calls;
  std::vector<uint32_t> first_token;  // [states + 1]
  std::vector<TokenStep> tokens;
  std::vector<Rule> rules;
  std::array<uint32_t, 2> body{};  // by Syntax: between two characters of a text
  std::array<uint32_t, 2> done{};  // by Syntax: behind a text
  std::array<uint32_t, 2> open{};  // by Syntax: before a text
  uint32_t text_states = 0;        // the states of texts are those below
  uint32_t tallest = 0;            // of all heights
  /// [states], or none: of a text around calls, how many bytes it takes to the nearest one; 255 where that is not said,
  /// 0 of all other states.
  std::vector<uint8_t> distances;

  size_t states() const { return accepting.size(); }
  std::span<const Call> calls_of(uint32_t state) const {
    return std::span(calls).subspan(first_call[state], first_call[state + 1] - first_call[state]);
  }
  std::span<const TokenStep> tokens_of(uint32_t state) const {
    return std::span(tokens).subspan(first_token[state], first_token[state + 1] - first_token[state]);
  }
};

/// Throws Error when the language of rule `root`, or of one that is needed, is empty, when a rule comes back to itself
/// without taking anything, and beyond bounds. `quote` delimits texts of Syntax::kCall; -1 where the vocabulary has
/// none.
Automaton make_automaton(const Rules& rules, int root, int quote);

}  // namespace carat

// All places where a text may stand in a language at once: states on stacks of callers that share what they have in
// common.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "grammar/automaton.h"

namespace carat {

/// Where a rule that is being read came from: the state to go on with, and its own callers.
struct Caller {
  uint32_t back = 0;
  uint32_t depth = 0;
  uint32_t callers = 0;
  auto operator<=>(const Caller&) const = default;
};

/// A rule being read. `callers`: the id of a set; set 0 is the outside.
struct Place {
  uint32_t state = 0;
  uint32_t depth = 0;  // callers above each other
  uint32_t remaining = 0, needed = 0;
  uint32_t callers = 0;
  auto operator<=>(const Place&) const = default;
};

struct Places {
  std::vector<Place> list;  // sorted; no two differ only in their callers
  bool complete = false;    // the text is in the language
  bool operator==(const Places&) const = default;
};

/// Sets of callers, each stored once. Grows with the text; not thread-safe.
class Stacks {
 public:
  explicit Stacks(const Automaton& automaton);

  /// The places before any text.
  Places start(const Automaton::Rule& root);
  /// Behind a byte; none when the language forbids it.
  void step(Places& places, uint8_t byte);
  /// Behind a control token.
  void step_token(Places& places, int token);
  /// What `state`, reached by the rule that `place` reads, leads to without taking anything: the callers where it ends
  /// the rule, the rules that it calls. Without the state itself.
  Places leave(const Place& place, uint32_t state);

  LocalState local(const Place& place) const;
  size_t size() const { return sets_.size(); }

 private:
  void settle(Places& places, bool keep_first);
  void end_rules(Places& places);
  void merge(Places& places);
  void call_rules(Places& places);
  uint32_t intern(std::vector<Caller> callers);
  uint32_t united(uint32_t a, uint32_t b);

  const Automaton& automaton_;
  std::vector<std::vector<Caller>> sets_;
  std::map<std::vector<Caller>, uint32_t> ids_;
};

}  // namespace carat

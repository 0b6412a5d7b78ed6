// What may be said from one state of a rule: worked out once, whatever the rule was called from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace carat {

struct Automaton;
struct TokenTrie;
class GrammarVocabulary;

/// How strings are written: between double quotes with JSON's escapes, or raw between control tokens.
enum class Syntax : uint8_t { kJson, kCall };

/// One state, what remains of the text that it counts, and how deep calls may still nest.
struct LocalState {
  /// `remaining` of a text without a limit.
  static constexpr uint32_t kNoLimit = UINT32_MAX;

  uint32_t state = 0;
  uint32_t remaining = 0;  // characters that the text may still take
  uint32_t needed = 0;     // characters that it must still take
  uint32_t budget = 0;     // levels
  bool operator==(const LocalState&) const = default;
};

/// The state after a byte; state 0 is dead.
LocalState step(const Automaton& automaton, LocalState from, uint8_t byte);

/// A place in a token where the rule may end or calls another: what follows depends on more than the state.
struct LocalExit {
  uint32_t state = 0;
  uint32_t node = 0;  // in `trie`; has children
  const TokenTrie* trie = nullptr;
};

struct LocalMask {
  bool open = false;             // of a text around calls: any token may come, and nothing of the following is filled
  std::vector<uint64_t> bits;    // either these ...
  std::vector<int32_t> tokens;   // ... or these: what the rule takes wholly
  std::vector<LocalExit> exits;  // grouped by state
  void add_to(std::span<uint64_t> mask) const;
  size_t size_in_bytes() const { return bits.size() * 8 + tokens.size() * 4 + exits.size() * sizeof(LocalExit); }
};

/// Everything below one node of a trie that `from` takes; appends tokens and exits.
void walk_subtree(const Automaton& automaton, const GrammarVocabulary& vocabulary, const TokenTrie& trie, uint32_t node,
                  LocalState from, std::vector<int32_t>& tokens, std::vector<LocalExit>& exits);

/// Automaton::distances where the text around is that of rule `root`. REQUIRES: it is in one state at a time, takes
/// every byte, and a state that calls takes nothing itself.
std::vector<uint8_t> distances_to_calls(const Automaton& automaton, size_t root);

/// Masks by state, shared by threads. Holds no more than a fixed number of bytes; what does not fit belongs to who
/// asked.
class LocalMaskCache {
 public:
  /// `state` in the form that normalized() gives it.
  std::shared_ptr<const LocalMask> get(const Automaton& automaton, const GrammarVocabulary& vocabulary,
                                       LocalState state);
  size_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const LocalMask>> masks_;
  size_t bytes_ = 0;
};

/// States that allow the same tokens become equal: counters no token can exhaust, budgets no rule can exceed.
LocalState normalized(const Automaton& automaton, const GrammarVocabulary& vocabulary, LocalState state);
uint64_t key_of(LocalState state);

}  // namespace carat

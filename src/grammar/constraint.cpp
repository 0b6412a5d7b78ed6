#include "grammar/constraint.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "grammar/grammar.h"
#include "grammar/stacks.h"

namespace carat {
namespace {

void set(std::span<uint64_t> mask, int token) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

}  // namespace

Grammar::Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Rules& rules, int root, Prelude prelude,
                 Around around)
    : vocabulary_(std::move(vocabulary)),
      automaton_(make_automaton(rules, root, vocabulary_->control("<|\"|>").value_or(-1))),
      root_(static_cast<size_t>(root)),
      prelude_(prelude),
      around_(around) {
  if (around == Around::kText) automaton_.distances = distances_to_calls(automaton_, root_);
  if (prelude == Prelude::kNone) return;
  thought_open_ = vocabulary_->require_control("<|channel>");
  thought_close_ = vocabulary_->require_control("<channel|>");
}

std::shared_ptr<const LocalMask> Grammar::mask(LocalState state) const {
  state = normalized(automaton_, *vocabulary_, state);
  LocalMaskCache& cache = state.state < automaton_.text_states ? vocabulary_->text_masks() : masks_;
  return cache.get(automaton_, *vocabulary_, state);
}

size_t Grammar::bytes() const {
  constexpr size_t kPerState = 16;  // beside the bytes that follow
  return automaton_.next.size() * sizeof(uint16_t) + automaton_.states() * kPerState +
         automaton_.calls.size() * sizeof(Automaton::Call) + masks_.bytes();
}

size_t grammar_bytes(const Grammar& grammar) {
  return grammar.bytes();
}

struct Constraint::State {
  explicit State(std::shared_ptr<const Grammar> from)
      : grammar(std::move(from)), stacks(grammar->automaton()), start(stacks.start(grammar->root())) {
    Step first;
    first.phase = grammar->prelude() == Prelude::kNone       ? Phase::kSpeech
                  : grammar->prelude() == Prelude::kMayThink ? Phase::kOpen
                                                             : Phase::kThought;
    first.places = start;
    steps.push_back(std::move(first));
  }

  enum class Phase : uint8_t {
    kOpen,     // nothing was said: a thought may come
    kThought,  // free
    kSpeech,   // constrained
    kEnded,    // behind a stop token
  };
  struct Step {
    Phase phase = Phase::kSpeech;
    Places places;  // of kOpen and kSpeech
  };

  /// All that a mask depends on: what each place allows by itself, its callers, and whether the text may end.
  struct MaskKey {
    std::vector<std::pair<const LocalMask*, uint32_t>> places;
    bool complete = false;
    bool may_think = false;
    bool in_text = false;
    auto operator<=>(const MaskKey&) const = default;
  };
  struct KeptMask {
    MaskKey key;
    std::vector<uint64_t> bits;
    uint64_t used = 0;  // when
  };
  static constexpr size_t kKeptMasks = 16;
  static constexpr size_t kKnownLocals = 4096;

  /// In the text around, where nothing is bound yet.
  bool in_text(const Step& step) const {
    return grammar->around() == Around::kText && step.places.list.size() == 1 && step.places.list.front().callers == 0;
  }

  const LocalMask* local(const Place& place) {
    const LocalState state = normalized(grammar->automaton(), grammar->vocabulary(), stacks.local(place));
    std::shared_ptr<const LocalMask>& mask = locals[key_of(state)];
    if (!mask) mask = grammar->mask(state);
    return mask.get();
  }

  std::span<const uint64_t> allowed() {
    const Step& now = steps.back();
    if (now.phase == Phase::kThought) return grammar->vocabulary().thought_mask();
    if (locals.size() > kKnownLocals) {
      locals.clear();
      masks.clear();
    }
    const bool text = in_text(now);
    if (text && local(now.places.list.front())->open) return {};
    MaskKey key;
    for (const Place& place : now.places.list) key.places.emplace_back(local(place), place.callers);
    key.complete = now.places.complete || now.phase == Phase::kEnded;
    key.may_think = now.phase == Phase::kOpen;
    key.in_text = text;
    ++clock;
    for (KeptMask& kept : masks) {
      if (kept.key != key) continue;
      kept.used = clock;
      return kept.bits;
    }
    if (masks.size() < kKeptMasks) {
      masks.emplace_back();
    } else {
      std::swap(*std::ranges::min_element(masks, {}, &KeptMask::used), masks.back());
    }
    KeptMask& kept = masks.back();
    kept.key = std::move(key);
    kept.used = clock;
    fill(now, kept.key, kept.bits);
    return kept.bits;
  }

  void fill(const Step& now, const MaskKey& key, std::vector<uint64_t>& bits) {
    bits.assign(grammar->vocabulary().words(), 0);
    for (size_t i = 0; i < key.places.size(); ++i) {
      const LocalMask& mask = *key.places[i].first;
      mask.add_to(bits);
      follow(now.places.list[i], mask.exits, bits);
    }
    if (key.may_think) set(bits, grammar->thought_open());
    if (key.in_text) std::ranges::transform(bits, grammar->vocabulary().silent_mask(), bits.begin(), std::bit_or());
    const bool none = std::ranges::all_of(bits, [](uint64_t word) { return word == 0; });
    if (key.complete || none) {
      for (const int id : grammar->vocabulary().stop_ids()) set(bits, id);
    }
  }

  /// Adds the tokens that go on where the rule of `place` ends or calls another. `exits`: grouped by state.
  void follow(const Place& place, std::span<const LocalExit> exits, std::span<uint64_t> bits) {
    while (!exits.empty()) {
      const uint32_t state = exits.front().state;
      const auto end = std::ranges::find_if(exits, [&](const LocalExit& exit) { return exit.state != state; });
      const auto group = exits.first(static_cast<size_t>(end - exits.begin()));
      exits = exits.subspan(group.size());
      for (const Place& next : stacks.leave(place, state).list) {
        std::vector<int32_t> tokens;
        std::vector<LocalExit> further;
        for (const LocalExit& exit : group) {
          walk_subtree(grammar->automaton(), grammar->vocabulary(), *exit.trie, exit.node, stacks.local(next), tokens,
                       further);
        }
        for (const int token : tokens) set(bits, token);
        std::ranges::stable_sort(further, {}, &LocalExit::state);
        follow(next, further, bits);
      }
    }
  }

  void accept(int token) {
    const GrammarVocabulary& vocabulary = grammar->vocabulary();
    const auto refuse = [&] { fail("token {} was given to a constraint that does not allow it", token); };
    const Step& now = steps.back();
    Step next;
    if (now.phase == Phase::kThought) {
      next.phase = token == grammar->thought_close() ? Phase::kSpeech : Phase::kThought;
      if (next.phase == Phase::kSpeech) next.places = start;
    } else if (now.phase == Phase::kOpen && token == grammar->thought_open()) {
      next.phase = Phase::kThought;
    } else if (in_text(now) && vocabulary.bytes(token).empty()) {
      next.phase = Phase::kSpeech;
      next.places = now.places;
      stacks.step_token(next.places, token);
      if (next.places.list.empty()) next.places = now.places;
    } else if (vocabulary.is_stop(token)) {
      next.phase = Phase::kEnded;
    } else {
      next.phase = Phase::kSpeech;
      next.places = now.places;
      const std::string_view bytes = vocabulary.bytes(token);
      for (const char byte : bytes) stacks.step(next.places, static_cast<uint8_t>(byte));
      if (bytes.empty()) stacks.step_token(next.places, token);
      if (next.places.list.empty() && !next.places.complete) refuse();
    }
    steps.push_back(std::move(next));
  }

  std::shared_ptr<const Grammar> grammar;
  Stacks stacks;
  Places start;
  std::vector<Step> steps;                                      // one more than accepted tokens
  std::map<uint64_t, std::shared_ptr<const LocalMask>> locals;  // by normalized state; keeps what masks point at
  std::vector<KeptMask> masks;
  uint64_t clock = 0;
};

Constraint::Constraint(std::shared_ptr<const Grammar> grammar) : state_(std::make_unique<State>(std::move(grammar))) {}
Constraint::Constraint(Constraint&&) noexcept = default;
Constraint& Constraint::operator=(Constraint&&) noexcept = default;
Constraint::~Constraint() = default;

std::span<const uint64_t> Constraint::allowed() {
  return state_->allowed();
}

void Constraint::accept(int token) {
  state_->accept(token);
}

void Constraint::rollback(int count) {
  const size_t accepted = state_->steps.size() - 1;
  if (count < 0 || static_cast<size_t>(count) > accepted) {
    fail("a constraint that accepted {} tokens cannot take back {}", accepted, count);
  }
  state_->steps.resize(state_->steps.size() - static_cast<size_t>(count));
}

bool Constraint::complete() {
  const State::Step& now = state_->steps.back();
  return now.phase == State::Phase::kEnded || state_->in_text(now) ||
         (now.phase != State::Phase::kThought && now.places.complete);
}

}  // namespace carat

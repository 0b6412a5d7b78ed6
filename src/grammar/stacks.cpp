#include "grammar/stacks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace carat {
namespace {

/// Equal in all but the callers.
bool alike(const Place& a, const Place& b) {
  return a.state == b.state && a.depth == b.depth && a.remaining == b.remaining && a.needed == b.needed;
}

constexpr size_t kMaxSets = 4'000'000;

}  // namespace

Stacks::Stacks(const Automaton& automaton) : automaton_(automaton), sets_(1) {}

LocalState Stacks::local(const Place& place) const {
  return {place.state, place.remaining, place.needed, Automaton::kMaxNesting - place.depth};
}

Places Stacks::start(const Automaton::Rule& root) {
  Places places;
  places.list.push_back({root.start, 0, root.remaining, root.needed, 0});
  settle(places, true);
  return places;
}

void Stacks::step(Places& places, uint8_t byte) {
  bool quiet = places.list.size() == 1;
  size_t kept = 0;
  for (const Place& place : places.list) {
    const LocalState to = carat::step(automaton_, local(place), byte);
    if (to.state == 0) continue;
    quiet = quiet && !automaton_.exits[to.state];
    places.list[kept++] = {to.state, place.depth, to.remaining, to.needed, place.callers};
  }
  places.list.resize(kept);
  places.complete = false;
  if (!quiet) settle(places, true);
}

void Stacks::step_token(Places& places, int token) {
  std::vector<Place> next;
  for (Place place : places.list) {
    const LocalState at = local(place);
    const bool too_short =
        place.state < automaton_.text_states && place.needed > 0 && place.state != automaton_.open[1];
    if (too_short) continue;
    for (const Automaton::TokenStep& step : automaton_.tokens_of(place.state)) {
      if (step.token != token || automaton_.heights[step.to] > at.budget) continue;
      place.state = step.to;
      next.push_back(place);
      break;
    }
  }
  places.list = std::move(next);
  places.complete = false;
  settle(places, true);
}

Places Stacks::leave(const Place& place, uint32_t state) {
  Places places;
  places.list.push_back({state, place.depth, 0, 0, place.callers});
  settle(places, false);
  return places;
}

/// Adds what the places lead to without taking anything. The first may then go (REQUIRES it to be alone).
void Stacks::settle(Places& places, bool keep_first) {
  const Place first = places.list.empty() ? Place{} : places.list.front();
  end_rules(places);
  merge(places);
  call_rules(places);
  std::erase_if(places.list,
                [&](const Place& place) { return !automaton_.steps[place.state] || (!keep_first && place == first); });
  std::ranges::sort(places.list);
}

void Stacks::end_rules(Places& places) {
  for (size_t i = 0; i < places.list.size(); ++i) {
    const Place place = places.list[i];
    if (!automaton_.accepting[place.state]) continue;
    if (place.callers == 0) {
      places.complete = true;
      continue;
    }
    for (const Caller& caller : sets_[place.callers]) {
      const Place back{caller.back, caller.depth, 0, 0, caller.callers};
      if (std::ranges::find(places.list, back) == places.list.end()) places.list.push_back(back);
    }
  }
}

void Stacks::merge(Places& places) {
  std::ranges::sort(places.list);
  size_t kept = 0;
  for (const Place& place : places.list) {
    if (kept > 0 && alike(places.list[kept - 1], place)) {
      places.list[kept - 1].callers = united(places.list[kept - 1].callers, place.callers);
    } else {
      places.list[kept++] = place;
    }
  }
  places.list.resize(kept);
}

/// Callers before what they call, so that every place has all its callers when its own calls are made.
void Stacks::call_rules(Places& places) {
  std::vector<std::pair<Place, std::vector<Caller>>> waiting;  // starts of rules, not in places.list yet
  const auto waiting_for = [&](const Place& start) -> std::vector<Caller>& {
    auto it = std::ranges::find_if(waiting, [&](const auto& other) { return alike(other.first, start); });
    if (it == waiting.end()) it = waiting.insert(waiting.end(), {start, {}});
    return it->second;
  };
  const auto call_from = [&](const Place& place) {
    const uint32_t budget = Automaton::kMaxNesting - place.depth;
    for (const Automaton::Call& call : automaton_.calls_of(place.state)) {
      if (call.height > budget) continue;
      const Automaton::Rule& rule = automaton_.rules[call.rule];
      const Place start{rule.start, place.depth + 1, rule.remaining, rule.needed, 0};
      waiting_for(start).push_back({call.back, place.depth, place.callers});
    }
  };
  std::vector<Place> starts;  // already in the list; they may get more callers
  std::erase_if(places.list, [&](const Place& place) {
    if (automaton_.ranks[place.state] == UINT16_MAX || place.callers == 0) return false;
    starts.push_back(place);
    return true;
  });
  for (const Place& place : places.list) call_from(place);
  for (const Place& place : starts) {
    std::vector<Caller>& callers = waiting_for(place);
    callers.insert(callers.end(), sets_[place.callers].begin(), sets_[place.callers].end());
  }
  while (!waiting.empty()) {
    const auto highest =
        std::ranges::max_element(waiting, {}, [&](const auto& other) { return automaton_.ranks[other.first.state]; });
    Place place = highest->first;
    std::vector<Caller> callers = std::move(highest->second);
    waiting.erase(highest);
    place.callers = intern(std::move(callers));
    places.list.push_back(place);
    call_from(place);
  }
}

uint32_t Stacks::united(uint32_t a, uint32_t b) {
  if (a == b) return a;
  std::vector<Caller> callers = sets_[a];
  callers.insert(callers.end(), sets_[b].begin(), sets_[b].end());
  return intern(std::move(callers));
}

uint32_t Stacks::intern(std::vector<Caller> callers) {
  std::ranges::sort(callers);
  callers.erase(std::unique(callers.begin(), callers.end()), callers.end());
  if (sets_.size() >= kMaxSets) fail("a constrained reply has become too long: {} stacks", sets_.size());
  const auto [it, added] = ids_.try_emplace(std::move(callers), static_cast<uint32_t>(sets_.size()));
  if (added) sets_.push_back(it->first);
  return it->second;
}

}  // namespace carat

#include "sampling/penalties.h"

#include <algorithm>

namespace carat {

namespace {

std::span<const int> last(std::span<const int> history, int count) {
  const auto wanted = static_cast<size_t>(count);
  return count == 0 || wanted >= history.size() ? history : history.last(wanted);
}

}  // namespace

/// Calls change(id, count) once for each token in the window. Counters instead of sorting: a window may be the whole
/// context, and this is done for every token.
template <typename Change>
void Penalties::for_distinct(std::span<const int> window, size_t vocab, Change change) {
  if (counts_.size() < vocab) counts_.resize(vocab, 0);
  for (int id : window) {
    if (id >= 0 && static_cast<size_t>(id) < vocab) ++counts_[static_cast<size_t>(id)];
  }
  for (int id : window) {
    if (id < 0 || static_cast<size_t>(id) >= vocab) continue;
    int& count = counts_[static_cast<size_t>(id)];
    if (count != 0) change(static_cast<size_t>(id), count);
    count = 0;
  }
}

void Penalties::apply(std::span<float> logits, const SamplingParams& params, std::span<const int> history) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] += bias;
  }
  if (params.repetition_penalty != 0.0f && params.repetition_penalty != 1.0f) {
    for_distinct(last(history, params.repetition_context), logits.size(), [&](size_t id, int) {
      float& logit = logits[id];
      logit = logit < 0.0f ? logit * params.repetition_penalty : logit / params.repetition_penalty;
    });
  }
  if (params.presence_penalty != 0.0f) {
    for_distinct(last(history, params.presence_context), logits.size(),
                 [&](size_t id, int) { logits[id] -= params.presence_penalty; });
  }
  if (params.frequency_penalty != 0.0f) {
    for_distinct(last(history, params.frequency_context), logits.size(),
                 [&](size_t id, int count) { logits[id] -= params.frequency_penalty * static_cast<float>(count); });
  }
}

}  // namespace carat

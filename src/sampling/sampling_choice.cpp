#include "sampling/sampling_choice.h"

namespace carat {

void SamplingChoice::apply_to(SamplingParams& params) const {
  const auto set = [](auto& value, const auto& chosen) {
    if (chosen) value = *chosen;
  };
  set(params.temperature, temperature);
  set(params.top_p, top_p);
  set(params.min_p, min_p);
  set(params.xtc_probability, xtc_probability);
  set(params.xtc_threshold, xtc_threshold);
  set(params.repetition_penalty, repetition_penalty);
  set(params.presence_penalty, presence_penalty);
  set(params.frequency_penalty, frequency_penalty);
  set(params.top_k, top_k);
  set(params.repetition_context, repetition_context);
  set(params.presence_context, presence_context);
  set(params.frequency_context, frequency_context);
  set(params.seed, seed);
  set(params.hlg, hlg);
  if (!logit_bias.empty()) params.logit_bias = logit_bias;
}

}  // namespace carat

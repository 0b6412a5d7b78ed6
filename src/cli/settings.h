// Sampling parameters by name, for people who change them in the middle of a conversation.
#pragma once

#include <string>
#include <string_view>

#include "carat/sampling.h"

namespace carat {

/// Sets the field ("temperature", "top_k", "hlg_width", "hlg", "seed" …; "-" and "_" are the same) to `value`. Throws
/// Error, and changes nothing, when there is no such field or the value is malformed or out of range.
void set_sampling(SamplingParams& params, std::string_view name, std::string_view value);

/// "temperature 0.7, top_k 64 …": the fields that differ from their defaults, and temperature always.
std::string describe_sampling(const SamplingParams& params);

/// All names that set_sampling takes, separated by spaces.
std::string sampling_names();

/// The whole of `text` as an integer; throws Error naming `name` when it is none.
int parse_integer(std::string_view name, std::string_view text);

}  // namespace carat

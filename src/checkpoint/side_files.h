// The small files beside config.json that say when to stop and how to sample.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace carat {

/// The content of a JSON file that a person could have written. Throws Error when it cannot be read or is absurdly
/// large.
std::string read_small_file(const std::filesystem::path& path);

/// Reads generation_config.json in `directory` (stop ids, temperature, top_k, top_p) and the eos_token of
/// tokenizer_config.json, which only counts when its id is in added_tokens_decoder. Missing files are fine; damaged
/// ones throw Error. Stop ids are appended to `stop_ids`.
void read_side_files(const std::filesystem::path& directory, std::vector<int>& stop_ids,
                     Checkpoint::SamplingDefaults& sampling);

}  // namespace carat

// --prompt-cache FILE: keys and values that survive the process.
#pragma once

#include <string>

#include "carat/engine.h"

namespace CLI {
class App;
}

namespace carat {

void add_prompt_cache_flag(CLI::App& verb, std::string& file);

/// Reads the file into the engine when one is named and there. Whether the run should be saved to it: a file that
/// cannot be used is complained about on standard error and left as it is; it may be something else that is dear to
/// somebody.
bool load_prompt_cache(Engine& engine, const std::string& file);

}  // namespace carat

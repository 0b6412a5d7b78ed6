#include "cli/prompt_cache.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "cli/terminal.h"

namespace carat {

void add_prompt_cache_flag(CLI::App& verb, std::string& file) {
  verb.add_option(
      "--prompt-cache", file,
      "Begin with the keys and values in FILE, and leave there those of this run (it is made when missing)");
}

bool load_prompt_cache(Engine& engine, const std::string& file) {
  std::error_code error;
  if (file.empty()) return false;
  if (!std::filesystem::exists(file, error)) return true;
  try {
    engine.load_prompt_cache(file);
    return true;
  } catch (const Error& refused) {
    fmt::print(stderr, "carat: {}; the prompt is computed, the file left as it is\n", terminal_safe(refused.what()));
    return false;
  }
}

}  // namespace carat

// Runs another program without a shell and waits for it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace carat {

struct ProcessResult {
  bool started = false;  // false: no such program
  int status = 0;        // exit status; 128 + n when signal n ended it
  std::string output;    // stdout and stderr as they came, the last 64 KiB

  bool ok() const { return started && status == 0; }
  /// The last line of `output` that starts with `prefix` (without it), else the last line that is not blank.
  std::string last_line(std::string_view prefix = {}) const;
};

/// Runs `arguments` (the program first, searched in PATH) with an empty stdin and the caller's environment plus
/// `environment`. `on_tick`, when given, is called about five times a second while it runs. Throws Error only when the
/// machine refuses (no memory, no descriptors).
ProcessResult run_process(const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment = {},
                          const std::function<void()>& on_tick = {});

}  // namespace carat

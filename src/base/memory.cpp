#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace carat {

size_t usable_memory() {
  size_t bytes = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    size_t limit = 0;
    if (file >> limit) bytes = std::min(bytes, limit);  // "max" is not a number
  }
  return bytes;
}

size_t peak_resident_memory() {
  // Not getrusage: its maximum counts what the parent had when it forked.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kName = "VmHWM:";
    if (line.starts_with(kName)) return std::stoull(line.substr(kName.size())) * 1024;
  }
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  constexpr size_t kUnit = 1;
#else
  constexpr size_t kUnit = 1024;
#endif
  return static_cast<size_t>(usage.ru_maxrss) * kUnit;
}

}  // namespace carat

#include "base/cpus.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <fmt/format.h>
#include <sched.h>

#include <fstream>
#include <set>
#include <string>
#elif defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#endif

namespace carat {
namespace {

/// 0 where the system does not say.
#if defined(__linux__)
int counted_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 0;
  std::set<std::string> cores;
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    ++allowed;
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (std::getline(file, siblings)) cores.insert(siblings);
  }
  return cores.empty() ? allowed : static_cast<int>(cores.size());
}
#elif defined(__APPLE__)
int counted_cores() {
  int cores = 0;
  size_t size = sizeof(cores);
  return sysctlbyname("hw.physicalcpu", &cores, &size, nullptr, 0) == 0 ? cores : 0;  // macOS knows no affinity masks
}
#else
int counted_cores() {
  return 0;
}
#endif

}  // namespace

int physical_cores() {
  const int counted = counted_cores();
  return std::max(1, counted > 0 ? counted : static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace carat

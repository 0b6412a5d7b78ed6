// What a core's vector units can do at most.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace carat {

/// The rate of one instruction, back to back from registers.
struct Peak {
  std::string name;  // "vpdpbusd 512"
  std::string isa;   // as isa_name()
  std::string kind;  // "int8": byte products; "int16": 16-bit products; "fma": float32
  double macs_per_second = 0.0;
};

/// All that this machine has, on all threads of the pool together, each the best of several runs. About 20 ms each.
/// Empty on machines other than x86-64 and 64-bit ARM.
std::vector<Peak> measure_peaks(ThreadPool& pool);

/// Products of a weight's integer code with an activation of 16 bits that an instruction set can do a second: of 16-bit
/// products one, of byte products two, since activations are two bytes. 0 where nothing was measured.
double integer_peak(const std::vector<Peak>& peaks, const std::string& isa);
double float_peak(const std::vector<Peak>& peaks, const std::string& isa);

}  // namespace carat

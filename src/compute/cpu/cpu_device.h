// The CPU backend: SIMD kernels chosen at run time, a thread pool, and the same bits whatever the batch, the number of
// threads and the instruction set (ARCHITECTURE.md, law 2).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "compute/device.h"

namespace carat {

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAmx, kNeon };

/// The instruction sets that this build and this machine support, slowest first.
std::vector<Isa> supported_isas();
std::string_view isa_name(Isa isa);

struct CpuOptions {
  int threads = 0;  // 0: one per physical core
  Precision precision = Precision::kFast;
  std::optional<Isa> isa = std::nullopt;  // default: the best supported, or CARAT_ISA=portable|avx2|avx512|amx|neon
};

/// Throws Error when the instruction set asked for is not supported.
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

}  // namespace carat

#include "peaks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "base/thread_pool.h"
#include "compute/cpu/cpu_device.h"

namespace carat {
namespace {

// Twelve accumulators hide the latency of any of these instructions (4 or 5 cycles at two a cycle).
constexpr int kAccumulators = 12;

/// One loop around an instruction.
struct Loop {
  const char* name;
  Isa isa;
  const char* kind;
  int macs;  // of one instruction
  void (*run)(uint64_t turns);
};

#if defined(__x86_64__)

// The loops are assembly because a compiler keeps neither their registers nor, without its flags, their instructions.
// Register 13 times register 12 is added to registers 0 to 11; all hold zeros.

void run_pmaddwd_256(uint64_t turns) {
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm\\i, %%ymm\\i\n"
      ".endr\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(turns)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

void run_fma_256(uint64_t turns) {
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm\\i\n"
      ".endr\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(turns)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

void run_dpbusd_512(uint64_t turns) {
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vpdpbusd %%zmm12, %%zmm13, %%zmm\\i\n"
      ".endr\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(turns)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

void run_fma_512(uint64_t turns) {
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vfmadd231ps %%zmm12, %%zmm13, %%zmm\\i\n"
      ".endr\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(turns)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

constexpr std::array kLoops = {
    Loop{"vpmaddwd + vpaddd, 256 bits", Isa::kAvx2, "int16", 16, run_pmaddwd_256},
    Loop{"vfmadd231ps, 256 bits", Isa::kAvx2, "fma", 8, run_fma_256},
    Loop{"vpdpbusd, 512 bits", Isa::kAvx512, "int8", 64, run_dpbusd_512},
    Loop{"vfmadd231ps, 512 bits", Isa::kAvx512, "fma", 16, run_fma_512},
};

#elif defined(__aarch64__)

void run_sdot(uint64_t turns) {
  asm volatile(
      ".arch armv8.2-a+dotprod\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,16,17,18,19\n"
      "sdot v\\i\\().4s, v20.16b, v21.16b\n"
      ".endr\n"
      "subs %0, %0, #1\n"
      "b.ne 1b\n"
      : "+r"(turns)
      :
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19");
}

void run_fmla(uint64_t turns) {
  asm volatile(
      "movi v20.4s, #0\n"
      "movi v21.4s, #0\n"
      "1:\n"
      ".irp i,0,1,2,3,4,5,6,7,16,17,18,19\n"
      "fmla v\\i\\().4s, v20.4s, v21.4s\n"
      ".endr\n"
      "subs %0, %0, #1\n"
      "b.ne 1b\n"
      : "+r"(turns)
      :
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21");
}

constexpr std::array kLoops = {
    Loop{"sdot, 128 bits", Isa::kNeon, "int8", 16, run_sdot},
    Loop{"fmla, 128 bits", Isa::kNeon, "fma", 4, run_fmla},
};

#else

constexpr std::array<Loop, 0> kLoops = {};

#endif

double measure(ThreadPool& pool, const Loop& loop) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kTurns = 50000;
  constexpr int kParts = 8;  // a thread, so that one that starts late costs little
  const int64_t parts = int64_t{kParts} * pool.threads();
  double best = 0.0;
  for (int pass = 0; pass < 5; ++pass) {
    const Clock::time_point start = Clock::now();
    pool.run(parts, [&](int64_t, int) { loop.run(kTurns); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double macs = static_cast<double>(kTurns) * kAccumulators * loop.macs * static_cast<double>(parts);
    best = std::max(best, macs / seconds);
  }
  return best;
}

}  // namespace

std::vector<Peak> measure_peaks(ThreadPool& pool) {
  const std::vector<Isa> supported = supported_isas();
  std::vector<Peak> peaks;
  for (const Loop& loop : kLoops) {
    if (std::find(supported.begin(), supported.end(), loop.isa) == supported.end()) continue;
    peaks.push_back({loop.name, std::string(isa_name(loop.isa)), loop.kind, measure(pool, loop)});
  }
  return peaks;
}

double integer_peak(const std::vector<Peak>& peaks, const std::string& isa) {
  double best = 0.0;
  for (const Peak& peak : peaks) {
    if (peak.isa != isa || peak.kind == "fma") continue;
    best = std::max(best, peak.macs_per_second / (peak.kind == "int8" ? 2.0 : 1.0));
  }
  return best;
}

double float_peak(const std::vector<Peak>& peaks, const std::string& isa) {
  double best = 0.0;
  for (const Peak& peak : peaks) {
    if (peak.isa == isa && peak.kind == "fma") best = std::max(best, peak.macs_per_second);
  }
  return best;
}

}  // namespace carat

// The GEMM for x86 with AMX-INT8 (Sapphire Rapids and later); everything else is the AVX-512 kernels'.
#include "compute/cpu/kernels.h"

#if defined(__AMX_INT8__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "quant/matrix.h"

namespace carat {
namespace amx {
namespace {

enum class PanelOrder { kSteps, kPairs, kTiles };
constexpr PanelOrder kPanelOrder = PanelOrder::kTiles;
constexpr int64_t kPanelRows = 16;
constexpr int64_t kTileTokens = 16;

// Each file builds on those before it.
// clang-format off
#include "compute/cpu/gather_avx512.inc"
#include "compute/cpu/readers_x86.inc"
#include "compute/cpu/pack_codes_avx512.inc"
#include "compute/cpu/panels_x86.inc"
#include "compute/cpu/gemm_amx.inc"
// clang-format on

/// True if the processor has the instructions and the system lets this process use the tiles, for which it must be
/// asked once.
bool usable() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
}  // namespace amx

const Kernels* amx_kernels() {
  const Kernels* base = avx512_kernels();
  if (base == nullptr) return nullptr;
  static const bool usable = amx::usable();
  if (!usable) return nullptr;
  static const Kernels table = [base] {
    Kernels k = *base;
    k.name = "AMX";
    k.gemm = {amx::kPanelRows, amx::kTileTokens, amx::kPanelGroup, amx::kTileGroup, amx::kTileTail};
    k.pack_weights = amx::pack_weights;
    k.pack_tokens = amx::pack_tokens;
    k.gemm_tile = nullptr;
    k.gemm_strip = amx::gemm_strip;
    return k;
  }();
  return &table;
}

}  // namespace carat

#else

namespace carat {
const Kernels* amx_kernels() {
  return nullptr;
}
}  // namespace carat

#endif

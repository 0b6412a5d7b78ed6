// The kernels for 64-bit ARM with NEON and its dot products (ARMv8.2: Graviton 2, Cortex-A75, Apple A12/M1 and later).
#include "compute/cpu/kernels.h"

#if defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "quant/matrix.h"

namespace carat {
namespace neon {
namespace {

#include "compute/cpu/vec_neon.inc"

inline int16x8_t to_i16(float32x4_t low, float32x4_t high) {
  return vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(low)), vcvtnq_s32_f32(high));
}
inline void store_i16(int16_t* p, V v) {
  vst1q_s16(p, to_i16(v.a, v.b));
  vst1q_s16(p + 8, to_i16(v.c, v.d));
}
inline void store_i8(int8_t* p, V v) {
  vst1q_s8(p, vqmovn_high_s16(vqmovn_s16(to_i16(v.a, v.b)), to_i16(v.c, v.d)));
}
inline int to_int(float v) {
  return vcvtns_s32_f32(v);
}

constexpr int kDotRows = 2;
constexpr int kDotTokens = 2;
constexpr int kScoreQueries = 2;
constexpr int kScoreKeys = 2;
constexpr int kValueVectors = 2;
constexpr int64_t kPanelRows = 8;
constexpr int64_t kTileTokens = 12;

// Each file builds on those before it.
// clang-format off
#include "compute/cpu/common.inc"
#include "compute/cpu/store_kv.inc"
#include "compute/cpu/attention.inc"
#include "compute/cpu/decode.inc"
#include "compute/cpu/readers_neon.inc"
#include "compute/cpu/integer_neon.inc"
#include "compute/cpu/table.inc"
// clang-format on

Kernels make_table() {
  Kernels k = make_common_table("NEON");
  k.gemm = {kPanelRows, kTileTokens, kPanelGroup, kTileGroup, kTileTail};
  k.pack_weights = pack_weights;
  k.pack_tokens = pack_tokens;
  k.gemm_tile = gemm_tile;
  return k;
}

bool has_dot_products() {
#if defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
}

}  // namespace
}  // namespace neon

const Kernels* neon_kernels() {
  if (!neon::has_dot_products()) return nullptr;  // before the first instruction that the machine may lack
  static const Kernels table = neon::make_table();
  return &table;
}

}  // namespace carat

#else

namespace carat {
const Kernels* neon_kernels() {
  return nullptr;
}
}  // namespace carat

#endif

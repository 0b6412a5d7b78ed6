// The kernels for x86 with AVX2, FMA and F16C (Haswell, Zen and later).
#include "compute/cpu/kernels.h"

#if defined(__AVX2__)

#include <cpuid.h>
#include <immintrin.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "quant/matrix.h"

namespace carat {
namespace avx2 {
namespace {

#include "compute/cpu/vec_avx2.inc"

inline __m256i to_i16(V v) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
  return _mm256_permute4x64_epi64(words, 0b11011000);
}
inline void store_i16(int16_t* p, V v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_i16(v));
}
inline void store_i8(int8_t* p, V v) {
  const __m256i words = to_i16(v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline int to_int(float v) {
  return _mm_cvtss_si32(_mm_set_ss(v));
}

constexpr int kDotRows = 2;
constexpr int kDotTokens = 2;
constexpr int kScoreQueries = 4;
constexpr int kScoreKeys = 1;
constexpr int kValueVectors = 1;
constexpr int64_t kPanelRows = 16;
constexpr int64_t kTileTokens = 6;
enum class PanelOrder { kSteps, kPairs, kTiles };
constexpr PanelOrder kPanelOrder = PanelOrder::kPairs;

// Each file builds on those before it.
// clang-format off
#include "compute/cpu/common.inc"
#include "compute/cpu/store_kv.inc"
#include "compute/cpu/attention.inc"
#include "compute/cpu/decode.inc"
#include "compute/cpu/gather_avx2.inc"
#include "compute/cpu/readers_x86.inc"
#include "compute/cpu/stream_x86.inc"
#include "compute/cpu/dot_avx2.inc"
#include "compute/cpu/integer_x86.inc"
#include "compute/cpu/pack_codes_avx2.inc"
#include "compute/cpu/panels_x86.inc"
#include "compute/cpu/gemm_avx2.inc"
#include "compute/cpu/decode_x86.inc"
#include "compute/cpu/table.inc"
#include "compute/cpu/table_x86.inc"
// clang-format on

}  // namespace
}  // namespace avx2

const Kernels* avx2_kernels() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  // Not every compiler's __builtin_cpu_supports knows F16C.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool supported = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!supported) return nullptr;  // before the first instruction that the machine may lack
  static const Kernels table = avx2::make_table("AVX2");
  return &table;
}

}  // namespace carat

#else

namespace carat {
const Kernels* avx2_kernels() {
  return nullptr;
}
}  // namespace carat

#endif

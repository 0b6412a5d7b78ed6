// The kernels for x86 with AVX-512 F/BW/VL/DQ and VNNI (Ice Lake, Zen 4 and later).
#include "compute/cpu/kernels.h"

#if defined(__AVX512VNNI__)

#include <immintrin.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "quant/matrix.h"

namespace carat {
namespace avx512 {
namespace {

#include "compute/cpu/vec_avx512.inc"

inline void store_i8(int8_t* p, V v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}
inline void store_i16(int16_t* p, V v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
}
inline int to_int(float v) {
  return _mm_cvtss_si32(_mm_set_ss(v));
}

constexpr int kDotRows = 4;
constexpr int kDotTokens = 4;
constexpr int kScoreQueries = 4;
constexpr int kScoreKeys = 4;
constexpr int kValueVectors = 4;
constexpr int64_t kPanelRows = 32;
constexpr int64_t kTileTokens = 12;
enum class PanelOrder { kSteps, kPairs, kTiles };
constexpr PanelOrder kPanelOrder = PanelOrder::kSteps;

// Each file builds on those before it.
// clang-format off
#include "compute/cpu/common.inc"
#include "compute/cpu/store_kv.inc"
#include "compute/cpu/attention.inc"
#include "compute/cpu/decode.inc"
#include "compute/cpu/gather_avx512.inc"
#include "compute/cpu/readers_x86.inc"
#include "compute/cpu/stream_x86.inc"
#include "compute/cpu/dot_avx512.inc"
#include "compute/cpu/two_rows_avx512.inc"
#include "compute/cpu/integer_x86.inc"
#include "compute/cpu/pack_codes_avx512.inc"
#include "compute/cpu/panels_x86.inc"
#include "compute/cpu/gemm_avx512.inc"
#include "compute/cpu/decode_x86.inc"
#include "compute/cpu/table.inc"
#include "compute/cpu/table_x86.inc"
// clang-format on

}  // namespace
}  // namespace avx512

const Kernels* avx512_kernels() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
  if (!supported) return nullptr;  // before the first instruction that the machine may lack
  static const Kernels table = avx512::make_table("AVX-512 VNNI");
  return &table;
}

}  // namespace carat

#else

namespace carat {
const Kernels* avx512_kernels() {
  return nullptr;
}
}  // namespace carat

#endif

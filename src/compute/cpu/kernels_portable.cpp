// The kernels in plain C++: what runs where there is no AVX2, and what the vector kernels must equal bit for bit.
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "compute/cpu/kernels.h"
#include "quant/readers.h"

namespace carat {
namespace portable {
namespace {

#include "compute/cpu/vec_portable.inc"

inline int to_int(float v) {
  return std::fabs(v) < 2147483648.0f ? static_cast<int>(v) : INT32_MIN;
}
inline void store_i16(int16_t* p, V v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(to_int(v.lane[i]));
}
inline void store_i8(int8_t* p, V v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(to_int(v.lane[i]));
}

constexpr int kDotRows = 1;
constexpr int kDotTokens = 1;
constexpr int kScoreQueries = 1;
constexpr int kScoreKeys = 1;
constexpr int kValueVectors = 1;

// Each file builds on those before it.
// clang-format off
#include "compute/cpu/common.inc"
#include "compute/cpu/store_kv.inc"
#include "compute/cpu/attention.inc"
#include "compute/cpu/decode.inc"
// clang-format on

template <typename R>
float dot_row(const Matrix& w, int64_t row, const QuantizedRows& x, int64_t token) {
  float chain[kChains] = {};
  uint8_t codes[kGroup];
  float scale[2];
  float bias[2];
  for (int64_t g = 0; g < x.groups; ++g) {
    R::read(w, row, g, codes, scale, bias);
    const int64_t at = token * x.padded_groups + g;
    const int8_t* hi = x.hi + at * kGroup;
    const int8_t* lo = x.lo + at * kGroup;
    int32_t dots[2] = {};
    for (int c = 0; c < kGroup; ++c) dots[c / 16] += codes[c] * (kRadix * hi[c] + lo[c]);
    int32_t sums[2] = {x.sum0[at], x.sum1[at]};
    if constexpr (R::kHalves == 1) {
      dots[0] += dots[1];
      sums[0] += sums[1];
    }
    float& acc = chain[g % kChains];
    for (int h = 0; h < R::kHalves; ++h) {
      acc = std::fma(static_cast<float>(dots[h] - R::kZero * sums[h]), scale[h], acc);
      if constexpr (R::kHasBias) acc = std::fma(bias[h], static_cast<float>(sums[h]), acc);
    }
  }
  float total = chain[0];
  for (int64_t c = 1; c < kChains; ++c) total += chain[c];
  return x.scale[token] * total;
}

void integer_dot(const Matrix& w, int64_t first, int64_t count, const QuantizedRows& x, int64_t first_token,
                 int64_t tokens, float* out, int64_t stride, const std::byte* /*next*/) {
  with_reader(w.format, [&](auto reader) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < count; ++r) {
        out[t * stride + r] = dot_row<decltype(reader)>(w, first + r, x, first_token + t);
      }
    }
  });
}

void decode_rows(const Matrix& w, int64_t first, int64_t count, float* out, int64_t stride) {
  for (int64_t r = 0; r < count; ++r) decode_row(w, first + r, out + r * stride);
}

#include "compute/cpu/table.inc"

}  // namespace
}  // namespace portable

const Kernels& portable_kernels() {
  static const Kernels table = portable::make_common_table("portable");
  return table;
}

bool has_integer_kernel(const Matrix& matrix) {
  return has_reader(matrix.format) && matrix.cols % kGroup == 0;
}

}  // namespace carat

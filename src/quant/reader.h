// The scalar reader of integer-coded weights: what every kernel, packer and test derives a format's meaning from.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant/matrix.h"

namespace carat {

static_assert(std::endian::native == std::endian::little, "checkpoint bytes are little-endian and are read in place");

/// Columns that one read() delivers; every integer-coded format is read in steps of this many.
inline constexpr int kReadColumns = 32;

/// 32 columns of a row as unsigned codes with their scales. With h = c / (32 / kHalves), for c in [0, 32):
///   w[c] = scale[h] * float(codes[c] - kZero)            without bias
///   w[c] = scale[h] * float(codes[c] - kZero) + bias[h]  with bias; multiply and add round separately
/// all in float32. Codebook formats deliver their table's integers, so that the formula holds for them too.
///
/// Specialised in quant/<family>.h for each integer-coded format, with the members
///   static constexpr int kZero;      the code that means zero (before the bias)
///   static constexpr bool kHasBias;
///   static constexpr int kHalves;    1: one scale for the 32 columns; 2: one for each 16
///   static constexpr int kMaxCode;   no code is greater, whatever the bytes are
///   static void read(const Matrix&, int64_t row, int64_t group32, uint8_t codes[32], float scale[2], float bias[2]);
/// read() fills all outputs: with one half scale[1] repeats scale[0], without bias the biases are 0. It reads columns
/// [32 * group32, +32) of `row`; both must be inside the matrix (not checked: this is the inner loop). Pointers of the
/// matrix need no alignment. Where the row ends inside the group (kNvFp4 only) the absent columns are kZero with scale
/// 0.
template <WeightFormat F>
struct Reader;

/// What the symmetric readers share: no bias, `zero` in the middle of the codes.
template <int zero, int max_code, int halves = 1>
struct SymmetricReader {
  static constexpr int kZero = zero;
  static constexpr bool kHasBias = false;
  static constexpr int kHalves = halves;
  static constexpr int kMaxCode = max_code;
};

/// What the readers with a minimum share.
template <int max_code, int halves = 1>
struct BiasedReader {
  static constexpr int kZero = 0;
  static constexpr bool kHasBias = true;
  static constexpr int kHalves = halves;
  static constexpr int kMaxCode = max_code;
};

/// A little-endian T at any address.
template <typename T>
T load(const void* address) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

}  // namespace carat

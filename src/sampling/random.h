// Counter-based random numbers: a draw is a function of its coordinates, there is no generator state to carry along.
#pragma once

#include <array>
#include <cstdint>

namespace carat {

/// Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Uniform in [0, 1) with 53 random bits: philox of the counter (position, stream) under the key `seed`.
/// `stream` separates draws at one position.
double uniform(uint64_t seed, uint64_t position, uint32_t stream);

/// The streams in use. A new kind of draw takes a new number, so that the old draws stay what they are.
inline constexpr uint32_t kTokenStream = 0;
inline constexpr uint32_t kXtcStream = 1;

}  // namespace carat

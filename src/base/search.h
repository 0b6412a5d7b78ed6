// Searching for where a condition ends.
#pragma once

#include <cstdint>

namespace carat {

/// The largest value in [0, most] for which `fits` holds, given that it holds up to some value; 0 where it never does.
template <typename Fits>
int64_t largest(int64_t most, const Fits& fits) {
  int64_t low = 0;
  while (low < most) {
    const int64_t middle = low + (most - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      most = middle - 1;
    }
  }
  return low;
}

}  // namespace carat

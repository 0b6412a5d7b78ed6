// How much memory there is, and how much this process has used.
#pragma once

#include <cstddef>

namespace carat {

/// Bytes of memory that the process may use: the machine's, or less where its control group has a limit.
size_t usable_memory();

/// The most bytes that the process has had resident so far, mapped files included.
size_t peak_resident_memory();

}  // namespace carat

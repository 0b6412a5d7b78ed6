// The plain backend: one loop per formula, float64 inside, no SIMD, no threads. It defines the meaning of every
// operation and is what kernels are tested against; it is far too slow for use.
#pragma once

#include <memory>

#include "compute/device.h"

namespace carat {

/// Activations between operations are float32 as on every backend; each operation computes in float64.
std::unique_ptr<Device> make_reference_device();

}  // namespace carat

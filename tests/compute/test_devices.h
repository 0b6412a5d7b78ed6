// The backends under test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compute/cpu/cpu_device.h"
#include "compute/reference/reference_device.h"

namespace carat {

struct TestDevice {
  std::string name;
  std::unique_ptr<Device> device;
  bool is_reference = false;
  bool is_slow = false;  // give it little to do
};

inline TestDevice cpu_device(Isa isa, Precision precision, int threads) {
  return {std::string(isa_name(isa)) + ", " + std::to_string(threads) + " threads",
          make_cpu_device({.threads = threads, .precision = precision, .isa = isa}), false, isa == Isa::kPortable};
}

/// The reference and every instruction set of this machine.
inline std::vector<TestDevice> all_devices(Precision precision) {
  std::vector<TestDevice> devices;
  devices.push_back({"reference", make_reference_device(), true, true});
  for (const Isa isa : supported_isas()) devices.push_back(cpu_device(isa, precision, 2));
  return devices;
}

}  // namespace carat

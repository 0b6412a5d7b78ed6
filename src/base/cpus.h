// The processors that this process may use.
#pragma once

namespace carat {

/// Number of physical cores in this process's affinity mask (hyper-threads counted once), at least 1.
int physical_cores();

}  // namespace carat

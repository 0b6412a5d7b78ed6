#pragma once

#include <string>

namespace carat {

/// "0.1.0".
std::string version();

}  // namespace carat

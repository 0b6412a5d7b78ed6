#include "cli/version.h"

namespace carat {

std::string version() {
  return CARAT_VERSION;
}

}  // namespace carat

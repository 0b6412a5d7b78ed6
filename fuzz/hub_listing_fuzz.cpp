// The hub's listing of a repository: whatever it holds, no path that is chosen from it leads out of the model's
// directory.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "checkpoint/hub.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const carat::HubListing listing = carat::parse_hub_listing(text, "input");
    for (const carat::HubFile& file : listing.files) {
      const std::filesystem::path inside = (std::filesystem::path("/store") / file.path).lexically_normal();
      if (!inside.string().starts_with("/store/")) __builtin_trap();
    }
    for (const std::string_view wanted : {"", "Q4_K_M"}) {
      try {
        carat::choose_hub_files(listing, {"owner", "name", ""}, wanted);
      } catch (const carat::Error&) {
      }
    }
  } catch (const carat::Error&) {
  }
  return 0;
}

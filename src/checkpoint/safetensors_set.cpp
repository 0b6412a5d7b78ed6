#include "checkpoint/safetensors_set.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/side_files.h"

namespace carat {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSingle = "model.safetensors";

/// The directory's "model-0000I-of-0000N.safetensors" files in order. Empty when there are none.
std::vector<fs::path> numbered_files(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string::npos) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string expected = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, found.size());
    if (found[i].filename() != expected) {
      fail("{}: expected {} where {} is: the set of files is incomplete, and there is no {}", directory.string(),
           expected, found[i].filename().string(), kIndex);
    }
  }
  return found;
}

SafetensorsSet open_all(const std::vector<fs::path>& paths) {
  SafetensorsSet set;
  std::unordered_map<std::string_view, const SafetensorsFile*> seen;
  for (const fs::path& path : paths) {
    const auto file = set.files.emplace_back(SafetensorsFile::open(path));
    for (const SafeTensor& tensor : file->tensors()) {
      const auto [other, added] = seen.emplace(tensor.name, file.get());
      if (!added) fail("{}: tensor '{}' is in {} too", file->origin(), tensor.name, other->second->origin());
      set.tensors.push_back({&tensor, file.get()});
    }
  }
  return set;
}

SafetensorsSet open_indexed(const fs::path& directory) {
  const fs::path index = directory / kIndex;
  const JsonDocument document(read_small_file(index), index.string());
  const JsonObject map = document.root().object("weight_map");
  std::map<std::string, std::unordered_map<std::string_view, bool>, std::less<>> wanted;  // file -> tensors, found
  for (const auto field : map.fields()) {
    const std::string_view name = map.string(field.key);
    // The index names files beside itself; anything else would read outside the checkpoint.
    if (name.empty() || name.find('/') != std::string_view::npos || name == "..") {
      fail("{} is '{}', expected a file name", map.where(field.key), name);
    }
    auto at = wanted.find(name);
    if (at == wanted.end()) at = wanted.emplace(name, std::unordered_map<std::string_view, bool>()).first;
    if (!at->second.emplace(field.key, false).second) fail("{} occurs twice", map.where(field.key));
  }
  SafetensorsSet set;
  for (auto& [name, tensors] : wanted) {
    if (!fs::exists(directory / name)) {
      fail("{} is missing, though {} lists {} tensors in it", (directory / name).string(), kIndex, tensors.size());
    }
    const auto file = set.files.emplace_back(SafetensorsFile::open(directory / name));
    for (const SafeTensor& tensor : file->tensors()) {
      const auto entry = tensors.find(tensor.name);
      if (entry == tensors.end()) continue;  // a leftover that the index does not count
      entry->second = true;
      set.tensors.push_back({&tensor, file.get()});
    }
    for (const auto& [tensor, found] : tensors) {
      if (!found) fail("{}: tensor '{}' is missing, though {} lists it", file->origin(), tensor, kIndex);
    }
  }
  return set;
}

}  // namespace

SafetensorsSet open_safetensors_set(const fs::path& directory) {
  if (fs::exists(directory / kIndex)) return open_indexed(directory);
  if (fs::exists(directory / kSingle)) return open_all({directory / kSingle});
  const auto numbered = numbered_files(directory);
  if (numbered.empty()) fail("{} holds neither {} nor {}", directory.string(), kSingle, kIndex);
  return open_all(numbered);
}

}  // namespace carat

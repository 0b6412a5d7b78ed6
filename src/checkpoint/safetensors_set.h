// All safetensors files of a checkpoint directory as one list of tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/safetensors.h"

namespace carat {

struct SafetensorsSet {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  struct Entry {
    const SafeTensor* tensor;
    const SafetensorsFile* file;
  };
  std::vector<Entry> tensors;  // names are unique
};

/// With model.safetensors.index.json: the files and tensors that it lists. Without: model.safetensors, or a complete
/// set of model-0000I-of-0000N.safetensors. Throws Error when a file is missing or damaged, a listed tensor is not
/// where the index says, or a name occurs twice.
SafetensorsSet open_safetensors_set(const std::filesystem::path& directory);

}  // namespace carat

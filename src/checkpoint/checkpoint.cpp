#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "checkpoint/loaded_checkpoint.h"

namespace carat {

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail("{} does not exist", path.string());
  try {
    if (std::filesystem::is_directory(status)) return open_safetensors_checkpoint(path);
    if (path.extension() == ".gguf") return open_gguf_checkpoint(path);
  } catch (const std::filesystem::filesystem_error& problem) {
    fail("cannot read {}: {}", path.string(), problem.code().message());
  }
  fail("{} is neither a checkpoint directory nor a .gguf file", path.string());
}

}  // namespace carat

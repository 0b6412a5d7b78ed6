// One safetensors file: a u64 header length, a JSON header, and the tensors' bytes.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace carat {

/// Element types that weights can have. Everything else that the format defines is kOther: such tensors are checked and
/// listed, so that a file may hold them, but nothing reads them.
enum class Dtype : uint8_t { kF32, kF16, kBF16, kU32, kU8, kOther };

std::string_view name_of(Dtype dtype);

struct SafeTensor {
  std::string name;
  Dtype dtype = Dtype::kOther;
  std::vector<int64_t> shape;        // outermost first; empty for a scalar
  std::span<const std::byte> bytes;  // not necessarily aligned to the element
};

/// Immutable, thread-safe. Tensors are views into the mapping, in the order of the header.
class SafetensorsFile {
 public:
  /// Throws Error naming the file and the first thing wrong with it: a header or tensor that reaches beyond the file,
  /// an unknown dtype, a size that does not follow from the shape, a name that occurs twice.
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);
  /// Parses bytes that something else keeps alive (fuzzing, tests). `origin` names them in errors.
  static std::shared_ptr<const SafetensorsFile> parse(std::span<const std::byte> bytes, std::string origin);

  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  const std::string& origin() const { return origin_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<const MappedFile> file_;  // null for parse()
  std::string origin_;
  size_t size_ = 0;
  std::vector<SafeTensor> tensors_;
};

}  // namespace carat

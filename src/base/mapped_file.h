// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace carat {

/// Maps `path` for reading for as long as the object lives. Safe to read from many threads.
class MappedFile {
 public:
  /// Throws Error naming the path when it cannot be opened or mapped. An empty file gives an empty span.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::filesystem::path path_;
  const std::byte* data_;
  size_t size_;
};

}  // namespace carat

// A file on its way in: grows at its end, survives the process, and takes its place whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/digest.h"

namespace carat {

/// A download in progress of known size. Not thread-safe.
class PartialFile {
 public:
  /// Opens `path`, keeping what is there (unless it is longer than `expected_size`, then nothing). `digest` is the
  /// expected one in hex; its length decides what is computed while bytes arrive. Throws Error naming the path.
  PartialFile(std::filesystem::path path, uint64_t expected_size, const std::string& digest);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  uint64_t size() const { return size_; }
  /// Throws Error when the disk is full or the file would grow beyond its expected size.
  void append(std::span<const std::byte> bytes);
  /// Appends a whole file; errors as append().
  void append_file(const std::filesystem::path& path);
  /// Forgets what lies beyond `size` (which must not be more than there is).
  void truncate(uint64_t size);
  /// Forgets all content.
  void restart() { truncate(0); }
  /// Digest of the content: SHA-256 for 64 digits, Git blob SHA-1 for 40.
  std::string digest(size_t digits);
  /// SHA-256 of `length` bytes from `offset` on; Error when there are fewer.
  std::string range_sha256(uint64_t offset, uint64_t length) const;
  /// Flushes to disk and renames to `target`, atomically.
  void finish(const std::filesystem::path& target);
  /// Empties the file and unlinks it; it may be written again afterwards.
  void remove();

 private:
  void open();
  Digest fresh(size_t digits) const;

  std::filesystem::path path_;
  uint64_t expected_ = 0;
  uint64_t size_ = 0;
  int fd_ = -1;
  size_t digits_ = 0;
  std::optional<Digest> running_;  // over the whole content, while that is cheap to keep up; else recomputed
};

/// Flushes a directory's entries (renames) to disk; does nothing where that is not supported.
void sync_directory(const std::filesystem::path& directory);

}  // namespace carat

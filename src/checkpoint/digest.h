// SHA-256 and Git blob digests of files and of bytes as they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace carat {

/// A running digest. Not thread-safe; movable.
class Digest {
 public:
  static Digest sha256();
  /// SHA-1 as Git names a file of `size` bytes: what hubs list for files that are not in large-file storage.
  static Digest git_blob(uint64_t size);

  void update(std::span<const std::byte> bytes);
  /// Lower-case hexadecimal of all bytes so far. Call once; the digest is used up.
  std::string finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  explicit Digest(bool wide);
  std::unique_ptr<void, Free> context_;
};

/// Told how many bytes were read since the last call.
using BytesRead = std::function<void(uint64_t)>;

/// Feeds `length` bytes of the file from `offset` on to `digest`. Throws Error naming the file when it cannot be read
/// or ends before.
void digest_range(Digest& digest, const std::filesystem::path& path, uint64_t offset, uint64_t length,
                  const BytesRead& on_read = {});

/// SHA-256 of a whole file, in hexadecimal. Throws Error naming the file when it cannot be read.
std::string sha256_file(const std::filesystem::path& path, const BytesRead& on_read = {});

}  // namespace carat

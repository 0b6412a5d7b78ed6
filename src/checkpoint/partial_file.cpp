#include "checkpoint/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"

namespace carat {

PartialFile::PartialFile(std::filesystem::path path, uint64_t expected_size, const std::string& digest)
    : path_(std::move(path)), expected_(expected_size), digits_(digest.size()) {
  open();
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PartialFile::open() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(std::exchange(fd_, -1));
    fail("cannot write {}: it is not a regular file", path_.string());
  }
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ > expected_) restart();
  if (size_ == 0 && digits_ > 0) running_.emplace(fresh(digits_));
}

Digest PartialFile::fresh(size_t digits) const {
  return digits == 40 ? Digest::git_blob(expected_) : Digest::sha256();
}

void PartialFile::append(std::span<const std::byte> bytes) {
  if (bytes.size() > expected_ - size_) {
    fail("{} would grow beyond the {} bytes that it should have", path_.string(), expected_);
  }
  if (fd_ < 0) open();
  if (running_) running_->update(bytes);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      running_.reset();
      if (error == ENOSPC || error == EDQUOT) {
        fail("the disk is full: {} has {} of {} bytes; make room and run the same command to go on", path_.string(),
             size_, expected_);
      }
      fail("cannot write {}: {}", path_.string(), std::strerror(error));
    }
    size_ += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void PartialFile::append_file(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> source = MappedFile::open(path);
  append(source->bytes());
}

void PartialFile::truncate(uint64_t size) {
  if (fd_ < 0 || size > size_) return;
  if (size == size_ && size > 0) return;
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
    fail("cannot shorten {}: {}", path_.string(), std::strerror(errno));
  }
  size_ = size;
  running_.reset();
  if (size == 0 && digits_ > 0) running_.emplace(fresh(digits_));
}

std::string PartialFile::range_sha256(uint64_t offset, uint64_t length) const {
  Digest digest = Digest::sha256();
  digest_range(digest, path_, offset, length);
  return digest.finish();
}

std::string PartialFile::digest(size_t digits) {
  if (running_ && digits == digits_) {
    std::string result = running_->finish();
    running_.reset();
    return result;
  }
  Digest digest = fresh(digits);
  digest_range(digest, path_, 0, size_);
  return digest.finish();
}

void PartialFile::finish(const std::filesystem::path& target) {
  if (fd_ < 0) open();
  if (::fsync(fd_) != 0) fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  std::error_code error;
  std::filesystem::rename(path_, target, error);
  if (error) fail("cannot rename {} to {}: {}", path_.string(), target.string(), error.message());
  sync_directory(target.parent_path());
}

void PartialFile::remove() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  ::unlink(path_.c_str());
  size_ = 0;
  running_.reset();
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(::fsync(fd));
  ::close(fd);
}

}  // namespace carat

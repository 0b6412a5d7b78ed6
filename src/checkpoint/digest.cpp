#include "checkpoint/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace carat {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

EVP_MD_CTX* as_context(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

void Digest::Free::operator()(void* context) const {
  EVP_MD_CTX_free(as_context(context));
}

Digest::Digest(bool wide) : context_(EVP_MD_CTX_new()) {
  const EVP_MD* kind = wide ? EVP_sha256() : EVP_sha1();
  if (!context_ || EVP_DigestInit_ex(as_context(context_.get()), kind, nullptr) != 1) {
    fail("the crypto library offers no {}", wide ? "SHA-256" : "SHA-1");
  }
}

Digest Digest::sha256() {
  return Digest(true);
}

Digest Digest::git_blob(uint64_t size) {
  Digest digest(false);
  const std::string header = fmt::format("blob {}", size);
  digest.update(std::as_bytes(std::span(header.c_str(), header.size() + 1)));  // the header ends with a NUL
  return digest;
}

void Digest::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(as_context(context_.get()), bytes.data(), bytes.size()) != 1) fail("cannot update a digest");
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> raw{};
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(as_context(context_.get()), raw.data(), &size) != 1) fail("cannot finish a digest");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", raw[i]);
  return hex;
}

void digest_range(Digest& digest, const std::filesystem::path& path, uint64_t offset, uint64_t length,
                  const BytesRead& on_read) {
  // Read rather than mapped: a file that shrinks meanwhile is then an error and not a signal.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("cannot open {}: {}", path.string(), std::strerror(errno));
  std::vector<std::byte> chunk(kChunk);
  try {
    while (length > 0) {
      const ssize_t got = ::pread(fd, chunk.data(), std::min<uint64_t>(length, kChunk), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot read {}: {}", path.string(), std::strerror(errno));
      if (got == 0) fail("{} ended {} bytes early", path.string(), length);
      digest.update(std::span(chunk).first(static_cast<size_t>(got)));
      offset += static_cast<uint64_t>(got);
      length -= static_cast<uint64_t>(got);
      if (on_read) on_read(static_cast<uint64_t>(got));
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

std::string sha256_file(const std::filesystem::path& path, const BytesRead& on_read) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail("cannot read {}: {}", path.string(), error.message());
  Digest digest = Digest::sha256();
  digest_range(digest, path, 0, size, on_read);
  return digest.finish();
}

}  // namespace carat

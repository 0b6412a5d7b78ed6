// The Hugging Face hub: what a repository holds, which of it a model needs, and fetching that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "checkpoint/store.h"

namespace carat {

struct HubFile {
  std::string path;  // relative, '/'-separated, without "." and ".." (checked)
  uint64_t size = 0;
  std::string digest;  // lower-case hex: 64 digits SHA-256 (large files), 40 digits Git blob SHA-1; empty: not told
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

/// Parses the hub's answer to /api/models/ID/revision/REVISION?blobs=true. `origin` names it in errors. Throws Error
/// when it is not that, or when a path in it could lead out of the model's directory.
HubListing parse_hub_listing(std::string_view json, std::string_view origin);

/// The files of a repository that carat needs: the safetensors with configuration and tokenizer, or else the one GGUF
/// model (all parts of a split set). `wanted`, when not empty, picks a GGUF model by path, file name, or a piece that
/// only one has ("Q4_K_M"). Throws Error listing the choices when there are several, or saying what the repository
/// lacks.
std::vector<HubFile> choose_hub_files(const HubListing& listing, const HubId& id, std::string_view wanted);

/// One line of news for the person who waits ("connection lost; trying again in 2 s").
using Say = std::function<void(std::string_view)>;

/// The hub at $HF_ENDPOINT (default https://huggingface.co), with the token of $HF_TOKEN, $HF_TOKEN_PATH,
/// $HF_HOME/token or
/// ~/.cache/huggingface/token, which is sent to that endpoint's origin and nowhere else. Thread-safe.
class Hub {
 public:
  /// Throws Error when the endpoint is no URL, the token cannot be one, or $HF_HUB_OFFLINE forbids asking.
  explicit Hub(Say say = {});

  /// Throws Error with a hint for 401, 403 and 404.
  HubListing list(const HubId& id) const;

  /// Fetches a file to `target`, whose directory must exist. What has arrived so far is kept in `target`.incomplete and
  /// continued by the next call, even of another process. Broken transfers are tried again, up to
  /// five times without any progress. Size and digest are checked before `target` appears. Adds the file's bytes to
  /// `progress`. Throws Error; a file with a wrong digest is deleted.
  void download(const HubId& id, const std::string& commit, const HubFile& file, const std::filesystem::path& target,
                Progress& progress) const;

  const std::string& endpoint() const { return endpoint_; }

 private:
  std::string endpoint_, token_;
  Say say_;
};

}  // namespace carat

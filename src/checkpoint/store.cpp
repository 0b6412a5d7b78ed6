#include "checkpoint/store.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <tuple>

#include "base/error.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> environment_path(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return fs::path(value);
}

std::optional<fs::path> home_directory() {
  if (auto home = environment_path("HOME")) return home;
  const passwd* user = ::getpwuid(::getuid());
  if (user == nullptr || user->pw_dir == nullptr || *user->pw_dir == '\0') return std::nullopt;
  return fs::path(user->pw_dir);
}

// The questions that the file system answers; every error means no.
bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

uint64_t file_bytes(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

std::vector<fs::path> children(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) result.push_back(it->path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

bool ends_with_gguf(std::string_view name) {
  constexpr std::string_view kEnding = ".gguf";
  if (name.size() <= kEnding.size()) return false;
  const std::string_view tail = name.substr(name.size() - kEnding.size());
  return std::equal(tail.begin(), tail.end(), kEnding.begin(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b; });
}

bool has_gguf_magic(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  return file.read(magic.data(), magic.size()) && std::string_view(magic.data(), 4) == "GGUF";
}

bool has_safetensors(const fs::path& directory) {
  const auto files = children(directory);
  return std::any_of(files.begin(), files.end(),
                     [](const fs::path& file) { return file.extension() == ".safetensors" && is_file(file); });
}

bool is_safetensors_model(const fs::path& directory) {
  return is_file(directory / "config.json") && has_safetensors(directory);
}

bool is_word(std::string_view text, std::string_view extra) {
  return !text.empty() && text.front() != '.' && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  extra.find(c) != std::string_view::npos;
         });
}

constexpr std::string_view kNameExtra = "._-";

/// The parts of "a/b/c" when each is a harmless file name; empty otherwise.
std::vector<std::string> components(std::string_view name) {
  std::vector<std::string> parts;
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (!is_word(part, "._-@")) return {};
    parts.emplace_back(part);
    if (slash == std::string_view::npos) return parts;
    name.remove_prefix(slash + 1);
  }
}

fs::path first_part(const fs::path& file) {
  const auto split = SplitName::parse(file.filename().string());
  if (!split) return file;
  fs::path first = file.parent_path() / split->filename(1);
  if (!is_file(first)) {
    fail("{} is part {} of {}, but the first part, {}, is missing", file.string(), split->part, split->parts,
         first.string());
  }
  return first;
}

/// What to open in a directory; nullopt when it holds no model. `name` is how the person calls it.
std::optional<fs::path> model_in(const fs::path& directory, std::string_view name, bool below = true) {
  if (is_safetensors_model(directory)) return directory;
  const std::vector<fs::path> models = gguf_models(directory, below);
  if (models.size() == 1) return directory / models.front();
  if (models.size() > 1) {
    std::string list;
    for (const fs::path& model : models) list += fmt::format("\n  {}/{}", name, model.string());
    fail("{} holds {} models; name one of them:{}", directory.string(), models.size(), list);
  }
  return std::nullopt;
}

std::optional<fs::path> find_file_in(const fs::path& directory, const fs::path& file) {
  if (is_file(directory / file) && ends_with_gguf(file.string())) return first_part(directory / file);
  return std::nullopt;
}

/// Entry directories of `name` and, when the name goes on, the file inside: "a/b/c.gguf" may be c.gguf of "a/b" or
/// b/c.gguf of "a".
struct EntryName {
  fs::path entry, file;
};

std::vector<EntryName> entry_names(std::string_view name) {
  std::vector<EntryName> result;
  if (const auto id = HubId::parse(name); id && !id->revision.empty()) result.push_back({id->entry(), {}});
  const std::vector<std::string> parts = components(name);
  for (size_t depth = std::min<size_t>(2, parts.size()); depth > 0; --depth) {
    EntryName split;
    for (size_t i = 0; i < parts.size(); ++i) (i < depth ? split.entry : split.file) /= parts[i];
    result.push_back(split);
  }
  return result;
}

/// Whether store/entry is a model rather than an owner of models: an owner has its GGUF files one level further down.
bool is_entry(const fs::path& store, const fs::path& entry) {
  const fs::path directory = store / entry;
  if (entry.has_parent_path()) return is_safetensors_model(directory) || !gguf_models(directory).empty();
  const std::vector<fs::path> files = children(directory);
  return is_safetensors_model(directory) || std::any_of(files.begin(), files.end(), [](const fs::path& file) {
           return is_file(file) && ends_with_gguf(file.filename().string());
         });
}

std::optional<fs::path> find_in_store(const fs::path& store, std::string_view name) {
  for (const auto& [entry, file] : entry_names(name)) {
    if (!is_entry(store, entry)) continue;
    auto found = file.empty() ? model_in(store / entry, name) : find_file_in(store / entry, file);
    if (found) return found;
  }
  const std::vector<std::string> parts = components(name);
  if (parts.size() == 1) {  // files put there by hand
    if (auto found = find_file_in(store, parts[0])) return found;
    if (is_file(store / (parts[0] + ".gguf"))) return store / (parts[0] + ".gguf");
  }
  return std::nullopt;
}

/// The newest complete snapshot of a cached repository, or the one that `revision` names.
std::optional<fs::path> snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path snapshots = repository / "snapshots";
  if (!revision.empty() && is_folder(snapshots / revision)) return snapshots / revision;
  std::ifstream reference(repository / "refs" / (revision.empty() ? "main" : revision));
  std::string commit;
  if (reference >> commit && is_word(commit, kNameExtra) && is_folder(snapshots / commit)) return snapshots / commit;
  if (!revision.empty()) return std::nullopt;
  std::optional<fs::path> newest;
  fs::file_time_type newest_time{};
  for (const fs::path& candidate : children(snapshots)) {
    std::error_code error;
    const auto time = fs::last_write_time(candidate, error);
    if (error || !is_folder(candidate) || (newest && time <= newest_time)) continue;
    newest = candidate;
    newest_time = time;
  }
  return newest;
}

std::optional<fs::path> find_in_hub_cache(const fs::path& cache, std::string_view name) {
  fs::path file;
  auto id = HubId::parse(name);
  if (!id) {
    const std::vector<std::string> parts = components(name);
    if (parts.size() < 3) return std::nullopt;
    const size_t owner_and_name = parts[0].size() + 1 + parts[1].size();
    id = HubId::parse(name.substr(0, owner_and_name));
    file = name.substr(owner_and_name + 1);
    if (!id) return std::nullopt;
  }
  const auto found = snapshot(cache / fmt::format("models--{}--{}", id->owner, id->name), id->revision);
  if (!found) return std::nullopt;
  return file.empty() ? model_in(*found, name) : find_file_in(*found, file);
}

uint64_t split_bytes(const fs::path& first) {
  const auto split = SplitName::parse(first.filename().string());
  if (!split) return file_bytes(first);
  uint64_t bytes = 0;
  for (int part = 1; part <= split->parts; ++part) bytes += file_bytes(first.parent_path() / split->filename(part));
  return bytes;
}

void list_directory(const fs::path& directory, const std::string& name, bool in_store, std::vector<StoredModel>& out) {
  using Kind = StoredModel::Kind;
  if (is_safetensors_model(directory)) {
    out.push_back({name, directory, model_size(directory), Kind::kSafetensors, in_store});
    return;
  }
  const std::vector<fs::path> models = gguf_models(directory);
  for (const fs::path& model : models) {
    const std::string full = models.size() == 1 ? name : name + "/" + model.string();
    out.push_back({full, directory / model, split_bytes(directory / model), Kind::kGguf, in_store});
  }
}

void remove_empty_parents(fs::path directory, const fs::path& store) {
  std::error_code error;
  while (directory != store && fs::is_empty(directory, error) && !error) {
    fs::remove(directory, error);
    directory = directory.parent_path();
  }
}

uint64_t remove_file_model(const fs::path& file) {
  const uint64_t bytes = split_bytes(file);
  std::error_code error;
  const auto split = SplitName::parse(file.filename().string());
  if (!split) {
    fs::remove(file, error);
  } else {
    for (int part = 1; part <= split->parts && !error; ++part) {
      fs::remove(file.parent_path() / split->filename(part), error);
    }
  }
  if (error) fail("cannot remove {}: {}", file.string(), error.message());
  return bytes;
}

uint64_t remove_entry(const fs::path& entry) {
  const uint64_t bytes = model_size(entry);
  std::error_code error;
  // A link that someone put into the store goes; what it points to is not ours.
  if (fs::is_symlink(entry)) {
    fs::remove(entry, error);
  } else {
    fs::remove_all(entry, error);
  }
  if (error) fail("cannot remove {}: {}", entry.string(), error.message());
  return bytes;
}

}  // namespace

std::optional<HubId> HubId::parse(std::string_view text) {
  HubId id;
  const size_t at = text.find('@');
  if (at != std::string_view::npos) {
    const std::string_view revision = text.substr(at + 1);
    if (!is_word(revision, "._-/") || revision.back() == '/' || revision.front() == '/' ||
        revision.find("/.") != std::string_view::npos || revision.find("//") != std::string_view::npos) {
      return std::nullopt;
    }
    id.revision = revision;
    text = text.substr(0, at);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  id.owner = text.substr(0, slash);
  id.name = text.substr(slash + 1);
  if (!is_word(id.owner, kNameExtra) || !is_word(id.name, kNameExtra)) return std::nullopt;
  return id;
}

std::string HubId::entry() const {
  if (revision.empty()) return repository();
  std::string flat;
  for (const char c : revision) flat += c == '/' ? std::string("--") : std::string(1, c);
  return repository() + "@" + flat;
}

fs::path store_directory() {
  if (const auto carat = environment_path("CARAT_HOME")) return *carat / "models";
  if (const auto data = environment_path("XDG_DATA_HOME")) return *data / "carat" / "models";
  if (const auto home = home_directory()) return *home / ".local" / "share" / "carat" / "models";
  fail("no place for models: set CARAT_HOME or HOME");
}

fs::path partial_directory(std::string_view entry) {
  std::string flat(entry);
  std::replace(flat.begin(), flat.end(), '/', '+');  // '+' occurs in no entry's name
  return store_directory() / ".partial" / flat;
}

fs::path hub_cache_directory() {
  if (const auto cache = environment_path("HF_HUB_CACHE")) return *cache;
  if (const auto hub = environment_path("HF_HOME")) return *hub / "hub";
  if (const auto cache = environment_path("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  if (const auto home = home_directory()) return *home / ".cache" / "huggingface" / "hub";
  return {};
}

fs::path resolve_model(std::string_view name) {
  if (name.empty()) fail("no model was named; 'carat ls' lists what is here, 'carat get gemma3-270m' fetches one");
  if (name.find('\0') != std::string_view::npos) fail("a model name cannot contain a NUL byte");
  fs::path path(name);
  std::string seen = "not a directory with config.json, not a .gguf file";
  if (is_folder(path)) {
    if (const auto model = model_in(path, name, false)) return *model;
    if (is_file(path / "config.json")) return path;  // let the checkpoint say what else is missing
    seen = "the directory of that name has neither config.json nor .gguf files";
  } else if (is_file(path)) {
    if (ends_with_gguf(name) || has_gguf_magic(path)) return first_part(path);
    seen = "the file of that name is not a GGUF file";
  }
  const fs::path store = store_directory();
  if (const auto found = find_in_store(store, name)) return *found;
  const fs::path cache = hub_cache_directory();
  if (!cache.empty()) {
    if (const auto found = find_in_hub_cache(cache, name)) return *found;
  }
  const bool fetchable = name == "gemma3-270m" || HubId::parse(name).has_value();
  fail("no model '{}': {}, not in the store {}, not in the Hugging Face cache {}; {}", name, seen, store.string(),
       cache.string(),
       fetchable ? fmt::format("'carat get {}' fetches it", name)
                 : "'carat ls' lists what is here, 'carat get gemma3-270m' or 'carat get OWNER/NAME' fetches a model");
}

std::vector<StoredModel> list_models() {
  std::vector<StoredModel> models;
  const fs::path store = store_directory();
  for (const fs::path& child : children(store)) {
    const std::string name = child.filename().string();
    if (is_file(child) && ends_with_gguf(name)) {
      const auto split = SplitName::parse(name);
      if (split && split->part != 1) continue;
      models.push_back({child.stem().string(), child, split_bytes(child), StoredModel::Kind::kGguf, true});
      if (split) models.back().name = name;
    } else if (is_entry(store, name)) {
      list_directory(child, name, true, models);
    } else {
      for (const fs::path& entry : children(child)) {
        if (is_folder(entry)) list_directory(entry, name + "/" + entry.filename().string(), true, models);
      }
    }
  }
  constexpr std::string_view kPrefix = "models--";
  for (const fs::path& child : children(hub_cache_directory())) {
    const std::string folder = child.filename().string();
    if (!folder.starts_with(kPrefix)) continue;
    const std::string flat = folder.substr(kPrefix.size());
    const size_t split = flat.find("--");
    if (split == std::string::npos) continue;
    const std::string id = flat.substr(0, split) + "/" + flat.substr(split + 2);
    if (const auto found = snapshot(child, "")) list_directory(*found, id, false, models);
  }
  std::sort(models.begin(), models.end(), [](const StoredModel& a, const StoredModel& b) {
    return std::tie(a.name, b.in_store) < std::tie(b.name, a.in_store);
  });
  return models;
}

uint64_t remove_model(std::string_view name) {
  const fs::path store = store_directory();
  const std::vector<std::string> parts = components(name);
  std::optional<fs::path> target;
  for (const auto& [entry, file] : entry_names(name)) {
    if (!is_entry(store, entry)) continue;
    target = file.empty() ? std::optional(store / entry) : find_file_in(store / entry, file);
    if (target) break;
  }
  if (!target && parts.size() == 1) {
    for (const std::string& file : {parts[0], parts[0] + ".gguf"}) {
      if (!target) target = find_file_in(store, file);
    }
  }
  uint64_t partial = 0;
  if (!parts.empty()) {
    const auto id = HubId::parse(name);
    const fs::path unfinished = partial_directory(id ? id->entry() : std::string(name));
    if (is_folder(unfinished)) partial = remove_entry(unfinished);
  }
  if (!target && partial > 0) return partial;
  if (!target) fail("the store {} has no model '{}'; 'carat ls' lists what is here", store.string(), name);
  const uint64_t bytes = is_folder(*target) ? remove_entry(*target) : remove_file_model(*target);
  remove_empty_parents(target->parent_path(), store);
  return bytes + partial;
}

uint64_t model_size(const fs::path& path) {
  if (!is_folder(path)) return split_bytes(path);
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (is_file(it->path())) bytes += file_bytes(it->path());  // through links: the hub cache is made of them
  }
  return bytes;
}

std::vector<fs::path> gguf_models(const fs::path& directory, bool below) {
  std::vector<fs::path> models;
  const auto consider = [&](const fs::path& file) {
    const std::string name = file.filename().string();
    if (!is_file(file) || !ends_with_gguf(name)) return;
    if (name.find("mmproj") != std::string::npos || name.find("imatrix") != std::string::npos) return;
    const auto split = SplitName::parse(name);
    if (split && split->part != 1) return;
    models.push_back(file.lexically_relative(directory));
  };
  for (const fs::path& child : children(directory)) {
    consider(child);
    if (!below || !is_folder(child)) continue;
    for (const fs::path& grandchild : children(child)) consider(grandchild);
  }
  std::sort(models.begin(), models.end());
  return models;
}

std::optional<SplitName> SplitName::parse(std::string_view filename) {
  // <stem>-00002-of-00005.gguf
  constexpr size_t kTail = 20;
  if (filename.size() <= kTail || !ends_with_gguf(filename)) return std::nullopt;
  const std::string_view tail = filename.substr(filename.size() - kTail, kTail - 5);
  const auto number = [](std::string_view digits) {
    int value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return -1;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  SplitName split{std::string(filename.substr(0, filename.size() - kTail)), number(tail.substr(1, 5)),
                  number(tail.substr(10, 5))};
  if (split.part < 1 || split.parts < 1 || split.part > split.parts) return std::nullopt;
  return split;
}

std::string SplitName::filename(int part) const {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, part, parts);
}

}  // namespace carat

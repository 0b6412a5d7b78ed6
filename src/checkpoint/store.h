// The model store: where downloaded models live, and how a name that a person types becomes a path.
//
// The store is a directory of entries: "NAME/" or "OWNER/NAME/" (a hub id; "OWNER/NAME@REVISION/" when a revision was
// asked for), each holding either config.json with safetensors or GGUF files; a bare "NAME.gguf" put there by hand
// counts too. Names that start with a dot are not entries (downloads in progress live in ".partial").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct StoredModel {
  enum class Kind : uint8_t { kSafetensors, kGguf };

  std::string name;            // what resolve_model() takes
  std::filesystem::path path;  // what Checkpoint::open() takes
  uint64_t bytes = 0;          // all its files
  Kind kind = Kind::kGguf;
  bool in_store = true;  // false: found in the Hugging Face cache, which is not ours to change
};

/// "owner/name", "owner/name@revision" taken apart; nullopt for anything else.
struct HubId {
  std::string owner, name, revision;  // revision empty: the default branch

  static std::optional<HubId> parse(std::string_view text);
  std::string repository() const { return owner + "/" + name; }
  /// The store entry's name.
  std::string entry() const;
};

/// $CARAT_HOME/models, else $XDG_DATA_HOME/carat/models, else ~/.local/share/carat/models. Need not exist.
/// Throws Error when not even a home directory is known.
std::filesystem::path store_directory();
/// Where a download of that entry keeps what it has so far.
std::filesystem::path partial_directory(std::string_view entry);
/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_directory();

/// The path to open for `name`, tried in this order: a directory with config.json (or with a single GGUF model), a
/// .gguf file (any part of a split set gives its first), a name in the store, a hub id in the store, a hub id in the
/// Hugging Face cache. "ENTRY/FILE.gguf" picks one of several GGUF files of an entry. Throws Error that says what was
/// tried and how to get the model.
std::filesystem::path resolve_model(std::string_view name);

/// Every model in the store and the Hugging Face cache, by name. Unreadable directories are skipped.
std::vector<StoredModel> list_models();

/// Deletes a model from the store: an entry, or one GGUF file (all parts) of an entry; empty directories and what an
/// unfinished download of that name left go with it.
/// Returns the bytes freed. Throws Error when the store has no such model; nothing outside the store is ever touched.
uint64_t remove_model(std::string_view name);

/// Bytes of all the files of the model at `path`: a directory's regular files, or a GGUF file with its sister parts.
uint64_t model_size(const std::filesystem::path& path);

/// The GGUF models directly in `directory` or, with `below`, also in its directories: paths relative to it, first parts
/// only, sorted. Projectors ("mmproj") and importance matrices ("imatrix") are not models.
std::vector<std::filesystem::path> gguf_models(const std::filesystem::path& directory, bool below = true);

/// The name of part `part` (from 1) of a split set that `filename` belongs to ("x-00002-of-00005.gguf"), and how many
/// parts there are; nullopt when it is not a part.
struct SplitName {
  std::string stem;  // "x"
  int part = 0, parts = 0;

  static std::optional<SplitName> parse(std::string_view filename);
  std::string filename(int part) const;
};

}  // namespace carat

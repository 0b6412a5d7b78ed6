// A sequence's keys and values on disk: a safetensors file that carat writes and reads back (docs/prompt-cache.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"

namespace carat {

/// A sequence by itself.
struct CacheContents {
  std::vector<int> tokens;  // one a position
  /// What add_sequence() needs, and the rings of the checkpoints. Of blocks of the same number in a layer the first one
  /// holds all that the others do.
  std::vector<KvPlacedBlock> blocks;
  std::vector<int64_t> checkpoints;  // shorter lengths for which the blocks hold every ring's window, ascending
};

/// Everything that the cache holds of a sequence: of rings also what lies before the window.
std::vector<KvPlacedBlock> blocks_of(KvCache& cache, int sequence);

/// A cache file as bytes say it, checked: checksum, sizes, and that every number is in its range.
struct ParsedCacheFile {
  struct Layer {
    std::vector<int64_t> numbers;  // of its blocks, ascending
    size_t block_bytes = 0;
    std::span<const std::byte> bytes;  // [numbers, block_bytes]
  };
  std::string model;   // what the keys and values were computed with
  std::string layout;  // how the layers store them
  std::vector<int> tokens;
  std::vector<int64_t> checkpoints;
  std::vector<Layer> layers;
};

/// The views point into `bytes`. Throws Error, naming `origin`, for whatever is not a whole, undamaged cache file.
ParsedCacheFile parse_cache_file(std::span<const std::byte> bytes, const std::string& origin);

/// Writes beside `path` and renames when all of it is on the disk: whatever happens, `path` is the old file or the new
/// one. Readable by its owner alone. `model` names what the keys and values depend on beside the tokens. Throws Error
/// when the disk refuses.
void save_cache_file(const std::filesystem::path& path, KvCache& cache, const CacheContents& contents,
                     const std::string& model);

/// Reads a file back into blocks of `cache`. Throws Error naming the file and what is wrong: not a cache file, damaged,
/// of another model, of another layout of the cache.
CacheContents load_cache_file(const std::filesystem::path& path, KvCache& cache, const std::string& model);

}  // namespace carat

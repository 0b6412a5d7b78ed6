// kv_config.json: formats of cached keys and values, layer by layer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "carat/kv_format.h"

namespace carat {

/// Its name in a model's directory.
inline constexpr std::string_view kKvConfigName = "kv_config.json";

/// An array of {"layer_idx": 3, "bits": 8, "group_size": 64, "recent": 128}: spread codes of keys and values alike, of
/// 2-6 or 8 bits in groups of 32 or 64 (the default); 16 bits are f16. "recent" is KvFormats::recent (default 0).
/// Layers that are not named store f16. Throws Error naming `origin` when the text is anything else or names a layer
/// twice.
KvChoice parse_kv_config(std::string_view text, std::string_view origin);
KvChoice read_kv_config(const std::filesystem::path& file);

/// The text that gives `choice` back. Throws Error for a choice that the file cannot hold.
std::string kv_config_text(const KvChoice& choice);

}  // namespace carat

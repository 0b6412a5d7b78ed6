#include "checkpoint/side_files.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/json.h"

namespace carat {

namespace {

// The largest real one, a tokenizer_config.json with all its added tokens, has 1.2 MB.
constexpr size_t kMostBytes = 64 << 20;

/// A token is written as its text or as an object that holds it.
std::optional<std::string_view> token_text(const JsonObject& fields, std::string_view key) {
  const auto element = fields.find(key);
  if (!element) return std::nullopt;
  if (element->is_object()) return fields.child(*element, key).maybe_string("content");
  return fields.maybe_string(key);
}

void read_tokenizer_config(const JsonObject& config, std::vector<int>& ids) {
  const auto eos = token_text(config, "eos_token");
  const auto added = config.maybe_object("added_tokens_decoder");
  if (!eos || !added) return;
  for (const auto field : added->fields()) {
    if (added->child(field.value, field.key).maybe_string("content") != eos) continue;
    int id = -1;
    const char* end = field.key.data() + field.key.size();
    const auto parsed = std::from_chars(field.key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0) {
      fail("{} is not a token id", added->where(field.key));
    }
    ids.push_back(id);
  }
}

}  // namespace

std::string read_small_file(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() > kMostBytes) {
    fail("{} has {} bytes, expected at most {}", path.string(), bytes.size(), kMostBytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void read_side_files(const std::filesystem::path& directory, std::vector<int>& stop_ids,
                     Checkpoint::SamplingDefaults& sampling) {
  const auto generation = directory / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const JsonDocument document(read_small_file(generation), generation.string());
    const JsonObject fields = document.root();
    const auto ids = fields.token_ids("eos_token_id");
    stop_ids.insert(stop_ids.end(), ids.begin(), ids.end());
    sampling.temperature = fields.maybe_number("temperature", 0, 1e6);
    sampling.top_p = fields.maybe_number("top_p", 0, 1);
    const auto top_k = fields.maybe_integer("top_k", 0, std::numeric_limits<int>::max());
    if (top_k) sampling.top_k = static_cast<int>(*top_k);
  }
  const auto tokenizer = directory / "tokenizer_config.json";
  if (std::filesystem::exists(tokenizer)) {
    const JsonDocument document(read_small_file(tokenizer), tokenizer.string());
    read_tokenizer_config(document.root(), stop_ids);
  }
}

}  // namespace carat

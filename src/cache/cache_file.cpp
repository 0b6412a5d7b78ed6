#include "cache/cache_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/digest.h"
#include "checkpoint/json.h"
#include "checkpoint/partial_file.h"
#include "checkpoint/safetensors.h"

namespace carat {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kHeaderKey = "carat_kv_cache";
constexpr std::string_view kDigestName = "sha256";
constexpr size_t kDigestBytes = 64;  // in hexadecimal

/// "1x256 f16 q8 0, …": heads, width, formats of keys and values, and window of each layer; of rings that keep the
/// latest positions of others "1x256 f16 f16 128 by 256".
std::string layout_of(const KvCacheSpec& spec) {
  std::string layout;
  for (const KvLayerSpec& layer : spec.layers) {
    layout += fmt::format("{}{}x{} {} {} {}", layout.empty() ? "" : ", ", layer.kv_heads, layer.head_dim,
                          kv_format_name(layer.k_format), kv_format_name(layer.v_format), layer.window);
    if (layer.window_step > 1) layout += fmt::format(" by {}", layer.window_step);
  }
  return layout;
}

std::string tensor_name(size_t layer) {
  return fmt::format("layer.{}", layer);
}

/// A new file that is digested as it is written and takes its place at the end. Leaves nothing behind when it does not.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& target)
      : target_(target), path_(target.string() + fmt::format(".{}.partial", ::getpid())), digest_(Digest::sha256()) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd_ < 0) fail("cannot write {}: {}", path_, std::strerror(errno));
  }
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot write {}: {}", path_, std::strerror(errno));
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  void write_digested(std::span<const std::byte> bytes) {
    digest_.update(bytes);
    write(bytes);
  }
  Digest& digest() { return digest_; }

  void take_place() {
    if (::fsync(fd_) != 0) fail("cannot write {}: {}", path_, std::strerror(errno));
    if (::rename(path_.c_str(), target_.c_str()) != 0) {
      fail("cannot rename {} to {}: {}", path_, target_.string(), std::strerror(errno));
    }
    ::close(std::exchange(fd_, -1));
    sync_directory(target_.parent_path().empty() ? "." : target_.parent_path());
  }

 private:
  std::filesystem::path target_;
  std::string path_;
  Digest digest_;
  int fd_ = -1;
};

std::vector<int64_t> integers(const JsonObject& object, std::string_view key, int64_t least, int64_t most) {
  const auto array = object.maybe_array(key);
  if (!array) fail("{} is missing", object.where(key));
  std::vector<int64_t> values;
  values.reserve(array->size());
  for (const auto item : *array) {
    int64_t value = 0;
    if (item.get(value) != simdjson::SUCCESS || value < least || value > most) {
      fail("{} holds {}; expected integers from {} to {}", object.where(key), describe(item), least, most);
    }
    values.push_back(value);
  }
  return values;
}

void check_ascending(const std::vector<int64_t>& values, const std::string& where) {
  if (std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) != values.end()) {
    fail("{} is not ascending", where);
  }
}

void parse_header(const JsonObject& header, ParsedCacheFile& file) {
  const int64_t version = header.integer("version", 0, INT32_MAX);
  if (version != kVersion) {
    fail("{}: a prompt cache of version {}; this carat reads version {}", header.origin(), version, kVersion);
  }
  file.model = header.string("model");
  file.layout = header.string("layout");
  const std::vector<int64_t> tokens = integers(header, "tokens", 0, INT32_MAX);
  if (tokens.empty()) fail("{} is empty", header.where("tokens"));
  file.tokens.assign(tokens.begin(), tokens.end());
  const auto length = static_cast<int64_t>(tokens.size());
  file.checkpoints = integers(header, "checkpoints", 1, length);
  check_ascending(file.checkpoints, header.where("checkpoints"));
  const auto layers = header.maybe_array("layers");
  if (!layers) fail("{} is missing", header.where("layers"));
  for (const auto item : *layers) {
    const JsonObject layer = header.child(item, "layers");
    ParsedCacheFile::Layer parsed;
    parsed.block_bytes = static_cast<size_t>(layer.integer("block_bytes", 1, int64_t{1} << 40));
    parsed.numbers = integers(layer, "numbers", 0, (length - 1) / kKvBlock);
    check_ascending(parsed.numbers, layer.where("numbers"));
    file.layers.push_back(std::move(parsed));
  }
}

/// The tensors are the layers' blocks and the digest, one after the other and nothing else.
void find_bytes(const SafetensorsFile& tensors, std::span<const std::byte> data, ParsedCacheFile& file) {
  const std::string& origin = tensors.origin();
  if (tensors.tensors().size() != file.layers.size() + 1) {
    fail("{}: damaged: it holds {} tensors for {} layers", origin, tensors.tensors().size(), file.layers.size());
  }
  const std::byte* at = data.data();
  for (size_t i = 0; i < tensors.tensors().size(); ++i) {
    const SafeTensor& tensor = tensors.tensors()[i];
    const bool last = i == file.layers.size();
    std::vector<int64_t> shape{static_cast<int64_t>(kDigestBytes)};
    if (!last) {
      shape = {static_cast<int64_t>(file.layers[i].numbers.size()), static_cast<int64_t>(file.layers[i].block_bytes)};
      file.layers[i].bytes = tensor.bytes;
    }
    if (tensor.name != (last ? std::string(kDigestName) : tensor_name(i)) || tensor.dtype != Dtype::kU8 ||
        tensor.shape != shape || tensor.bytes.data() != at) {
      fail("{}: damaged: tensor {} is not what its header says", origin, i);
    }
    at += tensor.bytes.size();
  }
  if (at != data.data() + data.size()) fail("{}: damaged: bytes follow after its last tensor", origin);
}

}  // namespace

std::vector<KvPlacedBlock> blocks_of(KvCache& cache, int sequence) {
  const int64_t count = (cache.length(sequence) + kKvBlock - 1) / kKvBlock;
  std::vector<KvPlacedBlock> blocks;
  for (int layer = 0; layer < cache.layer_count(); ++layer) {
    for (int64_t number = count; number-- > 0;) {
      KvBlockRef block = cache.block(sequence, layer, number);
      if (!block) break;
      blocks.push_back({number, std::move(block)});
    }
  }
  return blocks;
}

ParsedCacheFile parse_cache_file(std::span<const std::byte> bytes, const std::string& origin) {
  const auto tensors = SafetensorsFile::parse(bytes, origin);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);  // parse has checked it
  const auto text = bytes.subspan(sizeof header_bytes, header_bytes);
  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);
  const JsonDocument document({reinterpret_cast<const char*>(text.data()), text.size()}, origin);
  const auto metadata = document.root().maybe_object("__metadata__");
  const auto header = metadata ? metadata->maybe_string(kHeaderKey) : std::nullopt;
  if (!header) fail("{}: not a prompt cache of carat", origin);

  ParsedCacheFile file;
  const JsonDocument inner(*header, origin);
  parse_header(inner.root(), file);
  find_bytes(*tensors, data, file);

  Digest digest = Digest::sha256();
  digest.update(std::as_bytes(std::span(*header)));
  digest.update(data.first(data.size() - kDigestBytes));
  const auto written = data.last(kDigestBytes);
  if (digest.finish() != std::string_view(reinterpret_cast<const char*>(written.data()), written.size())) {
    fail("{}: damaged: its checksum does not fit its content", origin);
  }
  return file;
}

void save_cache_file(const std::filesystem::path& path, KvCache& cache, const CacheContents& contents,
                     const std::string& model) {
  // Checkpoints and the sequence share blocks, or have such as begin alike: of each number the first.
  std::vector<std::map<int64_t, const KvBlockRef*>> layers(static_cast<size_t>(cache.layer_count()));
  for (const KvPlacedBlock& placed : contents.blocks) {
    layers[static_cast<size_t>(placed.block.layer())].emplace(placed.number, &placed.block);
  }
  nlohmann::json header{{"version", kVersion},
                        {"model", model},
                        {"layout", layout_of(cache.spec())},
                        {"tokens", contents.tokens},
                        {"checkpoints", contents.checkpoints},
                        {"layers", nlohmann::json::array()}};
  nlohmann::ordered_json tensors;
  size_t end = 0;
  const auto add_tensor = [&](const std::string& name, const std::vector<size_t>& shape, size_t bytes) {
    tensors[name] = {{"dtype", "U8"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  tensors["__metadata__"] = nullptr;  // comes first
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t block_bytes = cache.block_bytes(static_cast<int>(i));
    std::vector<int64_t> numbers;
    for (const auto& [number, block] : layers[i]) numbers.push_back(number);
    header["layers"].push_back({{"numbers", numbers}, {"block_bytes", block_bytes}});
    add_tensor(tensor_name(i), {numbers.size(), block_bytes}, numbers.size() * block_bytes);
  }
  add_tensor(std::string(kDigestName), {kDigestBytes}, kDigestBytes);
  const std::string inner = header.dump();
  tensors["__metadata__"] = {{std::string(kHeaderKey), inner}};
  std::string outer = tensors.dump();
  outer.resize((outer.size() + 63) / 64 * 64, ' ');

  NewFile file(path);
  const uint64_t outer_bytes = outer.size();
  file.write(std::as_bytes(std::span(&outer_bytes, 1)));
  file.write(outer);
  file.digest().update(std::as_bytes(std::span(inner)));
  std::vector<std::byte> content;
  for (size_t i = 0; i < layers.size(); ++i) {
    content.resize(cache.block_bytes(static_cast<int>(i)));
    for (const auto& [number, block] : layers[i]) {
      cache.download(*block, content.data());
      file.write_digested(content);
    }
  }
  file.write(file.digest().finish());
  file.take_place();
}

CacheContents load_cache_file(const std::filesystem::path& path, KvCache& cache, const std::string& model) {
  const auto mapping = MappedFile::open(path);
  ParsedCacheFile file = parse_cache_file(mapping->bytes(), path.string());
  if (file.model != model) {
    fail("{} was made with another model or other settings: {}; this is {}", path.string(), file.model, model);
  }
  if (file.layout != layout_of(cache.spec()) || static_cast<int>(file.layers.size()) != cache.layer_count()) {
    fail("{} stores keys and values in other formats than this run", path.string());
  }
  CacheContents contents{.tokens = std::move(file.tokens), .blocks = {}, .checkpoints = std::move(file.checkpoints)};
  for (size_t i = 0; i < file.layers.size(); ++i) {
    const ParsedCacheFile::Layer& layer = file.layers[i];
    if (layer.block_bytes != cache.block_bytes(static_cast<int>(i))) {
      fail("{} has blocks of {} bytes in layer {}; expected {}", path.string(), layer.block_bytes, i,
           cache.block_bytes(static_cast<int>(i)));
    }
    for (size_t b = 0; b < layer.numbers.size(); ++b) {
      const auto bytes = layer.bytes.subspan(b * layer.block_bytes, layer.block_bytes);
      contents.blocks.push_back({layer.numbers[b], cache.new_block(static_cast<int>(i), bytes)});
    }
  }
  return contents;
}

}  // namespace carat

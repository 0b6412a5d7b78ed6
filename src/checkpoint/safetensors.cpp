#include "checkpoint/safetensors.h"

#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "checkpoint/json.h"

namespace carat {

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDimensions = 16;         // MLX and torch tensors of language models have at most 5

struct DtypeName {
  std::string_view name;
  int bits;
  Dtype dtype;
};

constexpr DtypeName kDtypes[] = {
    {"F32", 32, Dtype::kF32},      {"F16", 16, Dtype::kF16},      {"BF16", 16, Dtype::kBF16},
    {"U32", 32, Dtype::kU32},      {"U8", 8, Dtype::kU8},         {"BOOL", 8, Dtype::kOther},
    {"I8", 8, Dtype::kOther},      {"I16", 16, Dtype::kOther},    {"U16", 16, Dtype::kOther},
    {"I32", 32, Dtype::kOther},    {"I64", 64, Dtype::kOther},    {"U64", 64, Dtype::kOther},
    {"F64", 64, Dtype::kOther},    {"C64", 64, Dtype::kOther},    {"F8_E4M3", 8, Dtype::kOther},
    {"F8_E5M2", 8, Dtype::kOther}, {"F8_E8M0", 8, Dtype::kOther}, {"F4", 4, Dtype::kOther},
    {"F6_E2M3", 6, Dtype::kOther}, {"F6_E3M2", 6, Dtype::kOther},
};

const DtypeName& find_dtype(const JsonObject& entry, std::string_view tensor) {
  const std::string_view name = entry.string("dtype");
  for (const DtypeName& dtype : kDtypes) {
    if (dtype.name == name) return dtype;
  }
  fail("{}: tensor '{}' has the unknown dtype '{}'", entry.origin(), tensor, name);
}

/// The bytes that the tensor's dtype and shape ask for. Fills `shape`.
uint64_t read_shape(const JsonObject& entry, const DtypeName& dtype, SafeTensor& tensor) {
  const auto list = entry.maybe_array("shape");
  if (!list) fail("{} is missing", entry.where("shape"));
  if (list->size() > kMaxDimensions) {
    fail("{}: tensor '{}' has {} dimensions, at most {} are supported", entry.origin(), tensor.name, list->size(),
         kMaxDimensions);
  }
  uint64_t bits = static_cast<uint64_t>(dtype.bits);
  for (const auto item : *list) {
    int64_t size = 0;
    if (item.get(size) != simdjson::SUCCESS || size < 0) {
      fail("{}: the shape of tensor '{}' holds {}", entry.origin(), tensor.name, describe(item));
    }
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits)) {
      fail("{}: the shape of tensor '{}' overflows", entry.origin(), tensor.name);
    }
    tensor.shape.push_back(size);
  }
  if (bits % 8 != 0) fail("{}: tensor '{}' does not fill whole bytes", entry.origin(), tensor.name);
  return bits / 8;
}

SafeTensor read_tensor(const JsonObject& entry, std::string_view name, std::span<const std::byte> data) {
  SafeTensor tensor;
  tensor.name = name;
  const DtypeName& dtype = find_dtype(entry, name);
  tensor.dtype = dtype.dtype;
  const uint64_t expected = read_shape(entry, dtype, tensor);

  const auto offsets = entry.maybe_array("data_offsets");
  if (!offsets || offsets->size() != 2) fail("{} is missing or not a pair", entry.where("data_offsets"));
  uint64_t begin = 0;
  uint64_t end = 0;
  if (offsets->at(0).get(begin) != simdjson::SUCCESS || offsets->at(1).get(end) != simdjson::SUCCESS || begin > end) {
    fail("{} is not a rising pair of byte offsets", entry.where("data_offsets"));
  }
  if (end > data.size()) {
    fail("{}: tensor '{}' ends at byte {} of the data, but the file holds only {}: it is truncated or damaged",
         entry.origin(), name, end, data.size());
  }
  if (end - begin != expected) {
    fail("{}: tensor '{}' has {} bytes, but its dtype {} and shape ask for {}", entry.origin(), name, end - begin,
         dtype.name, expected);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  for (const DtypeName& known : kDtypes) {
    if (known.dtype == dtype && dtype != Dtype::kOther) return known.name;
  }
  return "another type";
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = MappedFile::open(path);
  auto parsed = std::const_pointer_cast<SafetensorsFile>(parse(mapping->bytes(), path.string()));
  parsed->file_ = std::move(mapping);
  return parsed;
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string origin) {
  auto file = std::make_shared<SafetensorsFile>();
  file->origin_ = std::move(origin);
  file->size_ = bytes.size();
  const std::string& name = file->origin_;

  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) fail("{}: {} bytes are too few for a safetensors file", name, bytes.size());
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kMaxHeader) fail("{}: not a safetensors file: its header would take {} bytes", name, length);
  if (length > bytes.size() - sizeof(length)) {
    fail("{}: the header claims {} bytes, but the file holds only {}: it is truncated or damaged", name, length,
         bytes.size() - sizeof(length));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  const auto data = bytes.subspan(sizeof(length) + length);

  const JsonDocument document(header, name);
  const JsonObject root = document.root();
  std::unordered_set<std::string_view> seen;  // views into the document
  for (const auto field : root.fields()) {
    if (!seen.insert(field.key).second) fail("{}: tensor '{}' occurs twice", name, field.key);
    if (field.key == "__metadata__") continue;
    file->tensors_.push_back(read_tensor(root.child(field.value, field.key), field.key, data));
  }
  return file;
}

}  // namespace carat

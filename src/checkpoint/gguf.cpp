#include "checkpoint/gguf.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "checkpoint/ggml_types.h"

namespace carat {

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

using Type = GgufValue::Type;

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1u << 20;
constexpr uint32_t kMaxDimensions = 4;
// The least that one entry takes in the file. A count that the rest of the file cannot hold is a lie and is refused
// before anything is allocated for it.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;             // name length, type, a one-byte value
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, dimensions, one of them, type, offset

constexpr std::string_view kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};

std::string_view name_of(Type type) {
  return kTypeNames[static_cast<uint32_t>(type)];
}

/// Bytes of a fixed-size type; 0 for strings and arrays.
uint64_t size_of(Type type) {
  switch (type) {
    case Type::kU8:
    case Type::kI8:
    case Type::kBool:
      return 1;
    case Type::kU16:
    case Type::kI16:
      return 2;
    case Type::kU32:
    case Type::kI32:
    case Type::kF32:
      return 4;
    case Type::kU64:
    case Type::kI64:
    case Type::kF64:
      return 8;
    case Type::kString:
    case Type::kArray:
      break;
  }
  return 0;
}

bool is_integer(Type type) {
  return size_of(type) != 0 && type != Type::kF32 && type != Type::kF64 && type != Type::kBool;
}

/// Values need not be aligned in the file.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// Walks the file's bytes from front to back; every step is checked.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  size_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      fail("{}: the file ends inside {}: {} bytes are needed at byte {}, {} are left", origin_, what, count, position_,
           remaining());
    }
    const auto part = bytes_.subspan(position_, count);
    position_ += count;
    return part;
  }

  template <typename T>
  T value(std::string_view what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::string_view string(std::string_view what) {
    const auto length = value<uint64_t>(what);
    const auto text = take(length, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  Type type(std::string_view what) {
    const auto number = value<uint32_t>(what);
    if (number > static_cast<uint32_t>(Type::kF64)) {
      fail("{}: {} has value type {}, which GGUF does not define", origin_, what, number);
    }
    return static_cast<Type>(number);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& origin_;
  size_t position_ = 0;
};

GgufValue read_value(Reader& reader, const std::string& origin, std::string_view key) {
  GgufValue value;
  const std::string what = fmt::format("the metadata value '{}'", key);
  value.type = reader.type(what);
  if (value.type == Type::kString) {
    const std::string_view text = reader.string(what);
    value.payload = std::as_bytes(std::span(text));
    return value;
  }
  if (value.type != Type::kArray) {
    value.payload = reader.take(size_of(value.type), what);
    return value;
  }
  value.element = reader.type(what);
  value.count = reader.value<uint64_t>(what);
  if (value.element == Type::kArray) fail("{}: {} is an array of arrays, which is not supported", origin, what);
  const uint64_t least = value.element == Type::kString ? 8 : size_of(value.element);
  if (value.count > reader.remaining() / least) {
    fail("{}: {} claims {} elements of type {}, more than the rest of the file holds", origin, what, value.count,
         name_of(value.element));
  }
  if (value.element != Type::kString) {
    value.payload = reader.take(value.count * least, what);
    return value;
  }
  // Strings have lengths of their own: walking them checks every length once and finds the end.
  Reader ahead = reader;
  for (uint64_t i = 0; i < value.count; ++i) ahead.string(what);
  value.payload = reader.take(ahead.position() - reader.position(), what);
  return value;
}

int64_t integer_at(Type type, const std::byte* at, const std::string& origin, std::string_view key) {
  switch (type) {
    case Type::kU8:
      return load<uint8_t>(at);
    case Type::kI8:
      return load<int8_t>(at);
    case Type::kU16:
      return load<uint16_t>(at);
    case Type::kI16:
      return load<int16_t>(at);
    case Type::kU32:
      return load<uint32_t>(at);
    case Type::kI32:
      return load<int32_t>(at);
    case Type::kI64:
      return load<int64_t>(at);
    case Type::kBool:
      return load<uint8_t>(at) != 0;
    case Type::kU64: {
      const auto value = load<uint64_t>(at);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail("{}: the metadata value '{}' is {}, which is absurdly large", origin, key, value);
      }
      return static_cast<int64_t>(value);
    }
    default:
      fail("{}: the metadata value '{}' is not an integer", origin, key);
  }
}

[[noreturn]] void wrong_type(const std::string& origin, std::string_view key, const GgufValue& value,
                             std::string_view expected) {
  if (value.type == Type::kArray) {
    fail("{}: the metadata value '{}' is an array of {}, expected {}", origin, key, name_of(value.element), expected);
  }
  fail("{}: the metadata value '{}' is of type {}, expected {}", origin, key, name_of(value.type), expected);
}

const GgufValue* find(const std::unordered_map<std::string, GgufValue>& values, std::string_view key) {
  const auto found = values.find(std::string(key));
  return found == values.end() ? nullptr : &found->second;
}

/// A tensor's directory entry; its offset is relative to the data section, whose start is known only after the last
/// one.
struct Entry {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t size = 0;
};

Entry read_entry(Reader& reader, const std::string& origin) {
  Entry entry;
  GgufTensor& tensor = entry.tensor;
  tensor.name = reader.string("the name of a tensor");
  if (tensor.name.empty()) fail("{}: a tensor has an empty name", origin);
  const std::string what = fmt::format("the directory entry of tensor '{}'", tensor.name);
  const auto dimensions = reader.value<uint32_t>(what);
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    fail("{}: tensor '{}' has {} dimensions, expected 1 to {}", origin, tensor.name, dimensions, kMaxDimensions);
  }
  tensor.shape.resize(dimensions);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = reader.value<uint64_t>(what);
    if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("{}: dimension {} of tensor '{}' is {}", origin, i, tensor.name, size);
    }
    if (__builtin_mul_overflow(elements, size, &elements)) {
      fail("{}: the shape of tensor '{}' overflows", origin, tensor.name);
    }
    tensor.shape[dimensions - 1 - i] = static_cast<int64_t>(size);
  }
  tensor.type = reader.value<uint32_t>(what);
  entry.offset = reader.value<uint64_t>(what);

  const GgmlType* type = find_ggml_type(tensor.type);
  if (type == nullptr) fail("{}: tensor '{}' has type number {}, which is unknown", origin, tensor.name, tensor.type);
  if (tensor.shape.back() % type->block != 0) {
    fail("{}: rows of tensor '{}' have {} values, not a multiple of the {} of a {} block", origin, tensor.name,
         tensor.shape.back(), type->block, type->name);
  }
  if (__builtin_mul_overflow(elements / static_cast<uint64_t>(type->block), static_cast<uint64_t>(type->bytes),
                             &entry.size)) {
    fail("{}: the size of tensor '{}' overflows", origin, tensor.name);
  }
  return entry;
}

void check_header(Reader& reader, const std::string& origin) {
  if (reader.value<uint32_t>("the magic number") != kMagic) fail("{}: not a GGUF file", origin);
  const auto version = reader.value<uint32_t>("the version");
  if (version == 2 || version == 3) return;
  if ((version & 0xffff) == 0) fail("{}: a big-endian GGUF file, only little-endian ones are supported", origin);
  fail("{}: GGUF version {}, expected 2 or 3", origin, version);
}

}  // namespace

std::shared_ptr<const GgufFile> GgufFile::open(const std::filesystem::path& path) {
  auto mapping = MappedFile::open(path);
  auto parsed = std::const_pointer_cast<GgufFile>(parse(mapping->bytes(), path.string()));
  parsed->file_ = std::move(mapping);
  return parsed;
}

std::shared_ptr<const GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string origin) {
  auto file = std::make_shared<GgufFile>();
  file->origin_ = std::move(origin);
  const std::string& name = file->origin_;

  Reader reader(bytes, name);
  check_header(reader, name);
  const auto tensor_count = reader.value<uint64_t>("the tensor count");
  const auto key_count = reader.value<uint64_t>("the metadata count");
  if (key_count > reader.remaining() / kMinKeyBytes) {
    fail("{}: claims {} metadata values, more than the file holds", name, key_count);
  }
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string_view key = reader.string("the name of a metadata value");
    if (key.empty()) fail("{}: a metadata value has an empty name", name);
    const GgufValue value = read_value(reader, name, key);
    if (!file->values_.emplace(key, value).second) fail("{}: the metadata value '{}' occurs twice", name, key);
  }

  if (tensor_count > reader.remaining() / kMinTensorBytes) {
    fail("{}: claims {} tensors, more than the file holds", name, tensor_count);
  }
  std::vector<Entry> entries;
  entries.reserve(tensor_count);
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    entries.push_back(read_entry(reader, name));
    const std::string_view tensor = entries.back().tensor.name;
    if (!seen.insert(tensor).second) fail("{}: tensor '{}' occurs twice", name, tensor);
  }

  const int64_t stated = file->integer("general.alignment").value_or(kDefaultAlignment);
  if (stated <= 0 || stated > static_cast<int64_t>(kMaxAlignment) ||
      !std::has_single_bit(static_cast<uint64_t>(stated))) {
    fail("{}: general.alignment is {}, expected a power of two up to {}", name, stated, kMaxAlignment);
  }
  const auto alignment = static_cast<uint64_t>(stated);
  const uint64_t start = (reader.position() + alignment - 1) / alignment * alignment;
  const uint64_t available = start < bytes.size() ? bytes.size() - start : 0;
  file->tensors_.reserve(entries.size());
  for (Entry& entry : entries) {
    if (entry.offset % alignment != 0) {
      fail("{}: tensor '{}' starts at offset {}, not a multiple of the alignment {}", name, entry.tensor.name,
           entry.offset, alignment);
    }
    if (entry.offset > available || entry.size > available - entry.offset) {
      fail("{}: tensor '{}' of {} bytes at offset {} reaches beyond the {} bytes of data in the file", name,
           entry.tensor.name, entry.size, entry.offset, available);
    }
    entry.tensor.bytes = bytes.subspan(start + entry.offset, entry.size);
    file->tensors_.push_back(std::move(entry.tensor));
  }
  return file;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (!is_integer(value->type)) wrong_type(origin_, key, *value, "an integer");
  return integer_at(value->type, value->payload.data(), origin_, key);
}

std::optional<double> GgufFile::real(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type == Type::kF32) return static_cast<double>(load<float>(value->payload.data()));
  if (value->type == Type::kF64) return load<double>(value->payload.data());
  wrong_type(origin_, key, *value, "a floating-point number");
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kBool) wrong_type(origin_, key, *value, "a bool");
  return load<uint8_t>(value->payload.data()) != 0;
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kString) wrong_type(origin_, key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->payload.data()), value->payload.size());
}

std::optional<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kArray || !(is_integer(value->element) || value->element == Type::kBool)) {
    wrong_type(origin_, key, *value, "an array of integers");
  }
  std::vector<int64_t> out(value->count);
  const uint64_t size = size_of(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    out[i] = integer_at(value->element, value->payload.data() + i * size, origin_, key);
  }
  return out;
}

std::optional<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kArray || (value->element != Type::kF32 && value->element != Type::kF64)) {
    wrong_type(origin_, key, *value, "an array of floating-point numbers");
  }
  std::vector<float> out(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    out[i] = value->element == Type::kF32 ? load<float>(value->payload.data() + i * 4)
                                          : static_cast<float>(load<double>(value->payload.data() + i * 8));
  }
  return out;
}

std::optional<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const GgufValue* value = find(values_, key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kArray || value->element != Type::kString) {
    wrong_type(origin_, key, *value, "an array of strings");
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);
  Reader reader(value->payload, origin_);
  for (uint64_t i = 0; i < value->count; ++i) out.push_back(reader.string(key));
  return out;
}

}  // namespace carat

// GGUF files (versions 2 and 3, little-endian): metadata and tensor directory over a mapping.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/mapped_file.h"

namespace carat {

/// A metadata value. Arrays stay in the file and are read on demand.
struct GgufValue {
  enum class Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
  Type type = Type::kU8;
  Type element = Type::kU8;            // of an array
  uint64_t count = 0;                  // of an array
  std::span<const std::byte> payload;  // the value's bytes (a string without its length; an array's elements)
};

struct GgufTensor {
  std::string_view name;
  uint32_t type = 0;           // ggml_type number
  std::vector<int64_t> shape;  // outermost first (the file stores innermost first)
  std::span<const std::byte> bytes;
};

/// One file. Everything is bounds-checked at open; values are views into the mapping. Immutable, thread-safe.
class GgufFile {
 public:
  /// Throws Error naming the file and the first thing wrong with it.
  static std::shared_ptr<const GgufFile> open(const std::filesystem::path& path);
  /// Parses bytes that something else keeps alive (fuzzing, tests). `origin` names them in errors.
  static std::shared_ptr<const GgufFile> parse(std::span<const std::byte> bytes, std::string origin);

  bool has(std::string_view key) const { return values_.contains(std::string(key)); }
  /// Typed access: nullopt when the key is absent; Error when it has another type. Integers accept any integer type.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;  // an array of any integer or bool type
  std::optional<std::vector<float>> floats(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;

  const std::unordered_map<std::string, GgufValue>& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::string& origin() const { return origin_; }

 private:
  std::shared_ptr<const MappedFile> file_;  // null for parse()
  std::string origin_;
  std::unordered_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace carat

// Builders of tiny GGUF and safetensors files, and directories that vanish after the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carat::testing {

using Bytes = std::vector<std::byte>;

inline void append(Bytes& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

template <typename T>
void append_value(Bytes& out, T value) {
  append(out, &value, sizeof(value));
}

inline Bytes to_bytes(std::string_view text) {
  Bytes out;
  append(out, text.data(), text.size());
  return out;
}

template <typename T>
Bytes to_bytes(const std::vector<T>& values) {
  Bytes out;
  append(out, values.data(), values.size() * sizeof(T));
  return out;
}

/// Writes the container format by its specification; knows nothing of models.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  void u32(std::string_view key, uint32_t value) { scalar(key, 4, value); }
  void i32(std::string_view key, int32_t value) { scalar(key, 5, value); }
  void u16(std::string_view key, uint16_t value) { scalar(key, 2, value); }
  void u64(std::string_view key, uint64_t value) { scalar(key, 10, value); }
  void f32(std::string_view key, float value) { scalar(key, 6, value); }
  void f64(std::string_view key, double value) { scalar(key, 12, value); }
  void boolean(std::string_view key, bool value) { scalar<uint8_t>(key, 7, value); }
  void string(std::string_view key, std::string_view value) {
    start(key, 8);
    text(keys_, value);
  }
  template <typename T>
  void array(std::string_view key, uint32_t element, const std::vector<T>& values) {
    start(key, 9);
    append_value<uint32_t>(keys_, element);
    append_value<uint64_t>(keys_, values.size());
    append(keys_, values.data(), values.size() * sizeof(T));
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    start(key, 9);
    append_value<uint32_t>(keys_, 8);
    append_value<uint64_t>(keys_, values.size());
    for (const auto& value : values) text(keys_, value);
  }
  /// Raw bytes as a value, for lies.
  void raw(std::string_view key, uint32_t type, const Bytes& value) {
    start(key, type);
    append(keys_, value.data(), value.size());
  }

  /// `shape` outermost first.
  void tensor(std::string_view name, std::vector<int64_t> shape, uint32_t type, const Bytes& data) {
    text(directory_, name);
    append_value<uint32_t>(directory_, static_cast<uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) append_value<uint64_t>(directory_, *size);
    append_value<uint32_t>(directory_, type);
    append_value<uint64_t>(directory_, data_.size());
    append(data_, data.data(), data.size());
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    ++tensors_;
  }

  Bytes build() const {
    Bytes out = to_bytes("GGUF");
    append_value<uint32_t>(out, version);
    append_value<uint64_t>(out, tensors_);
    append_value<uint64_t>(out, count_);
    append(out, keys_.data(), keys_.size());
    append(out, directory_.data(), directory_.size());
    if (!data_.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    append(out, data_.data(), data_.size());
    return out;
  }

 private:
  static void text(Bytes& out, std::string_view value) {
    append_value<uint64_t>(out, value.size());
    append(out, value.data(), value.size());
  }
  void start(std::string_view key, uint32_t type) {
    text(keys_, key);
    append_value<uint32_t>(keys_, type);
    ++count_;
  }
  template <typename T>
  void scalar(std::string_view key, uint32_t type, T value) {
    start(key, type);
    append_value<T>(keys_, value);
  }

  Bytes keys_;
  Bytes directory_;
  Bytes data_;
  uint64_t count_ = 0;
  uint64_t tensors_ = 0;
};

/// Writes safetensors files; the header is padded with `slack` spaces, which moves the data to any alignment.
class SafetensorsBuilder {
 public:
  size_t slack = 0;

  void tensor(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape, const Bytes& data) {
    const size_t begin = data_.size();
    append(data_, data.data(), data.size());
    entry(name, dtype, shape, begin, data_.size());
  }
  /// An entry that need not be true.
  void entry(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape, uint64_t begin,
             uint64_t end) {
    entries_.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                                   fmt::join(shape, ","), begin, end));
  }

  Bytes build() const {
    const std::string header = fmt::format("{{{}}}{}", fmt::join(entries_, ","), std::string(slack, ' '));
    return with_header(header, data_);
  }
  static Bytes with_header(std::string_view header, const Bytes& data) {
    Bytes out;
    append_value<uint64_t>(out, header.size());
    append(out, header.data(), header.size());
    append(out, data.data(), data.size());
    return out;
  }

 private:
  std::vector<std::string> entries_;
  Bytes data_;
};

class TempDir {
 public:
  TempDir() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("carat-test-{}-{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(std::string_view name, const Bytes& bytes) const {
    const auto path = path_ / name;
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    return write(name, to_bytes(text));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::filesystem::path golden(std::string_view variant_and_form) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "models" / variant_and_form;
}

/// The sentence that `action` fails with; "" when it succeeds.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// That `action` throws an Error whose sentence has `part` in it.
template <typename Action>
::testing::AssertionResult fails(const Action& action, const std::string& part) {
  const std::string sentence = error_of(action);
  if (sentence.empty()) return ::testing::AssertionFailure() << "no error, expected one with \"" << part << "\"";
  if (sentence.find(part) == std::string::npos) {
    return ::testing::AssertionFailure() << "the error is \"" << sentence << "\", expected \"" << part << "\" in it";
  }
  return ::testing::AssertionSuccess();
}

/// Calls parse(bytes) for every prefix of `bytes` and for every byte changed in several ways, each in a buffer of its
/// exact size so that a sanitizer sees any step beyond it. Errors are fine; anything else escapes.
template <typename Parse>
void expect_hardy(const Bytes& bytes, const Parse& parse) {
  const auto attempt = [&](std::span<const std::byte> part) {
    const Bytes copy(part.begin(), part.end());
    error_of([&] { parse(std::span<const std::byte>(copy)); });
  };
  for (size_t length = 0; length <= bytes.size(); ++length) attempt(std::span(bytes).first(length));
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes damaged = bytes;
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      damaged[i] = static_cast<std::byte>(value);
      attempt(damaged);
    }
  }
}

}  // namespace carat::testing

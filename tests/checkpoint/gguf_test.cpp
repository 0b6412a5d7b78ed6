#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include "checkpoint/files.h"
#include "checkpoint/ggml_types.h"
#include "quant/matrix.h"

namespace carat {
namespace {

using testing::append_value;
using testing::Bytes;
using testing::error_of;
using testing::GgufBuilder;

std::shared_ptr<const GgufFile> parse(const Bytes& bytes) {
  return GgufFile::parse(bytes, "test.gguf");
}

GgufBuilder sample() {
  GgufBuilder file;
  file.string("general.architecture", "gemma4");
  file.u32("a.u32", 7);
  file.i32("a.i32", -7);
  file.u16("a.u16", 65535);
  file.u64("a.u64", 1ull << 40);
  file.f32("a.f32", 0.5f);
  file.f64("a.f64", 0.1);
  file.boolean("a.bool", true);
  file.array<int32_t>("a.integers", 5, {1, -2, 3});
  file.array<uint8_t>("a.flags", 7, {1, 0, 1});
  file.array<float>("a.floats", 6, {1.5f, -2.5f});
  file.strings("a.strings", {"one", "", "three"});
  file.tensor("vector", {3}, 0, testing::to_bytes(std::vector<float>{1, 2, 3}));
  file.tensor("matrix", {2, 32}, 8, Bytes(2 * 34, std::byte{9}));
  return file;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder = sample();
    builder.version = version;
    const Bytes bytes = builder.build();
    const auto file = parse(bytes);
    EXPECT_EQ(file->string("general.architecture"), "gemma4");
    EXPECT_EQ(file->integer("a.u32"), 7);
    EXPECT_EQ(file->integer("a.i32"), -7);
    EXPECT_EQ(file->integer("a.u16"), 65535);
    EXPECT_EQ(file->integer("a.u64"), int64_t{1} << 40);
    EXPECT_EQ(file->real("a.f32"), 0.5);
    EXPECT_EQ(file->real("a.f64"), 0.1);
    EXPECT_EQ(file->boolean("a.bool"), true);
    EXPECT_EQ(file->integers("a.integers"), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(file->integers("a.flags"), (std::vector<int64_t>{1, 0, 1}));
    EXPECT_EQ(file->floats("a.floats"), (std::vector<float>{1.5f, -2.5f}));
    EXPECT_EQ(file->strings("a.strings"), (std::vector<std::string_view>{"one", "", "three"}));
    EXPECT_TRUE(file->has("a.u32"));
    EXPECT_FALSE(file->has("b"));
    EXPECT_EQ(file->integer("b"), std::nullopt);
    EXPECT_EQ(file->strings("b"), std::nullopt);
  }
}

TEST(Gguf, ReadsTensorsAsViews) {
  const Bytes bytes = sample().build();
  const auto file = parse(bytes);
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor& matrix = file->tensors()[1];
  EXPECT_EQ(matrix.name, "matrix");
  EXPECT_EQ(matrix.shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(matrix.bytes.size(), 68u);
  EXPECT_EQ(matrix.bytes[0], std::byte{9});
  EXPECT_GE(matrix.bytes.data(), bytes.data());
  EXPECT_LE(matrix.bytes.data() + matrix.bytes.size(), bytes.data() + bytes.size());
  float third = 0;
  std::memcpy(&third, file->tensors()[0].bytes.data() + 8, sizeof(third));
  EXPECT_EQ(third, 3.0f);
}

TEST(Gguf, HonoursTheAlignmentOfTheFile) {
  GgufBuilder builder;
  builder.alignment = 256;
  builder.u32("general.alignment", 256);
  builder.tensor("a", {1}, 0, Bytes(4, std::byte{1}));
  builder.tensor("b", {1}, 0, Bytes(4, std::byte{2}));
  const Bytes bytes = builder.build();
  const auto file = parse(bytes);
  EXPECT_EQ((file->tensors()[0].bytes.data() - bytes.data()) % 256, 0);
  EXPECT_EQ(file->tensors()[1].bytes[0], std::byte{2});
  for (const uint32_t alignment : {0u, 3u, 48u, 1u << 30}) {
    GgufBuilder wrong;
    wrong.u32("general.alignment", alignment);
    const Bytes lie = wrong.build();
    EXPECT_TRUE(testing::fails([&] { parse(lie); }, "general.alignment"));
  }
}

TEST(Gguf, AccessWithAnotherTypeIsASentence) {
  const Bytes bytes = sample().build();
  const auto file = parse(bytes);
  EXPECT_TRUE(testing::fails([&] { file->integer("a.f32"); }, "'a.f32' is of type f32, expected an integer"));
  EXPECT_TRUE(testing::fails([&] { file->real("a.u32"); }, "expected a floating-point number"));
  EXPECT_TRUE(testing::fails([&] { file->boolean("a.u32"); }, "expected a bool"));
  EXPECT_TRUE(testing::fails([&] { file->string("a.u32"); }, "expected a string"));
  EXPECT_TRUE(testing::fails([&] { file->integers("a.floats"); }, "is an array of f32, expected an array of integers"));
  EXPECT_TRUE(testing::fails([&] { file->floats("a.u32"); }, "expected an array of floating-point numbers"));
  EXPECT_TRUE(testing::fails([&] { file->strings("a.integers"); }, "is an array of i32, expected an array of strings"));
}

TEST(Gguf, RefusesWhatIsNoGguf) {
  EXPECT_TRUE(testing::fails([&] { parse(testing::to_bytes("GGML and more of it")); }, "not a GGUF file"));
  EXPECT_TRUE(testing::fails([&] { parse({}); }, "the file ends inside the magic number"));
  for (const uint32_t version : {0u, 1u, 4u}) {
    GgufBuilder builder;
    builder.version = version;
    const Bytes bytes = builder.build();
    EXPECT_FALSE(error_of([&] { parse(bytes); }).empty()) << version;
  }
  GgufBuilder big_endian;
  big_endian.version = 0x03000000;
  const Bytes bytes = big_endian.build();
  EXPECT_TRUE(testing::fails([&] { parse(bytes); }, "big-endian"));
}

TEST(Gguf, RefusesDuplicates) {
  GgufBuilder keys;
  keys.u32("a", 1);
  keys.u32("a", 1);
  EXPECT_TRUE(testing::fails([&] { parse(keys.build()); }, "'a' occurs twice"));
  GgufBuilder tensors;
  tensors.tensor("t", {1}, 0, Bytes(4));
  tensors.tensor("t", {1}, 0, Bytes(4));
  EXPECT_TRUE(testing::fails([&] { parse(tensors.build()); }, "'t' occurs twice"));
}

/// A header with counts of its own choice and nothing behind it.
Bytes bare_header(uint64_t tensors, uint64_t keys) {
  Bytes out = testing::to_bytes("GGUF");
  append_value<uint32_t>(out, 3);
  append_value<uint64_t>(out, tensors);
  append_value<uint64_t>(out, keys);
  return out;
}

TEST(Gguf, LyingCountsAllocateNothing) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  EXPECT_TRUE(testing::fails([&] { parse(bare_header(kHuge, 0)); }, "tensors, more than the file holds"));
  EXPECT_TRUE(testing::fails([&] { parse(bare_header(0, kHuge)); }, "metadata values, more than the file holds"));
  for (const uint32_t element : {0u, 4u, 8u, 10u}) {
    GgufBuilder builder;
    Bytes array;
    append_value<uint32_t>(array, element);
    append_value<uint64_t>(array, kHuge / 4);
    builder.raw("a", 9, array);
    EXPECT_TRUE(testing::fails([&] { parse(builder.build()); }, "more than the rest of the file holds"));
  }
  GgufBuilder builder;
  Bytes text;
  append_value<uint64_t>(text, kHuge);
  builder.raw("a", 8, text);
  EXPECT_TRUE(testing::fails([&] { parse(builder.build()); }, "the file ends inside the metadata value 'a'"));
}

TEST(Gguf, RefusesTypesThatDoNotExist) {
  GgufBuilder value;
  value.raw("a", 13, Bytes(8));
  EXPECT_TRUE(testing::fails([&] { parse(value.build()); }, "value type 13"));
  GgufBuilder nested;
  Bytes array;
  append_value<uint32_t>(array, 9);
  append_value<uint64_t>(array, 0);
  nested.raw("a", 9, array);
  EXPECT_TRUE(testing::fails([&] { parse(nested.build()); }, "array of arrays"));
  GgufBuilder tensor;
  tensor.tensor("t", {1}, 99, Bytes(4));
  EXPECT_TRUE(testing::fails([&] { parse(tensor.build()); }, "tensor 't' has type number 99"));
}

TEST(Gguf, RefusesShapesThatLie) {
  const auto with_shape = [](std::vector<int64_t> shape, uint32_t type) {
    GgufBuilder builder;
    builder.tensor("t", std::move(shape), type, Bytes(64));
    return builder.build();
  };
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({}, 0)); }, "has 0 dimensions"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({1, 1, 1, 1, 1}, 0)); }, "has 5 dimensions"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({0}, 0)); }, "dimension 0 of tensor 't' is 0"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({int64_t{1} << 62, 16}, 0)); }, "overflows"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({int64_t{1} << 62}, 0)); }, "overflows"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({2, 33}, 8)); }, "rows of tensor 't' have 33 values"));
  EXPECT_TRUE(testing::fails([&] { parse(with_shape({17}, 0)); }, "reaches beyond the 64 bytes"));
  EXPECT_EQ(error_of([&] { parse(with_shape({16}, 0)); }), "");
}

TEST(Gguf, TensorOffsetsMustBeAlignedAndInside) {
  GgufBuilder builder;
  builder.tensor("first", {1}, 0, Bytes(4));
  const Bytes good = builder.build();
  // Header, name with its length, number of dimensions, one dimension, type: then the offset.
  constexpr size_t offset_at = 24 + (8 + 5) + 4 + 8 + 4;
  Bytes odd = good;
  odd[offset_at] = std::byte{4};
  EXPECT_TRUE(testing::fails([&] { parse(odd); }, "not a multiple of the alignment 32"));
  Bytes far = good;
  far[offset_at + 7] = std::byte{0x80};
  EXPECT_TRUE(testing::fails([&] { parse(far); }, "reaches beyond"));
}

TEST(Gguf, SurvivesEveryTruncationAndEveryDamagedByte) {
  testing::expect_hardy(sample().build(), [](std::span<const std::byte> bytes) {
    const auto file = GgufFile::parse(bytes, "damaged");
    // Touch all that a reader would.
    for (const auto& entry : file->values()) {
      const std::string& key = entry.first;
      error_of([&] { file->integer(key); });
      error_of([&] { file->strings(key); });
      error_of([&] { file->integers(key); });
      error_of([&] { file->floats(key); });
    }
    unsigned sum = 0;
    for (const auto& tensor : file->tensors()) {
      for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    }
    (void)sum;
  });
}

TEST(Gguf, OpensFilesAndKeepsThemMapped) {
  const testing::TempDir directory;
  const auto path = directory.write("a.gguf", sample().build());
  const auto file = GgufFile::open(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file->strings("a.strings")->at(2), "three");
  EXPECT_EQ(file->origin(), path.string());
  EXPECT_TRUE(testing::fails([&] { GgufFile::open(path); }, path.string()));
}

TEST(GgmlTypes, SizesAgreeWithTheFormats) {
  int readable = 0;
  for (uint32_t number = 0; number < 64; ++number) {
    const GgmlType* type = find_ggml_type(number);
    if (type == nullptr || !type->format) continue;
    ++readable;
    const BlockShape block = block_shape(*type->format);
    EXPECT_EQ(block.cols, type->block) << type->name;
    EXPECT_EQ(block.bytes, type->bytes) << type->name;
  }
  EXPECT_EQ(readable, 16);
}

}  // namespace
}  // namespace carat

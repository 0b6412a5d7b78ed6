#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/files.h"

namespace carat {
namespace {

using testing::Bytes;
using testing::SafetensorsBuilder;

std::shared_ptr<const SafetensorsFile> parse(const Bytes& bytes) {
  return SafetensorsFile::parse(bytes, "test.safetensors");
}

SafetensorsBuilder sample() {
  SafetensorsBuilder file;
  file.tensor("norm.weight", "F32", {3}, testing::to_bytes(std::vector<float>{1, 2, 3}));
  file.tensor("w", "BF16", {2, 4}, Bytes(16, std::byte{5}));
  file.tensor("scalar", "I64", {}, Bytes(8));
  file.tensor("empty", "F16", {0, 4}, {});
  return file;
}

TEST(Safetensors, ReadsTensorsAsViews) {
  const Bytes bytes = sample().build();
  const auto file = parse(bytes);
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors()[0].name, "norm.weight");
  EXPECT_EQ(file->tensors()[0].dtype, Dtype::kF32);
  EXPECT_EQ(file->tensors()[1].shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(file->tensors()[1].bytes.size(), 16u);
  EXPECT_EQ(file->tensors()[1].bytes[15], std::byte{5});
  EXPECT_EQ(file->tensors()[2].dtype, Dtype::kOther);
  EXPECT_TRUE(file->tensors()[2].shape.empty());
  EXPECT_GE(file->tensors()[0].bytes.data(), bytes.data());
  EXPECT_EQ(file->size(), bytes.size());
}

TEST(Safetensors, IgnoresMetadata) {
  const auto file = parse(SafetensorsBuilder::with_header(R"({"__metadata__":{"format":"pt"}})", {}));
  EXPECT_TRUE(file->tensors().empty());
}

TEST(Safetensors, RefusesWhatIsNoSafetensors) {
  EXPECT_TRUE(testing::fails([&] { parse({}); }, "too few"));
  EXPECT_TRUE(testing::fails([&] { parse(Bytes(8, std::byte{0xff})); }, "not a safetensors file"));
  EXPECT_TRUE(testing::fails([&] { parse(SafetensorsBuilder::with_header("", {})); }, "not valid JSON"));
  EXPECT_TRUE(testing::fails([&] { parse(SafetensorsBuilder::with_header("[]", {})); }, "expected a JSON object"));
  EXPECT_TRUE(testing::fails([&] { parse(SafetensorsBuilder::with_header("{\"a\":1}", {})); },
                             "field 'a' is 1, expected an object"));
  Bytes longer = SafetensorsBuilder::with_header("{}", {});
  longer[0] = std::byte{200};
  EXPECT_TRUE(testing::fails([&] { parse(longer); }, "truncated or damaged"));
}

TEST(Safetensors, RefusesEntriesThatLie) {
  const auto with = [](std::string_view dtype, const std::vector<int64_t>& shape, uint64_t begin, uint64_t end) {
    SafetensorsBuilder file;
    file.tensor("data", "U8", {16}, Bytes(16));
    file.entry("t", dtype, shape, begin, end);
    return file.build();
  };
  EXPECT_EQ(testing::error_of([&] { parse(with("F32", {4}, 0, 16)); }), "");
  EXPECT_TRUE(testing::fails([&] { parse(with("F32", {4}, 4, 20)); },
                             "tensor 't' ends at byte 20 of the data, but the file holds only 16"));
  EXPECT_TRUE(
      testing::fails([&] { parse(with("F32", {5}, 0, 16)); }, "has 16 bytes, but its dtype F32 and shape ask for 20"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F32", {4}, 16, 0)); }, "not a rising pair"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F33", {4}, 0, 16)); }, "unknown dtype 'F33'"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F32", {-4}, 0, 16)); }, "the shape of tensor 't' holds -4"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F32", {int64_t{1} << 62, int64_t{1} << 62}, 0, 16)); }, "overflows"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F4", {3}, 0, 1)); }, "does not fill whole bytes"));
  EXPECT_TRUE(testing::fails([&] { parse(with("F32", std::vector<int64_t>(40, 1), 0, 4)); }, "40 dimensions"));
  const std::string_view entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_TRUE(testing::fails(
      [&] { parse(SafetensorsBuilder::with_header(fmt::format("{{{},{}}}", entry, entry), {})); }, "'a' occurs twice"));
  EXPECT_TRUE(testing::fails([&] { parse(SafetensorsBuilder::with_header(R"({"a":{"dtype":"U8","shape":[0]}})", {})); },
                             "field 'a.data_offsets'"));
  EXPECT_TRUE(testing::fails(
      [&] { parse(SafetensorsBuilder::with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[-1,0]}})", {})); },
      "not a rising pair"));
}

TEST(Safetensors, SurvivesEveryTruncationAndEveryDamagedByte) {
  testing::expect_hardy(sample().build(), [](std::span<const std::byte> bytes) {
    const auto file = SafetensorsFile::parse(bytes, "damaged");
    unsigned sum = 0;
    for (const auto& tensor : file->tensors()) {
      for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    }
    (void)sum;
  });
}

}  // namespace
}  // namespace carat

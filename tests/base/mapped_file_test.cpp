#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "carat-mapped-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name, std::ios::binary) << content;
    return directory_ / name;
  }

  static std::string sentence_of(const fs::path& path) {
    try {
      MappedFile::open(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path directory_;
};

TEST_F(MappedFileTest, ShowsTheBytesOfFilesOfAnySize) {
  for (const size_t size : {1, 4095, 4096, 4097, 100'000}) {
    std::string content(size, '\0');
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 31 + i / 256);
    const auto file = MappedFile::open(write("f", content));
    ASSERT_EQ(file->bytes().size(), size);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), reinterpret_cast<const char*>(file->bytes().data())));
    EXPECT_EQ(file->path(), directory_ / "f");
  }
}

TEST_F(MappedFileTest, EmptyFileIsAnEmptySpan) {
  EXPECT_TRUE(MappedFile::open(write("empty", ""))->bytes().empty());
}

TEST_F(MappedFileTest, OutlivesTheNameOfTheFile) {
  const fs::path path = write("gone", "still here");
  const auto file = MappedFile::open(path);
  fs::remove(path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "still here");
}

TEST_F(MappedFileTest, ErrorsNameTheFile) {
  EXPECT_NE(sentence_of(directory_ / "absent").find((directory_ / "absent").string()), std::string::npos);
  EXPECT_NE(sentence_of(directory_).find("not a regular file"), std::string::npos);
}

TEST_F(MappedFileTest, ManyOpensLeakNoDescriptors) {
  const fs::path path = write("f", "x");
  for (int i = 0; i < 5000; ++i) MappedFile::open(path);
  const auto held = MappedFile::open(path);
  const std::ptrdiff_t open_files = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  EXPECT_LT(open_files, 100);
}

}  // namespace
}  // namespace carat

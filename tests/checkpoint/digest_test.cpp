#include "checkpoint/digest.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/partial_file.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string sha256(const std::string& text) {
  Digest digest = Digest::sha256();
  digest.update(bytes_of(text));
  return digest.finish();
}

std::string git_blob(const std::string& text) {
  Digest digest = Digest::git_blob(text.size());
  digest.update(bytes_of(text));
  return digest.finish();
}

class DigestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "carat-digest-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path write(const std::string& content) const {
    std::ofstream(directory_ / "f", std::ios::binary) << content;
    return directory_ / "f";
  }
  static std::string read(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path directory_;
};

TEST_F(DigestTest, KnownAnswers) {
  // FIPS 180-2 appendix B, and what `git hash-object` prints.
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(git_blob(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST_F(DigestTest, PiecesMakeTheWhole) {
  const std::string text = std::string(1000, 'x') + "y" + std::string(777, 'z');
  for (size_t cut = 0; cut <= text.size(); cut += 89) {
    Digest digest = Digest::sha256();
    digest.update(bytes_of(text.substr(0, cut)));
    digest.update(bytes_of(text.substr(cut)));
    EXPECT_EQ(digest.finish(), sha256(text));
  }
}

TEST_F(DigestTest, FilesAndRangesOfThem) {
  std::string text(3'000'000, '\0');  // several reads
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i / 7);
  const fs::path file = write(text);
  uint64_t read_bytes = 0;
  EXPECT_EQ(sha256_file(file, [&](uint64_t n) { read_bytes += n; }), sha256(text));
  EXPECT_EQ(read_bytes, text.size());
  Digest digest = Digest::sha256();
  digest_range(digest, file, 1'234'567, 1'500'000);
  EXPECT_EQ(digest.finish(), sha256(text.substr(1'234'567, 1'500'000)));
  Digest beyond = Digest::sha256();
  EXPECT_THROW(digest_range(beyond, file, 2'999'999, 2), Error);
  EXPECT_THROW(sha256_file(directory_ / "absent"), Error);
  EXPECT_THROW(sha256_file(directory_), Error);
}

TEST_F(DigestTest, PartialFileGrowsContinuesAndTakesItsPlace) {
  const std::string text = "the quick brown fox";
  const std::string expected = sha256(text);
  const fs::path path = directory_ / "f.incomplete";
  {
    PartialFile file(path, text.size(), expected);
    file.append(bytes_of(text.substr(0, 5)));
  }
  PartialFile file(path, text.size(), expected);
  EXPECT_EQ(file.size(), 5u);
  EXPECT_NE(file.digest(64), expected);
  file.append(bytes_of(text.substr(5)));
  EXPECT_EQ(file.digest(64), expected);
  EXPECT_EQ(file.digest(64), expected);  // may be asked twice
  EXPECT_EQ(file.digest(40), git_blob(text));
  EXPECT_EQ(file.range_sha256(4, 5), sha256(text.substr(4, 5)));
  file.finish(directory_ / "f");
  EXPECT_EQ(read(directory_ / "f"), text);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(DigestTest, PartialFileRefusesMoreThanItsSize) {
  PartialFile file(directory_ / "f.incomplete", 4, {});
  file.append(bytes_of("123"));
  EXPECT_THROW(file.append(bytes_of("45")), Error);
  EXPECT_EQ(file.size(), 3u);
  file.append(bytes_of("4"));
  EXPECT_EQ(file.digest(64), sha256("1234"));
}

TEST_F(DigestTest, PartialFileStartsOver) {
  const std::string expected = sha256("good");
  std::ofstream(directory_ / "f.incomplete") << "much too long";
  PartialFile file(directory_ / "f.incomplete", 4, expected);
  EXPECT_EQ(file.size(), 0u);  // longer than it may be: not ours
  file.append(bytes_of("bad"));
  file.restart();
  file.append(bytes_of("goo?"));
  file.truncate(3);
  file.append(bytes_of("d"));
  EXPECT_EQ(file.digest(64), expected);
  file.remove();
  EXPECT_EQ(file.size(), 0u);
  file.append(bytes_of("good"));
  EXPECT_EQ(file.digest(64), expected);
  file.finish(directory_ / "f");
  EXPECT_EQ(read(directory_ / "f"), "good");
}

TEST_F(DigestTest, PartialFileKeepsWhatFittedOnAFullDisk) {
  // A limit on file sizes stands in for a small disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  std::string said;
  {
    PartialFile file(directory_ / "f.incomplete", 5000, std::string(64, '0'));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    try {
      file.append(bytes_of(std::string(5000, 'x')));
    } catch (const Error& error) {
      said = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(file.size(), 1000u);  // what did fit counts
    file.append(bytes_of(std::string(4000, 'x')));
    EXPECT_EQ(file.digest(64), sha256(std::string(5000, 'x')));
  }
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(said.find("f.incomplete"), std::string::npos) << said;
}

TEST_F(DigestTest, PartialFileRefusesWhatIsNoFile) {
  EXPECT_THROW(PartialFile("/dev/null", 10, {}), Error);
  EXPECT_THROW(PartialFile(directory_ / "no" / "such" / "directory", 10, {}), Error);
}

}  // namespace
}  // namespace carat

// Cache files: what is written comes back, what is damaged is refused, and a writer that dies leaves the old file.
#include "cache/cache_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"
#include "compute/cpu/cpu_device.h"

namespace carat {
namespace {

constexpr const char* kModel = "a model";

class CacheFileTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) / ("carat-cache-file-" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
    file_ = directory_ / "a.cache";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  /// A sequence whose blocks hold random bytes.
  CacheContents contents(KvCache& cache, int64_t length, unsigned seed) {
    std::mt19937 random(seed);
    const int id = cache.add_sequence();
    for (int64_t done = 0; done < length; done += 50) cache.extend(id, std::min<int64_t>(50, length - done));
    CacheContents contents{.tokens = {}, .blocks = {}, .checkpoints = {}};
    for (const KvPlacedBlock& placed : blocks_of(cache, id)) {
      std::vector<std::byte> bytes(cache.block_bytes(placed.block.layer()));
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      contents.blocks.push_back({placed.number, cache.new_block(placed.block.layer(), bytes)});
    }
    while (static_cast<int64_t>(contents.tokens.size()) < length) {
      contents.tokens.push_back(static_cast<int>(random() % 262144));
    }
    if (length > 64) contents.checkpoints = {64, length};
    return contents;
  }

  static std::vector<std::byte> bytes_of(KvCache& cache, const CacheContents& contents) {
    std::vector<std::byte> all;
    std::map<std::pair<int, int64_t>, const KvBlockRef*> sorted;
    for (const KvPlacedBlock& placed : contents.blocks) sorted[{placed.block.layer(), placed.number}] = &placed.block;
    for (const auto& [where, block] : sorted) {
      all.resize(all.size() + cache.block_bytes(where.first));
      cache.download(*block, all.data() + all.size() - cache.block_bytes(where.first));
    }
    return all;
  }

  std::string read() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes; }

  std::string refusal(const std::string& model = kModel) {
    try {
      load_cache_file(file_, cache_, model);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(file_.string()), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  KvCache cache_{*device_, {.layers = {{1, 16, 0}, {2, 32, 100}}, .max_rows = 50}};
  std::filesystem::path directory_, file_;
};

TEST_F(CacheFileTest, WhatIsWrittenComesBack) {
  for (const int64_t length : {1, 63, 64, 65, 400}) {
    const CacheContents before = contents(cache_, length, static_cast<unsigned>(length));
    save_cache_file(file_, cache_, before, kModel);
    const CacheContents after = load_cache_file(file_, cache_, kModel);
    EXPECT_EQ(after.tokens, before.tokens);
    EXPECT_EQ(after.checkpoints, before.checkpoints);
    EXPECT_EQ(bytes_of(cache_, after), bytes_of(cache_, before));
    const int id = cache_.add_sequence(length, after.blocks);
    EXPECT_EQ(cache_.length(id), length);
    cache_.remove_sequence(id);
  }
  struct stat info {};
  ASSERT_EQ(stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);  // what was said is nobody else's business
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(CacheFileTest, EveryDamageIsSeen) {
  save_cache_file(file_, cache_, contents(cache_, 70, 1), kModel);
  const std::string whole = read();
  std::mt19937 random(2);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (int i = 0; i < 400; ++i) {  // half of them in the header
    std::string damaged = whole;
    const size_t at = i % 2 == 0 ? random() % (8 + header) : random() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    write(damaged);
    // Blanks after the header's JSON mean nothing; other blanks for them, either.
    if (whole[at] == ' ' && std::strchr("\t\n\r", damaged[at]) != nullptr) continue;
    EXPECT_NE(refusal(), "") << "byte " << at;
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    write(whole.substr(0, size));
    EXPECT_NE(refusal(), "") << size << " bytes";
  }
  write(whole + "x");
  EXPECT_NE(refusal(), "");
  write(whole);
  EXPECT_EQ(refusal(), "");
}

TEST_F(CacheFileTest, RefusesWhatIsNotItsOwn) {
  EXPECT_NE(refusal().find("cannot open"), std::string::npos);
  save_cache_file(file_, cache_, contents(cache_, 70, 1), "another model");
  EXPECT_NE(refusal().find("another model"), std::string::npos);
  KvCache other(*device_, {.layers = {{1, 16, 0}, {2, 32, 200}}, .max_rows = 50});
  save_cache_file(file_, other, contents(other, 70, 1), kModel);
  EXPECT_NE(refusal(), "");
  KvCache coded(*device_, {.layers = {{1, 16, 0, KvFormat::kF32, KvFormat::kF32}, {2, 32, 100}}, .max_rows = 50});
  save_cache_file(file_, coded, contents(coded, 70, 1), kModel);
  EXPECT_NE(refusal(), "");
  std::filesystem::copy_file(
      std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "models" / "e2b" / "q4g64" / "model.safetensors", file_,
      std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(refusal().find("not a prompt cache"), std::string::npos);
  write("Once upon a time there was a text that was no cache.");
  EXPECT_NE(refusal(), "");
}

TEST_F(CacheFileTest, ATargetThatCannotBeWrittenIsAnError) {
  const CacheContents some = contents(cache_, 70, 1);
  EXPECT_THROW(save_cache_file(directory_ / "missing" / "a.cache", cache_, some, kModel), Error);
  std::filesystem::create_directories(file_ / "x");
  EXPECT_THROW(save_cache_file(file_, cache_, some, kModel), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);  // no partial file stays
}

// Killed at any moment the writer leaves a whole file: the old one or the new one.
TEST_F(CacheFileTest, AKilledWriterLeavesAWholeFile) {
  KvCache cache(*device_, {.layers = {{8, 128, 0}, {8, 128, 0}}, .max_rows = 50});
  const CacheContents old_contents = contents(cache, 100, 1);
  const CacheContents new_contents = contents(cache, 400, 2);
  save_cache_file(file_, cache, old_contents, kModel);
  std::mt19937 random(3);
  int killed = 0;
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) save_cache_file(file_, cache, i % 2 == 0 ? new_contents : old_contents, kModel);
    }
    usleep(static_cast<useconds_t>(random() % 15000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) ++killed;
    const CacheContents found = load_cache_file(file_, cache, kModel);
    EXPECT_TRUE(found.tokens == old_contents.tokens || found.tokens == new_contents.tokens);
  }
  EXPECT_EQ(killed, 40);
}

}  // namespace
}  // namespace carat

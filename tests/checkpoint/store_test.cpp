#include "checkpoint/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

/// A world of its own: home, store and hub cache below a scratch directory, the variables pointing there.
class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "carat-store-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    for (const char* variable : kVariables) {
      const char* value = std::getenv(variable);
      saved_.emplace_back(variable, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(variable);
    }
    ::setenv("HOME", (root_ / "home").c_str(), 1);
    ::setenv("CARAT_HOME", (root_ / "carat").c_str(), 1);
    store_ = root_ / "carat" / "models";
    cache_ = root_ / "home" / ".cache" / "huggingface" / "hub";
  }
  void TearDown() override {
    for (const auto& [variable, value] : saved_) {
      if (value) {
        ::setenv(variable, value->c_str(), 1);
      } else {
        ::unsetenv(variable);
      }
    }
    fs::remove_all(root_);
  }

  static void write(const fs::path& file, const std::string& content = "12345") {
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
  }

  static void write_model(const fs::path& directory) {
    write(directory / "config.json", "{}");
    write(directory / "model.safetensors", "0123456789");
  }

  template <typename Call>
  static std::string sentence_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  static std::string refusal(const std::string& name) {
    return sentence_of([&] { resolve_model(name); });
  }

  static constexpr const char* kVariables[] = {"CARAT_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
                                               "HOME",       "HF_HUB_CACHE",  "HF_HOME"};
  fs::path root_, store_, cache_;
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

bool contains(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

TEST_F(StoreTest, PlaceFollowsTheVariables) {
  EXPECT_EQ(store_directory(), root_ / "carat" / "models");
  ::unsetenv("CARAT_HOME");
  EXPECT_EQ(store_directory(), root_ / "home" / ".local" / "share" / "carat" / "models");
  ::setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(store_directory(), "/data/carat/models");
  ::setenv("CARAT_HOME", "", 1);  // empty counts as unset
  EXPECT_EQ(store_directory(), "/data/carat/models");

  EXPECT_EQ(hub_cache_directory(), cache_);
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(hub_cache_directory(), "/cache/huggingface/hub");
  ::setenv("HF_HOME", "/hf", 1);
  EXPECT_EQ(hub_cache_directory(), "/hf/hub");
  ::setenv("HF_HUB_CACHE", "/hub", 1);
  EXPECT_EQ(hub_cache_directory(), "/hub");
}

TEST_F(StoreTest, PathsComeFirst) {
  write_model(root_ / "dir");
  EXPECT_EQ(resolve_model((root_ / "dir").string()), root_ / "dir");
  write(root_ / "bare" / "config.json");  // the checkpoint will say that the weights are missing
  EXPECT_EQ(resolve_model((root_ / "bare").string()), root_ / "bare");
  write(root_ / "one" / "m.gguf");
  EXPECT_EQ(resolve_model((root_ / "one").string()), root_ / "one" / "m.gguf");
  EXPECT_EQ(resolve_model((root_ / "one" / "m.gguf").string()), root_ / "one" / "m.gguf");
  write(root_ / "blob", "GGUF....");
  EXPECT_EQ(resolve_model((root_ / "blob").string()), root_ / "blob");
  write(root_ / "text", "words");
  EXPECT_TRUE(contains(refusal((root_ / "text").string()), "not a GGUF file"));
  fs::create_directories(root_ / "empty");
  EXPECT_TRUE(contains(refusal((root_ / "empty").string()), "neither config.json nor .gguf"));
}

TEST_F(StoreTest, AnyPartOfASplitSetGivesTheFirst) {
  for (int part = 1; part <= 3; ++part) write(root_ / fmt::format("m-{:05}-of-00003.gguf", part));
  for (int part = 1; part <= 3; ++part) {
    EXPECT_EQ(resolve_model((root_ / fmt::format("m-{:05}-of-00003.gguf", part)).string()),
              root_ / "m-00001-of-00003.gguf");
  }
  EXPECT_EQ(resolve_model(root_.string()), root_ / "m-00001-of-00003.gguf");
  EXPECT_EQ(model_size(root_ / "m-00001-of-00003.gguf"), 15u);
  fs::remove(root_ / "m-00001-of-00003.gguf");
  EXPECT_TRUE(contains(refusal((root_ / "m-00002-of-00003.gguf").string()), "the first part"));
}

TEST_F(StoreTest, NamesInTheStore) {
  write(store_ / "gemma3-270m" / "gemma-3-270m-q4_k_m.gguf");
  write_model(store_ / "google" / "gemma-4-E2B-it");
  write(store_ / "maker" / "many" / "a-Q4.gguf");
  write(store_ / "maker" / "many" / "a-Q8.gguf");
  write(store_ / "maker" / "many" / "mmproj-a.gguf");
  write_model(store_ / "maker" / "tiny@refs--pr--7");
  write(store_ / "loose.gguf");
  EXPECT_EQ(resolve_model("gemma3-270m"), store_ / "gemma3-270m" / "gemma-3-270m-q4_k_m.gguf");
  EXPECT_EQ(resolve_model("gemma3-270m/gemma-3-270m-q4_k_m.gguf"), store_ / "gemma3-270m" / "gemma-3-270m-q4_k_m.gguf");
  EXPECT_EQ(resolve_model("google/gemma-4-E2B-it"), store_ / "google" / "gemma-4-E2B-it");
  EXPECT_EQ(resolve_model("maker/many/a-Q8.gguf"), store_ / "maker" / "many" / "a-Q8.gguf");
  EXPECT_EQ(resolve_model("maker/tiny@refs/pr/7"), store_ / "maker" / "tiny@refs--pr--7");
  EXPECT_EQ(resolve_model("loose"), store_ / "loose.gguf");
  EXPECT_EQ(resolve_model("loose.gguf"), store_ / "loose.gguf");
  const std::string several = refusal("maker/many");
  EXPECT_TRUE(contains(several, "maker/many/a-Q4.gguf") && contains(several, "maker/many/a-Q8.gguf")) << several;
  EXPECT_FALSE(contains(several, "mmproj")) << several;
  EXPECT_TRUE(contains(refusal("google"), "no model 'google'"));  // an owner is not a model
}

TEST_F(StoreTest, HubCacheFollowsRefsThenTheNewestSnapshot) {
  const fs::path repository = cache_ / "models--google--gemma-4-E2B-it";
  write_model(repository / "snapshots" / "aaa");
  write_model(repository / "snapshots" / "bbb");
  write(repository / "refs" / "main", "aaa\n");
  write(repository / "refs" / "next", "bbb");
  EXPECT_EQ(resolve_model("google/gemma-4-E2B-it"), repository / "snapshots" / "aaa");
  EXPECT_EQ(resolve_model("google/gemma-4-E2B-it@next"), repository / "snapshots" / "bbb");
  EXPECT_EQ(resolve_model("google/gemma-4-E2B-it@bbb"), repository / "snapshots" / "bbb");
  EXPECT_TRUE(contains(refusal("google/gemma-4-E2B-it@ccc"), "carat get google/gemma-4-E2B-it@ccc"));
  fs::remove(repository / "refs" / "main");
  fs::last_write_time(repository / "snapshots" / "aaa", fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(resolve_model("google/gemma-4-E2B-it"), repository / "snapshots" / "bbb");
}

TEST_F(StoreTest, HubCacheKeepsTheLinkedNames) {
  const fs::path repository = cache_ / "models--maker--quants";
  write(repository / "blobs" / "f00", "GGUF");
  fs::create_directories(repository / "snapshots" / "aaa");
  for (const char* name : {"q-00001-of-00002.gguf", "q-00002-of-00002.gguf"}) {
    fs::create_symlink("../../blobs/f00", repository / "snapshots" / "aaa" / name);
  }
  EXPECT_EQ(resolve_model("maker/quants"), repository / "snapshots" / "aaa" / "q-00001-of-00002.gguf");
  EXPECT_EQ(resolve_model("maker/quants/q-00002-of-00002.gguf"),
            repository / "snapshots" / "aaa" / "q-00001-of-00002.gguf");
}

TEST_F(StoreTest, ACacheThatPointsOutsideIsNotFollowed) {
  write_model(cache_ / "elsewhere");
  write(cache_ / "models--a--b" / "refs" / "main", "../../elsewhere");
  EXPECT_TRUE(contains(refusal("a/b"), "no model 'a/b'"));
}

TEST_F(StoreTest, TheStoreComesBeforeTheCache) {
  write_model(store_ / "a" / "b");
  write_model(cache_ / "models--a--b" / "snapshots" / "x");
  EXPECT_EQ(resolve_model("a/b"), store_ / "a" / "b");
}

TEST_F(StoreTest, RefusalSaysWhatWasTriedAndHowToGetIt) {
  for (const std::string name : {"gemma3-270m", "google/gemma-3-1b-it"}) {
    const std::string said = refusal(name);
    EXPECT_TRUE(contains(said, store_.string()) && contains(said, cache_.string())) << said;
    EXPECT_TRUE(contains(said, "'carat get " + name + "'")) << said;
  }
  EXPECT_TRUE(contains(refusal("nothing"), "carat ls"));
  EXPECT_TRUE(contains(refusal(""), "no model was named"));
}

TEST_F(StoreTest, HostileNamesFindNothing) {
  write_model(root_ / "carat" / "outside");
  write(root_ / "carat" / "outside.gguf");
  for (const std::string name : {"../outside", "../outside.gguf", "a/../../outside", ".partial", "a//b", "/", "a/",
                                 "a/b@../../x", "a/b@x/", "b", "\xff\xfe", "~", "a/b/c/d/e"}) {
    EXPECT_TRUE(contains(refusal(name), "no model")) << name;
    EXPECT_TRUE(contains(sentence_of([&] { remove_model(name); }), "has no model")) << name;
  }
  EXPECT_TRUE(contains(refusal(std::string("a\0b", 3)), "NUL"));
  EXPECT_TRUE(fs::exists(root_ / "carat" / "outside" / "config.json"));
}

TEST_F(StoreTest, ListsStoreAndCacheWithSizes) {
  EXPECT_TRUE(list_models().empty());
  write(store_ / "gemma3-270m" / "g.gguf", std::string(7, 'x'));
  write_model(store_ / "google" / "gemma");
  write(store_ / "maker" / "many" / "a.gguf");
  write(store_ / "maker" / "many" / "sub" / "b-00001-of-00002.gguf");
  write(store_ / "maker" / "many" / "sub" / "b-00002-of-00002.gguf");
  write(store_ / "loose.gguf");
  write(store_ / ".partial" / "x" / "y.gguf");
  write(store_ / "stray.txt");
  write_model(cache_ / "models--google--gemma" / "snapshots" / "x");
  write(cache_ / "models--only--tokenizer" / "snapshots" / "x" / "tokenizer.json");
  std::string seen;
  for (const StoredModel& model : list_models()) {
    seen += fmt::format("{} {} {} {}\n", model.name, model.bytes,
                        model.kind == StoredModel::Kind::kGguf ? "gguf" : "safetensors",
                        model.in_store ? "store" : "cache");
    EXPECT_EQ(model.path,
              model.in_store ? resolve_model(model.name) : cache_ / "models--google--gemma" / "snapshots" / "x");
  }
  EXPECT_EQ(seen,
            "gemma3-270m 7 gguf store\n"
            "google/gemma 12 safetensors store\n"
            "google/gemma 12 safetensors cache\n"
            "loose 5 gguf store\n"
            "maker/many/a.gguf 5 gguf store\n"
            "maker/many/sub/b-00001-of-00002.gguf 10 gguf store\n");
}

TEST_F(StoreTest, RemovesEntriesFilesAndRemains) {
  write_model(store_ / "google" / "a");
  write_model(store_ / "google" / "b");
  write(store_ / "maker" / "many" / "x.gguf");
  write(store_ / "maker" / "many" / "y-00001-of-00002.gguf");
  write(store_ / "maker" / "many" / "y-00002-of-00002.gguf");
  write(store_ / "loose.gguf");
  write(store_ / ".partial" / "half+done" / "z.incomplete", "123");

  EXPECT_EQ(remove_model("google/a"), 12u);
  EXPECT_TRUE(fs::exists(store_ / "google" / "b"));
  EXPECT_TRUE(contains(sentence_of([] { remove_model("google"); }), "has no model"));
  EXPECT_EQ(remove_model("google/b"), 12u);
  EXPECT_FALSE(fs::exists(store_ / "google"));

  EXPECT_EQ(remove_model("maker/many/y-00002-of-00002.gguf"), 10u);
  EXPECT_TRUE(fs::exists(store_ / "maker" / "many" / "x.gguf"));
  EXPECT_EQ(remove_model("maker/many"), 5u);
  EXPECT_EQ(remove_model("loose"), 5u);
  EXPECT_EQ(remove_model("half/done"), 3u);
  EXPECT_TRUE(contains(sentence_of([] { remove_model("half/done"); }), "has no model"));
  EXPECT_TRUE(list_models().empty());
  EXPECT_TRUE(fs::exists(store_));
}

TEST_F(StoreTest, RemovingALinkedEntryLeavesItsTarget) {
  write_model(root_ / "mine");
  fs::create_directories(store_);
  fs::create_directory_symlink(root_ / "mine", store_ / "linked");
  EXPECT_EQ(resolve_model("linked"), store_ / "linked");
  remove_model("linked");
  EXPECT_FALSE(fs::exists(store_ / "linked"));
  EXPECT_TRUE(fs::exists(root_ / "mine" / "model.safetensors"));
}

TEST_F(StoreTest, RemovingNeverTouchesTheHubCache) {
  write_model(cache_ / "models--a--b" / "snapshots" / "x");
  EXPECT_TRUE(contains(sentence_of([] { remove_model("a/b"); }), "has no model"));
  EXPECT_EQ(list_models().size(), 1u);
}

TEST(HubIdTest, ParsesAndRefuses) {
  const auto id = HubId::parse("google/gemma-3.1_b@refs/pr/1");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->repository(), "google/gemma-3.1_b");
  EXPECT_EQ(id->revision, "refs/pr/1");
  EXPECT_EQ(id->entry(), "google/gemma-3.1_b@refs--pr--1");
  EXPECT_EQ(HubId::parse("a/b")->entry(), "a/b");
  for (const char* bad : {"", "a", "a/", "/b", "a/b/c", "a/b@", "a/..", "../b", "a/.b", "a/b@/x", "a/b@x/", "a/b@x//y",
                          "a/b@x/../y", "a b/c", "a/b?c", "https://x/y", "a/b@x@y", "a/b@x\ny"}) {
    EXPECT_FALSE(HubId::parse(bad)) << bad;
  }
}

TEST(SplitNameTest, ParsesAndRefuses) {
  const auto split = SplitName::parse("m-Q4-00002-of-00011.gguf");
  ASSERT_TRUE(split);
  EXPECT_EQ(split->stem, "m-Q4");
  EXPECT_EQ(split->part, 2);
  EXPECT_EQ(split->parts, 11);
  EXPECT_EQ(split->filename(1), "m-Q4-00001-of-00011.gguf");
  for (const char* bad :
       {"", "m.gguf", "-00001-of-00002.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-0000x-of-00002.gguf",
        "m-00001-of-00002.bin", "m-00001_of-00002.gguf", "m00001-of-00002.gguf"}) {
    EXPECT_FALSE(SplitName::parse(bad)) << bad;
  }
}

}  // namespace
}  // namespace carat

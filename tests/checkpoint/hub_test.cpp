#include "checkpoint/hub.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "checkpoint/http.h"

namespace carat {
namespace {

const std::string kCommit(40, 'a');
const std::string kSha256(64, 'b');

template <typename Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

HubListing listing_of(std::initializer_list<const char*> paths) {
  HubListing listing{kCommit, {}};
  for (const char* path : paths) listing.files.push_back({path, 1000, kSha256});
  return listing;
}

std::string chosen(const HubListing& listing, std::string_view wanted = {}) {
  std::vector<std::string> paths;
  for (const HubFile& file : choose_hub_files(listing, {"o", "n", ""}, wanted)) paths.push_back(file.path);
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const std::string& path : paths) text += path + " ";
  return text;
}

TEST(HubListingTest, ReadsSizesAndDigests) {
  const HubListing listing = parse_hub_listing(R"({"sha": ")" + kCommit + R"(", "other": [1], "siblings": [
        {"rfilename": "config.json", "size": 12, "blobId": ")" +
                                                   std::string(40, 'c') + R"("},
        {"rfilename": "a/b.safetensors", "size": 99, "blobId": "x", "lfs": {"sha256": ")" +
                                                   kSha256 + R"(", "size": 99}},
        {"rfilename": "plain.txt", "size": 0}]})",
                                               "origin");
  EXPECT_EQ(listing.commit, kCommit);
  ASSERT_EQ(listing.files.size(), 3u);
  EXPECT_EQ(listing.files[0].size, 12u);
  EXPECT_EQ(listing.files[0].digest, std::string(40, 'c'));
  EXPECT_EQ(listing.files[1].path, "a/b.safetensors");
  EXPECT_EQ(listing.files[1].digest, kSha256);
  EXPECT_EQ(listing.files[2].digest, "");
}

TEST(HubListingTest, RefusesWhatIsNoListing) {
  const auto refusal = [](const std::string& siblings, const std::string& commit = kCommit) {
    return sentence_of(
        [&] { parse_hub_listing(R"({"sha": ")" + commit + R"(", "siblings": )" + siblings + "}", "ORIGIN"); });
  };
  EXPECT_EQ(refusal("[]"), "no error");
  for (const char* path :
       {"../x", "/etc/passwd", "a/../b", "a//b", "", ".", "a/./b", "a\\\\b", "a\\u0000b", "a\\nb", "a/"}) {
    const std::string said = refusal(std::string(R"([{"rfilename": ")") + path + R"(", "size": 1}])");
    EXPECT_TRUE(contains(said, "unsafe path") && contains(said, "ORIGIN")) << path << ": " << said;
  }
  for (const char* size : {"-1", "1.5", "\"1\"", "null", "99999999999999999999", "18446744073709551615"}) {
    EXPECT_TRUE(contains(refusal(std::string(R"([{"rfilename": "a", "size": )") + size + "}]"), "impossible size"))
        << size;
  }
  EXPECT_TRUE(contains(refusal(R"([{"rfilename": "a"}])"), "not a listing"));
  EXPECT_TRUE(contains(refusal("3"), "not a listing"));
  EXPECT_TRUE(contains(refusal(R"([{"rfilename": 3, "size": 1}])"), "not a listing"));
  EXPECT_TRUE(contains(refusal(R"([{"rfilename": "a", "size": 1, "blobId": "../x"}])"), "bad blob id"));
  EXPECT_TRUE(
      contains(refusal(R"([{"rfilename": "a", "size": 1, "lfs": {"sha256": "zz", "size": 1}}])"), "bad SHA-256"));
  EXPECT_TRUE(contains(refusal("[]", "main"), "40 hex digits"));
  EXPECT_TRUE(contains(sentence_of([] { parse_hub_listing("<html>", "ORIGIN"); }), "not a listing"));
  EXPECT_TRUE(contains(sentence_of([] { parse_hub_listing("", "ORIGIN"); }), "not a listing"));
}

TEST(HubChoice, SafetensorsWithTheirCompanions) {
  EXPECT_EQ(chosen(listing_of({"README.md", "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja",
                               "original/model.safetensors", "consolidated.safetensors", "x.gguf", "pytorch_model.bin",
                               "sub/config.json"})),
            "chat_template.jinja config.json model.safetensors tokenizer.json ");
}

TEST(HubChoice, TheOnlyGguf) {
  EXPECT_EQ(chosen(listing_of({"config.json", "README.md", "m.gguf", "mmproj-m.gguf", "m.imatrix.gguf"})), "m.gguf ");
}

TEST(HubChoice, AskedForGgufOfAMixedRepository) {
  const HubListing listing = listing_of({"config.json", "model.safetensors", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf"});
  EXPECT_EQ(chosen(listing, "q4_k_s"), "m-Q4_K_S.gguf ");
  EXPECT_EQ(chosen(listing, "m-Q4_K_M.gguf"), "m-Q4_K_M.gguf ");
  const std::string both = sentence_of([&] { chosen(listing, "Q4_K"); });
  EXPECT_TRUE(contains(both, "several") && contains(both, "m-Q4_K_M.gguf") && contains(both, "m-Q4_K_S.gguf")) << both;
  EXPECT_TRUE(contains(sentence_of([&] { chosen(listing, "Q8_0"); }), "no GGUF model 'Q8_0'; it has:"));
  EXPECT_TRUE(contains(sentence_of([&] { chosen(listing_of({"config.json"}), "Q8_0"); }), "no GGUF model"));
}

TEST(HubChoice, AllPartsOfASplitSet) {
  const HubListing listing =
      listing_of({"Q4/m-00001-of-00003.gguf", "Q4/m-00002-of-00003.gguf", "Q4/m-00003-of-00003.gguf"});
  const std::string all = "Q4/m-00001-of-00003.gguf Q4/m-00002-of-00003.gguf Q4/m-00003-of-00003.gguf ";
  EXPECT_EQ(chosen(listing), all);
  EXPECT_EQ(chosen(listing, "Q4/m-00002-of-00003.gguf"), all);
  EXPECT_TRUE(contains(sentence_of([] { chosen(listing_of({"m-00001-of-00002.gguf"})); }), "part 2 of 2"));
  EXPECT_TRUE(contains(sentence_of([] { chosen(listing_of({"m-00002-of-00002.gguf"})); }), "no safetensors"));
}

TEST(HubChoice, NothingToRead) {
  EXPECT_TRUE(contains(sentence_of([] { chosen(listing_of({"model.safetensors"})); }), "no config.json"));
  EXPECT_TRUE(contains(sentence_of([] {
                         chosen(listing_of({"config.json", "pytorch_model.bin"}));
                       }),
                       "no safetensors"));
  EXPECT_TRUE(contains(sentence_of([] { chosen(listing_of({})); }), "not a model"));
}

TEST(Http, OriginsAndEncoding) {
  EXPECT_EQ(url_origin("https://HuggingFace.co/a/b?c"), "https://huggingface.co:443");
  EXPECT_EQ(url_origin("http://127.0.0.1:8000"), "http://127.0.0.1:8000");
  EXPECT_EQ(url_origin("https://user:pw@host/x"), "https://host:443");
  EXPECT_NE(url_origin("http://host"), url_origin("https://host"));
  for (const char* bad : {"", "host", "file:///etc/passwd", "ftp://host/x", "https://", "http://ho st/"}) {
    EXPECT_THROW(url_origin(bad), Error) << bad;
  }
  EXPECT_EQ(url_encode("a/b c%?#.txt"), "a/b%20c%25%3F%23.txt");
  EXPECT_EQ(url_encode("refs/pr/1", true), "refs%2Fpr%2F1");
  EXPECT_EQ(url_encode("\xc3\xa9"), "%C3%A9");
}

}  // namespace
}  // namespace carat

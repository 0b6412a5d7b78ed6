// Long prompts against a window of real size, on a tiny network.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>

#include "support/golden.h"
#include "support/run_model.h"

namespace carat {
namespace {

constexpr int kWindow = 1024;

// Under a sanitizer, fewer lengths: the same code at a tenth of the speed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::initializer_list<size_t> kLengths = {1025, 2049};
#else
constexpr std::initializer_list<size_t> kLengths = {1023, 1024, 1025, 1377, 2047, 2049};
#endif

/// The dense31 golden with its window of 16 made 1024.
class WideWindow : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) / ("carat-wide-window-" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
    const auto source = test::data_directory() / "goldens" / "models" / "dense31" / "q4g64";
    std::filesystem::copy_file(source / "model.safetensors", directory_ / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    std::ifstream in(source / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    const std::string narrow = "\"sliding_window\": 16";
    const size_t at = config.find(narrow);
    ASSERT_NE(at, std::string::npos);
    config.replace(at, narrow.size(), "\"sliding_window\": " + std::to_string(kWindow));
    std::ofstream(directory_ / "config.json") << config;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<float> last_logits(Model& model, std::span<const int> tokens, const std::vector<int64_t>& chunks,
                                 const KvChoice& kv = KvFormat::kF16) {
    KvCache cache(model.device(), model.cache_spec(kv));
    const int sequence = cache.add_sequence();
    ForwardResult result;
    for (size_t done = 0, i = 0; done < tokens.size(); ++i) {
      const auto count = std::min(tokens.size() - done, static_cast<size_t>(chunks[std::min(i, chunks.size() - 1)]));
      Batch batch;
      batch.add(sequence, tokens.subspan(done, count), done + count == tokens.size());
      model.forward(batch, cache, result);
      done += count;
    }
    return result.logits;
  }

  std::filesystem::path directory_;
};

TEST_F(WideWindow, ChunksDoNotShowAroundTheWindow) {
  const auto model = test::open_model(directory_, {.precision = Precision::kFast, .max_rows = 2048});
  std::mt19937 random(1);
  std::vector<int> tokens{2};
  while (tokens.size() < 2049) tokens.push_back(static_cast<int>(random() % 512));
  for (const size_t length : kLengths) {
    const std::span<const int> prompt = std::span(tokens).first(length);
    const std::vector<float> reference = last_logits(*model, prompt, {2048, 1});
    for (const int64_t chunk : {17, 512, 1024}) {
      EXPECT_EQ(last_logits(*model, prompt, {chunk}), reference) << length << " tokens in chunks of " << chunk;
    }
    EXPECT_EQ(last_logits(*model, prompt, {1, 300, 2, 700, 5}), reference) << length << " tokens";
  }
  const std::span<const int> prompt = std::span(tokens).first(1025);
  EXPECT_EQ(last_logits(*model, prompt, {1}), last_logits(*model, prompt, {2048}));
}

TEST_F(WideWindow, ChunksDoNotShowInCodedFormatsEither) {
  const auto model = test::open_model(directory_, {.precision = Precision::kFast, .max_rows = 2048});
  std::mt19937 random(3);
  std::vector<int> tokens{2};
  while (tokens.size() < 2049) tokens.push_back(static_cast<int>(random() % 512));
  for (const char* name : {"q8", "q4", "turbo:k8v3"}) {
    const KvChoice kv = parse_kv_choice(name);
    for (const size_t length : kLengths) {
      const std::span<const int> prompt = std::span(tokens).first(length);
      const std::vector<float> reference = last_logits(*model, prompt, {2048, 1}, kv);
      for (const float logit : reference) ASSERT_TRUE(std::isfinite(logit));
      EXPECT_EQ(last_logits(*model, prompt, {1, 300, 2, 700, 5}, kv), reference) << name << ", " << length << " tokens";
    }
    const std::span<const int> prompt = std::span(tokens).first(1025);
    EXPECT_EQ(last_logits(*model, prompt, {512, 1}, kv), last_logits(*model, prompt, {2048}, kv)) << name;
  }
}

// Every KV format x both layer kinds x shared and unshared layers, around and beyond the window (16).
TEST(KvFormats, StayCloseToFloat32BeyondTheWindow) {
  struct Bound {
    const char* kv;
    double kl;
  };
  for (const char* variant : {"e2b/bf16-hf", "dense31/bf16-hf"}) {
    const auto model = test::open_model(test::data_directory() / "goldens" / "models" / variant);
    std::mt19937 random(2);
    for (const size_t length : {1u, 15u, 16u, 17u, 48u}) {
      std::vector<int> tokens{2};
      while (tokens.size() < length) tokens.push_back(static_cast<int>(random() % 512));
      const std::vector<float> exact = test::logits_of(*model, tokens, {8}, KvFormat::kF32);
      for (const Bound& bound : {Bound{"f16", 5e-5}, Bound{"bf16", 2e-3}, Bound{"q8", 3e-2}, Bound{"q6", 0.3},
                                 Bound{"turbo:k8v8", 3e-2}, Bound{"turbo:k8v4", 5e-2}, Bound{"turbo:k8v3", 0.1}}) {
        const std::vector<float> got = test::logits_of(*model, tokens, {8}, parse_kv_choice(bound.kv));
        for (const float logit : got) ASSERT_TRUE(std::isfinite(logit));
        EXPECT_LE(test::compare(exact, got, model->config().vocab).mean_kl, bound.kl)
            << variant << ", " << length << " tokens, " << bound.kv << ": "
            << test::compare(exact, got, model->config().vocab).mean_kl;
      }
    }
  }
}

}  // namespace
}  // namespace carat

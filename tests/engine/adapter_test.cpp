// Engines with adapters: their cached keys and values are their own.
#include <gtest/gtest.h>

#include "carat/engine.h"
#include "compute/cpu/cpu_device.h"
#include "support/adapter_files.h"
#include "support/golden.h"

namespace carat {
namespace {

using testing::fails;
using testing::TempDir;

std::filesystem::path talker() {
  return test::data_directory() / "goldens" / "gguf" / "dense.q8_0.gguf";
}

/// For the shapes that adapters must have.
Model shapes() {
  return {Checkpoint::open(talker()), make_cpu_device({.threads = 1})};
}

Engine open(std::vector<std::filesystem::path> adapters) {
  return Engine::load(talker(), {.threads = 1, .prefix_cache_bytes = 0, .adapters = std::move(adapters)});
}

GenerateRequest request() {
  GenerateRequest request;
  request.prompt = {2};
  for (int i = 0; i < 90; ++i) request.prompt.push_back(5 + i * 37 % 500);
  request.max_tokens = 12;
  return request;
}

TEST(EngineAdapter, ChangesWhatIsGeneratedUnlessItIsZero) {
  const Model model = shapes();
  const TempDir strong, zero;
  test::write_adapter(strong, model, {.rank = 4, .seed = 1});
  test::write_adapter(zero, model, {.rank = 3, .zero_b = true});
  const std::vector<int> plain = open({}).generate(request()).tokens;
  EXPECT_EQ(open({zero.path()}).generate(request()).tokens, plain);
  const std::vector<int> adapted = open({strong.path()}).generate(request()).tokens;
  EXPECT_NE(adapted, plain);
  EXPECT_EQ(open({strong.path(), zero.path()}).generate(request()).tokens, adapted);
  EXPECT_NE(open({strong.path()}).description().find("adapter"), std::string::npos);
}

TEST(EngineAdapter, OwnsItsPromptCaches) {
  const Model model = shapes();
  const TempDir one, other;
  test::write_adapter(one, model, {.rank = 4, .seed = 1});
  test::write_adapter(other, model, {.rank = 4, .seed = 2});
  const auto file = one.path() / "a.cache";
  Engine first = open({one.path()});
  const GenerateResult cold = first.generate(request());
  first.save_prompt_cache(file);

  Engine again = open({one.path()});
  EXPECT_GT(again.load_prompt_cache(file), 90);
  const GenerateResult warm = again.generate(request());
  EXPECT_GT(warm.reused_tokens, 0);
  EXPECT_EQ(warm.tokens, cold.tokens);
  EXPECT_TRUE(fails([&] { open({}).load_prompt_cache(file); }, "adapter"));
  EXPECT_TRUE(fails([&] { open({other.path()}).load_prompt_cache(file); }, "adapter"));
  EXPECT_TRUE(fails([&] { open({one.path(), other.path()}).load_prompt_cache(file); }, "adapter"));
}

TEST(EngineAdapter, ThatIsMissingIsRefused) {
  EXPECT_TRUE(fails([] { open({"/nowhere/adapter"}); }, "/nowhere/adapter does not exist"));
}

}  // namespace
}  // namespace carat

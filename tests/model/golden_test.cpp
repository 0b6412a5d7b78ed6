// Every checkpoint family against transformers in float64, on the weights as dequantised.
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/run_model.h"

namespace carat {
namespace {

using test::Golden;

struct Case {
  std::string name;  // "dense31.q4g64"
  std::filesystem::path model;
  std::filesystem::path golden;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::filesystem::path root = test::data_directory() / "goldens";
  for (const auto& variant : std::filesystem::directory_iterator(root / "models")) {
    for (const auto& form : std::filesystem::directory_iterator(variant.path())) {
      const std::string name = variant.path().filename().string() + "." + form.path().filename().string();
      cases.push_back({name, form.path(), root / "goldens" / (name + ".safetensors")});
    }
  }
  if (std::filesystem::exists(root / "gguf")) {
    for (const auto& file : std::filesystem::directory_iterator(root / "gguf")) {
      const std::string stem = file.path().stem().string();
      if (file.path().extension() != ".gguf") continue;
      if (stem.find("-of-") != std::string::npos && stem.find("-00001-of-") == std::string::npos) continue;
      const std::string base = stem.substr(0, stem.find("-00001-of-"));
      cases.push_back({"gguf." + base, file.path(), root / "gguf" / (base + ".safetensors")});
    }
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return cases;
}

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  Golden golden_ = test::read_golden(GetParam().golden);
  const std::vector<int>& tokens() { return golden_.integers.at("tokens"); }
  const std::vector<float>& logits() { return golden_.floats.at("hf64").values; }
};

// Float32's own noise is 1.6e-4; these gates catch every known mistake that can matter.
TEST_P(GoldenTest, ExactLogitsAgreeWithFloat64) {
  const auto model = test::open_model(GetParam().model);
  const auto d = test::compare(logits(), test::logits_of(*model, tokens()), model->config().vocab);
  EXPECT_LE(d.max_abs, 1e-3);
  EXPECT_LE(d.max_kl, 1e-7);
  EXPECT_EQ(d.top1_unequal, 0) << "first at position " << d.first_unequal;
}

// Fast mode rounds activations to 16-bit integers per group, which these small random networks amplify: measured up
// to 1.6e-2 and 8e-6. (Real models: docs/performance.md.)
TEST_P(GoldenTest, FastLogitsStayClose) {
  const auto model = test::open_model(GetParam().model, {.precision = Precision::kFast});
  const auto d = test::compare(logits(), test::logits_of(*model, tokens()), model->config().vocab, 0.05);
  EXPECT_LE(d.max_abs, 3e-2);
  EXPECT_LE(d.max_kl, 2e-5);
  EXPECT_EQ(d.top1_unequal, 0) << "first at position " << d.first_unequal;
}

// Sums that run wild end at the cap, where no comparison of best tokens sees them.
TEST_P(GoldenTest, HardlyAnyLogitIsAtTheCap) {
  const auto model = test::open_model(GetParam().model, {.precision = Precision::kFast});
  const auto cap = static_cast<float>(model->config().final_softcap.value_or(0.0));
  if (cap == 0.0f) GTEST_SKIP() << "this model has no cap";
  const std::vector<float> values = test::logits_of(*model, tokens());
  const auto at_cap = std::count_if(values.begin(), values.end(), [&](float v) { return std::abs(v) > cap - 0.1f; });
  EXPECT_LT(at_cap, static_cast<std::ptrdiff_t>(values.size() / 100));
}

TEST_P(GoldenTest, GreedyTextEqualsTheReferences) {
  const std::vector<int>& greedy = golden_.integers.at("greedy");
  const auto model = test::open_model(GetParam().model);
  KvCache cache(model->device(), model->cache_spec(KvFormat::kF32));
  const int sequence = cache.add_sequence();
  ForwardResult result;
  std::vector<int> next = tokens();
  for (size_t i = 0; i < greedy.size(); ++i) {
    Batch batch;
    batch.add(sequence, next, true);
    model->forward(batch, cache, result);
    const int token = test::argmax(result.logits.data(), model->config().vocab);
    ASSERT_EQ(token, greedy[i]) << "step " << i;
    next = {token};
  }
}

TEST_P(GoldenTest, HiddenStatesAgreeLayerByLayer) {
  const auto found = golden_.floats.find("hf64_hidden");  // [layers + 2, tokens, hidden]: embeddings first
  if (found == golden_.floats.end()) GTEST_SKIP() << "no hidden states are stored for this form";
  const auto model = test::open_model(GetParam().model);
  KvCache cache(model->device(), model->cache_spec(KvFormat::kF32));
  Batch batch;
  for (int i = 0; i <= model->config().layer_count(); ++i) batch.taps.push_back(i);
  const int sequence = cache.add_sequence();
  for (const int token : tokens()) batch.rows.push_back({.sequence = sequence, .token = token, .wants_taps = true});
  ForwardResult result;
  model->forward(batch, cache, result);
  const size_t size = tokens().size() * static_cast<size_t>(model->config().hidden);
  for (size_t tap = 0; tap < result.taps.size(); ++tap) {
    ASSERT_EQ(result.taps[tap].size(), size);
    const float* reference = found->second.values.data() + (tap + 1) * size;
    double worst = 0.0;
    double scale = 0.0;
    for (size_t i = 0; i < size; ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(result.taps[tap][i]) - reference[i]));
      scale = std::max(scale, std::abs(static_cast<double>(reference[i])));
    }
    EXPECT_LE(worst, 1e-4 * scale) << "after layer " << tap;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenTest, testing::ValuesIn(all_cases()), test_name);

}  // namespace
}  // namespace carat

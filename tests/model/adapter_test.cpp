// Adapters against transformers in float64, and law 2 with them: a row's logits depend on that row and its adapter.
#include "model/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "support/adapter_files.h"
#include "support/golden.h"
#include "support/run_model.h"

namespace carat {
namespace {

using Adapters = std::vector<std::shared_ptr<const Adapter>>;
using testing::fails;

std::filesystem::path goldens() {
  return test::data_directory() / "goldens";
}

std::vector<int> random_tokens(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens{2};
  while (tokens.size() < count) tokens.push_back(static_cast<int>(random() % 512));
  return tokens;
}

/// Logits of all positions with `adapter` (null for none), the prompt cut at the given chunk sizes.
std::vector<float> logits_of(Model& model, std::span<const int> tokens, const Adapter* adapter,
                             std::vector<int64_t> chunks = {1 << 20}) {
  KvCache cache(model.device(), model.cache_spec(KvFormat::kF32));
  const int sequence = cache.add_sequence();
  ForwardResult result;
  std::vector<float> all;
  size_t chunk = 0;
  for (size_t begin = 0; begin < tokens.size();) {
    const auto size = std::min(tokens.size() - begin, static_cast<size_t>(chunks[chunk]));
    Batch batch;
    if (adapter != nullptr) batch.adapters = {adapter};
    for (size_t i = 0; i < size; ++i) {
      batch.rows.push_back({.sequence = sequence,
                            .token = tokens[begin + i],
                            .wants_logits = true,
                            .adapter = adapter != nullptr ? 0 : -1});
    }
    model.forward(batch, cache, result);
    all.insert(all.end(), result.logits.begin(), result.logits.end());
    begin += size;
    if (chunk + 1 < chunks.size()) ++chunk;
  }
  return all;
}

// The goldens of tests/goldens/lora.

class LoraGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string variant() const { return std::string(GetParam()).substr(0, std::string(GetParam()).find('/')); }
  nlohmann::json expected() const {
    return nlohmann::json::parse(std::ifstream(goldens() / "lora" / (variant() + ".json")));
  }
  std::unique_ptr<Model> open(const test::RunOptions& options = {}) const {
    return test::open_model(goldens() / "models" / expected()["model"].get<std::string>(), options);
  }
  std::shared_ptr<const Adapter> load(const Model& model) const {
    return Adapter::load(goldens() / "lora" / GetParam(), model);
  }

  /// Sum of log p over the completion.
  static double log_probability(Model& model, const Adapter* adapter, const std::vector<int>& prompt,
                                const std::vector<int>& completion) {
    std::vector<int> tokens = prompt;
    tokens.insert(tokens.end(), completion.begin(), completion.end());
    const std::vector<float> logits = logits_of(model, tokens, adapter);
    const int vocab = model.config().vocab;
    double total = 0.0;
    for (size_t i = prompt.size(); i < tokens.size(); ++i) {
      const float* row = logits.data() + (i - 1) * static_cast<size_t>(vocab);
      const double largest = row[test::argmax(row, vocab)];
      double sum = 0.0;
      for (int v = 0; v < vocab; ++v) sum += std::exp(row[v] - largest);
      total += row[tokens[i]] - largest - std::log(sum);
    }
    return total;
  }
};

TEST_P(LoraGolden, LogitsAgreeWithFloat64) {
  const test::Golden golden = test::read_golden(goldens() / "lora" / (variant() + ".safetensors"));
  const auto model = open();
  const auto adapter = load(*model);
  const auto d = test::compare(golden.floats.at("hf64").values,
                               logits_of(*model, golden.integers.at("tokens"), adapter.get()), model->config().vocab);
  EXPECT_LE(d.max_abs, 5e-4);
  EXPECT_LE(d.max_kl, 1e-7);
  const auto without = test::compare(golden.floats.at("hf64").values,
                                     logits_of(*model, golden.integers.at("tokens"), nullptr), model->config().vocab);
  EXPECT_GT(without.max_abs, 1.0);  // the adapter matters
}

TEST_P(LoraGolden, TheReferenceBackendAgreesToo) {
  const test::Golden golden = test::read_golden(goldens() / "lora" / (variant() + ".safetensors"));
  const auto model = open({.reference = true});
  const auto adapter = load(*model);
  const auto d = test::compare(golden.floats.at("hf64").values,
                               logits_of(*model, golden.integers.at("tokens"), adapter.get()), model->config().vocab);
  EXPECT_LE(d.max_abs, 2e-4);
  EXPECT_LE(d.max_kl, 1e-8);
}

TEST_P(LoraGolden, LossesAreTransformers) {
  const auto model = open();
  const auto adapter = load(*model);
  const nlohmann::json golden = expected();
  double base = 0.0;
  double sft = 0.0;
  size_t tokens = 0;
  for (const auto& example : golden["sft"]) {
    base -= log_probability(*model, nullptr, example["prompt"], example["completion"]);
    sft -= log_probability(*model, adapter.get(), example["prompt"], example["completion"]);
    tokens += example["completion"].size();
  }
  const auto count = static_cast<double>(tokens);
  EXPECT_NEAR(base / count, golden["losses"]["sft_base_no_lora"].get<double>(), 1e-5);
  EXPECT_NEAR(sft / count, golden["losses"]["sft"].get<double>(), 1e-5);

  const auto& pair = golden["pair"];
  const double chosen = log_probability(*model, adapter.get(), pair["prompt"], pair["chosen"]);
  const double rejected = log_probability(*model, adapter.get(), pair["prompt"], pair["rejected"]);
  const double margin = chosen - log_probability(*model, nullptr, pair["prompt"], pair["chosen"]) -
                        (rejected - log_probability(*model, nullptr, pair["prompt"], pair["rejected"]));
  EXPECT_NEAR(chosen, golden["losses"]["dpo_policy_chosen_logp"].get<double>(), 3e-4);
  EXPECT_NEAR(rejected, golden["losses"]["dpo_policy_rejected_logp"].get<double>(), 3e-4);
  constexpr double kBeta = 0.1;
  EXPECT_NEAR(std::log1p(std::exp(-kBeta * margin)), golden["losses"]["dpo"].get<double>(), 3e-5);
}

INSTANTIATE_TEST_SUITE_P(Files, LoraGolden, ::testing::Values("e2b/peft", "e2b/mlx", "moe26/peft"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST(Adapter, IsTheSameWhicheverFileItCameIn) {
  const auto model = test::open_model(goldens() / "models" / "e2b" / "bf16-hf");
  const auto peft = Adapter::load(goldens() / "lora" / "e2b" / "peft", *model);
  const auto mlx = Adapter::load(goldens() / "lora" / "e2b" / "mlx" / "adapters.safetensors", *model);
  EXPECT_EQ(peft->fingerprint(), mlx->fingerprint());
  EXPECT_EQ(peft->rank(), 4);
  EXPECT_EQ(peft->scale(), 2.0);
  EXPECT_EQ(mlx->scale(), 2.0);
  EXPECT_EQ(peft->modules(), mlx->modules());
  EXPECT_EQ(peft->unused(), 0);
  const std::vector<int> tokens = random_tokens(40, 1);
  EXPECT_EQ(logits_of(*model, tokens, peft.get()), logits_of(*model, tokens, mlx.get()));
}

// Law 2.

struct Case {
  const char* model;
  Precision precision;
};

class AdapterBits : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Model> open(int threads = 1, std::optional<Isa> isa = std::nullopt) const {
    return test::open_model(goldens() / "models" / GetParam().model,
                            {.precision = GetParam().precision, .threads = threads, .isa = isa});
  }

  /// Adapters of different ranks and modules; the last is a stack of the others.
  static Adapters adapters(const Model& model) {
    Adapters all;
    all.push_back(test::random_adapter(model, {.rank = 4, .seed = 1}));
    all.push_back(test::random_adapter(
        model, {.rank = 19, .seed = 2, .has = [](int layer, const std::string&) { return layer % 2 == 0; }}));
    all.push_back(test::random_adapter(
        model, {.rank = 1, .seed = 3, .alpha = 1.0, .has = [](int, const std::string& name) {
                  return name == "self_attn.k_proj" || name == "mlp.gate_proj" || name == "per_layer_projection";
                }}));
    all.push_back(Adapter::stack(Adapters(all)));
    return all;
  }
};

TEST_P(AdapterBits, OneOfZerosIsNone) {
  const auto model = open();
  const std::vector<int> tokens = random_tokens(60, 1);
  const auto zero = test::random_adapter(*model, {.rank = 7, .zero_b = true});
  const std::vector<float> without = logits_of(*model, tokens, nullptr, {50, 1});
  EXPECT_EQ(logits_of(*model, tokens, zero.get(), {50, 1}), without);
  const auto other = adapters(*model).front();
  EXPECT_NE(logits_of(*model, tokens, other.get(), {50, 1}), without);
  EXPECT_EQ(logits_of(*model, tokens, Adapter::stack(Adapters{zero, other, zero}).get(), {50, 1}),
            logits_of(*model, tokens, other.get(), {50, 1}));
}

TEST_P(AdapterBits, WhateverTheThreadsChunksAndInstructionSet) {
  const std::vector<int> tokens = random_tokens(70, 2);
  std::vector<std::vector<float>> first;
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 3}) {
      const auto model = open(threads, isa);
      size_t i = 0;
      for (const auto& adapter : adapters(*model)) {
        const std::vector<float> logits = logits_of(
            *model, tokens, adapter.get(), threads == 1 ? std::vector<int64_t>{50, 1} : std::vector<int64_t>{7});
        if (first.size() == i) first.push_back(logits);
        EXPECT_EQ(logits, first[i]) << isa_name(isa) << ", " << threads << " threads, adapter " << i;
        ++i;
      }
    }
  }
}

// Sequences with different adapters, and some without, advance together by random steps; only some rows want logits, so
// that others are dropped on the way.
TEST_P(AdapterBits, WhateverElseIsInTheBatch) {
  const auto model = open(2);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const Adapters all = adapters(*model);
  std::mt19937 random(5);
  KvCache cache(model->device(), model->cache_spec(KvFormat::kF32));
  struct Conversation {
    int sequence;
    int adapter;
    std::vector<int> tokens;
    std::vector<float> alone;
    size_t done = 0;
  };
  std::vector<Conversation> conversations;
  for (int i = 0; i < 7; ++i) {
    const int adapter = i % 5 - 1;
    const std::vector<int> tokens = random_tokens(static_cast<size_t>(40 + 9 * i), 10 + static_cast<unsigned>(i));
    conversations.push_back({cache.add_sequence(), adapter, tokens,
                             logits_of(*model, tokens, adapter < 0 ? nullptr : all[static_cast<size_t>(adapter)].get()),
                             0});
  }
  ForwardResult result;
  for (int step = 0; step < 200; ++step) {
    Batch batch;
    for (const auto& adapter : all) batch.adapters.push_back(adapter.get());
    std::vector<std::pair<const Conversation*, size_t>> wanted;
    for (Conversation& c : conversations) {
      const size_t count = std::min<size_t>(c.tokens.size() - c.done, random() % 3 == 0 ? random() % 20 : random() % 2);
      for (size_t i = 0; i < count; ++i, ++c.done) {
        const bool wants = random() % 3 == 0;
        batch.rows.push_back(
            {.sequence = c.sequence, .token = c.tokens[c.done], .wants_logits = wants, .adapter = c.adapter});
        if (wants) wanted.emplace_back(&c, c.done);
      }
    }
    if (batch.rows.empty()) continue;
    model->forward(batch, cache, result);
    ASSERT_EQ(result.logits.size(), wanted.size() * vocab);
    for (size_t r = 0; r < wanted.size(); ++r) {
      const auto& [c, position] = wanted[r];
      ASSERT_TRUE(std::equal(result.logits.begin() + static_cast<int64_t>(r * vocab),
                             result.logits.begin() + static_cast<int64_t>((r + 1) * vocab),
                             c->alone.begin() + static_cast<int64_t>(position * vocab)))
          << "adapter " << c->adapter << ", position " << position;
    }
  }
  for (const Conversation& c : conversations) EXPECT_EQ(c.done, c.tokens.size());
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.model) + (info.param.precision == Precision::kExact ? "_exact" : "_fast");
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, AdapterBits,
                         ::testing::Values(Case{"dense31/q4g64", Precision::kFast}, Case{"e2b/q4g64", Precision::kFast},
                                           Case{"e2b/bf16-hf", Precision::kExact},
                                           Case{"moe26/q4g64", Precision::kFast},
                                           Case{"gemma3/optiq", Precision::kFast}),
                         case_name);

// Stacking.

TEST(AdapterStack, AddsUp) {
  // Two adapters of disjoint modules make the one that has both.
  const auto model = test::open_model(goldens() / "models" / "dense31" / "bf16-hf");
  const auto even = [](int layer, const std::string&) { return layer % 2 == 0; };
  const auto odd = [](int layer, const std::string&) { return layer % 2 == 1; };
  const auto a = test::random_adapter(*model, {.rank = 3, .seed = 1, .has = even});
  const auto b = test::random_adapter(*model, {.rank = 5, .seed = 2, .has = odd});
  const auto both = Adapter::stack(Adapters{a, b});
  EXPECT_EQ(both->rank(), 5);
  EXPECT_EQ(both->modules(), a->modules() + b->modules());
  EXPECT_EQ(both->bytes(), a->bytes() + b->bytes());
  for (int layer = 0; layer < model->config().layer_count(); ++layer) {
    for (size_t m = 0; m < kLoraModules; ++m) {
      const LoraPair got = both->pair(layer, static_cast<LoraModule>(m));
      const LoraPair want = (layer % 2 == 0 ? a : b)->pair(layer, static_cast<LoraModule>(m));
      ASSERT_EQ(got.rank, want.rank);
    }
  }
  // The same adapter twice is twice its correction: that of twice the scale.
  const std::vector<int> tokens = random_tokens(40, 3);
  const auto twice = test::random_adapter(*model, {.rank = 3, .seed = 1, .alpha = 16.0, .has = even});
  const auto d = test::compare(logits_of(*model, tokens, twice.get()),
                               logits_of(*model, tokens, Adapter::stack(Adapters{a, a}).get()), model->config().vocab);
  EXPECT_LE(d.max_abs, 5e-4);
  const auto once =
      test::compare(logits_of(*model, tokens, twice.get()), logits_of(*model, tokens, a.get()), model->config().vocab);
  EXPECT_GT(once.max_abs, 0.1);
}

TEST(AdapterStack, HasAFingerprintOfItsOwn) {
  const auto model = test::open_model(goldens() / "models" / "dense31" / "bf16-hf");
  const auto a = test::random_adapter(*model, {.seed = 1});
  const auto b = test::random_adapter(*model, {.seed = 2});
  EXPECT_EQ(a->fingerprint(), test::random_adapter(*model, {.seed = 1})->fingerprint());
  EXPECT_NE(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), test::random_adapter(*model, {.seed = 1, .alpha = 9.0})->fingerprint());
  EXPECT_EQ(Adapter::stack(Adapters{a})->fingerprint(), a->fingerprint());
  EXPECT_NE(Adapter::stack(Adapters{a, b})->fingerprint(), Adapter::stack(Adapters{b, a})->fingerprint());
  EXPECT_TRUE(fails([] { Adapter::stack({}); }, "at least one"));
  const auto other = test::open_model(goldens() / "models" / "e2b" / "bf16-hf");
  const auto foreign = test::random_adapter(*other, {});
  EXPECT_TRUE(fails([&] { Adapter::stack(Adapters{a, foreign}); }, "different models"));
}

// What is refused.

TEST(Adapter, OfOtherModelsAndOutsideTheListAreRefused) {
  const auto model = test::open_model(goldens() / "models" / "dense31" / "q4g64");
  const auto other = test::open_model(goldens() / "models" / "dense31" / "q4g64");
  const auto adapter = test::random_adapter(*model, {});
  const auto foreign = test::random_adapter(*other, {});
  KvCache cache(model->device(), model->cache_spec(KvFormat::kF32));
  ForwardResult result;
  const int sequence = cache.add_sequence();
  const auto run = [&](std::vector<const Adapter*> adapters, int index) {
    Batch batch;
    batch.adapters = std::move(adapters);
    batch.add(sequence, std::vector<int>{2, 3}, true, index);
    model->forward(batch, cache, result);
  };
  EXPECT_TRUE(fails([&] { run({adapter.get()}, 1); }, "uses adapter 1, but the batch has 1"));
  EXPECT_TRUE(fails([&] { run({}, 0); }, "uses adapter 0, but the batch has 0"));
  EXPECT_TRUE(fails([&] { run({adapter.get()}, -2); }, "uses adapter -2"));
  EXPECT_TRUE(fails([&] { run({nullptr}, -1); }, "is null"));
  EXPECT_TRUE(fails([&] { run({foreign.get()}, 0); }, "for another model"));
  EXPECT_EQ(cache.length(sequence), 0);  // nothing was changed
  run({adapter.get()}, 0);
  EXPECT_EQ(cache.length(sequence), 2);
}

TEST(Adapter, ThatDoesNotFitIsRefused) {
  const auto small = test::open_model(goldens() / "models" / "dense31" / "bf16-hf");
  const testing::TempDir directory;
  test::write_adapter(directory, *small, {.has = [](int layer, const std::string& name) {
                        return layer == 0 && name == "self_attn.q_proj";
                      }});
  const auto wide = test::open_model(goldens() / "models" / "untied" / "bf16-hf");
  EXPECT_TRUE(fails([&] { Adapter::load(directory.path(), *wide); }, "inputs"));
}

}  // namespace
}  // namespace carat

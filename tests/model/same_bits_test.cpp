// Law 2: a token's logits do not depend on chunking, on the rest of the batch, on prefill or decode, nor on threads.
// All comparisons are for equality.
#include <gtest/gtest.h>

#include <random>

#include "support/golden.h"
#include "support/run_model.h"

namespace carat {
namespace {

using test::RunOptions;

struct Case {
  std::string model;
  Precision precision;
  KvChoice kv;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"dense31/bf16-hf", "dense31/q4g64", "dense31/optiq", "e2b/q4g64", "e2b/bf16-hf",
                            "e4b/q4g64", "moe26/q4g64", "moe26w/bf16-mlx", "gemma3/q4g64", "untied/q4g64"}) {
    all.push_back({model, Precision::kFast, KvFormat::kF16});
  }
  // Sharers read what their donors store: of e2b the last four layers.
  for (const char* kv : {"q8", "q4", "turbo:k8v3", "turbo:k5v8"}) {
    all.push_back({"e2b/q4g64", Precision::kFast, parse_kv_choice(kv)});
  }
  KvChoice mixed = KvFormats(KvFormat::kBF16, KvFormat::spread(6));
  mixed.layers = {{0, KvFormat::spread(4, 64)}, {3, {KvFormat::spread(8), KvFormat::rotated(2)}}};
  all.push_back({"dense31/q4g64", Precision::kFast, mixed});
  all.push_back({"e2b/q4g64", Precision::kExact, KvFormat::kF32});
  all.push_back({"moe26/q4g64", Precision::kExact, KvFormat::kBF16});
  return all;
}

/// Prompts long enough to wrap the rings of these models (window 16) several times.
std::vector<int> random_tokens(size_t count, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens{2};
  while (tokens.size() < count) tokens.push_back(static_cast<int>(random() % static_cast<unsigned>(vocab)));
  return tokens;
}

class SameBits : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Model> open(int threads = 1, int64_t max_rows = 512, std::optional<Isa> isa = std::nullopt) const {
    return test::open_model(test::data_directory() / "goldens" / "models" / GetParam().model,
                            {.precision = GetParam().precision, .threads = threads, .isa = isa, .max_rows = max_rows});
  }
  std::vector<float> logits(Model& model, std::span<const int> tokens, std::vector<int64_t> chunks = {1 << 20}) const {
    return test::logits_of(model, tokens, std::move(chunks), GetParam().kv);
  }
};

TEST_P(SameBits, WhateverTheChunks) {
  const auto model = open();
  const std::vector<int> tokens = random_tokens(150, model->config().vocab, 1);
  const std::vector<float> whole = logits(*model, tokens);
  for (const int64_t chunk : {1, 7, 64, 100})
    EXPECT_EQ(logits(*model, tokens, {chunk}), whole) << "chunks of " << chunk;
  EXPECT_EQ(logits(*model, tokens, {3, 1, 1, 40, 1, 17, 2, 64}), whole);
}

TEST_P(SameBits, WhateverTheRingHolds) {  // rings sized for smaller batches wrap elsewhere
  const auto model = open();
  const std::vector<int> tokens = random_tokens(150, model->config().vocab, 2);
  const std::vector<float> whole = logits(*model, tokens);
  for (const int64_t rows : {1, 5, 33}) EXPECT_EQ(logits(*open(1, rows), tokens), whole) << rows << " rows";
}

TEST_P(SameBits, WhateverTheThreads) {
  const std::vector<int> tokens = random_tokens(90, open()->config().vocab, 3);
  const std::vector<float> one = logits(*open(1), tokens, {60, 1});
  for (const int threads : {2, 4}) EXPECT_EQ(logits(*open(threads), tokens, {60, 1}), one) << threads << " threads";
}

TEST_P(SameBits, WhateverTheInstructionSet) {
  const std::vector<int> tokens = random_tokens(70, open()->config().vocab, 4);
  const std::vector<float> portable = logits(*open(1, 512, Isa::kPortable), tokens, {50, 1});
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(logits(*open(1, 512, isa), tokens, {50, 1}), portable) << isa_name(isa);
  }
}

// Five sequences of different lengths advance together, each by its own random steps: prefill chunks and single tokens
// mixed in one batch.
TEST_P(SameBits, WhateverElseIsInTheBatch) {
  const auto model = open(2);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  std::mt19937 random(5);
  KvCache cache(model->device(), model->cache_spec(GetParam().kv));
  struct Conversation {
    int sequence;
    std::vector<int> tokens;
    size_t done = 0;
    std::vector<float> logits;
  };
  std::vector<Conversation> conversations;
  for (unsigned i = 0; i < 5; ++i) {
    conversations.push_back({cache.add_sequence(), random_tokens(60 + 17 * i, model->config().vocab, 10 + i), 0, {}});
  }
  ForwardResult result;
  while (true) {
    Batch batch;
    std::vector<std::pair<Conversation*, size_t>> parts;
    for (Conversation& c : conversations) {
      const size_t left = c.tokens.size() - c.done;
      const size_t count = std::min<size_t>(left, random() % 3 == 0 ? random() % 20 : random() % 2);
      if (count == 0) continue;
      for (size_t i = 0; i < count; ++i) {
        batch.rows.push_back({.sequence = c.sequence, .token = c.tokens[c.done + i], .wants_logits = true});
      }
      parts.emplace_back(&c, count);
    }
    if (batch.rows.empty()) {
      if (std::all_of(conversations.begin(), conversations.end(),
                      [](const auto& c) { return c.done == c.tokens.size(); }))
        break;
      continue;
    }
    model->forward(batch, cache, result);
    size_t row = 0;
    for (const auto& [conversation, count] : parts) {
      conversation->logits.insert(conversation->logits.end(), result.logits.begin() + static_cast<int64_t>(row * vocab),
                                  result.logits.begin() + static_cast<int64_t>((row + count) * vocab));
      conversation->done += count;
      row += count;
    }
  }
  for (const Conversation& c : conversations)
    EXPECT_EQ(c.logits, logits(*model, c.tokens)) << "sequence " << c.sequence;
}

// Law 10: what is not asked for is not computed, and what is asked for does not change by it.
TEST_P(SameBits, WhicheverRowsWantLogits) {
  const auto model = open();
  const std::vector<int> tokens = random_tokens(80, model->config().vocab, 6);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const std::vector<float> all = logits(*model, tokens);
  for (const size_t every : {80u, 13u, 2u}) {
    KvCache cache(model->device(), model->cache_spec(GetParam().kv));
    const int sequence = cache.add_sequence();
    Batch batch;
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.rows.push_back({.sequence = sequence, .token = tokens[i], .wants_logits = (i + 1) % every == 0});
    }
    ForwardResult result;
    model->forward(batch, cache, result);
    size_t row = 0;
    for (size_t i = every - 1; i < tokens.size(); i += every, ++row) {
      const std::vector<float> got(result.logits.begin() + static_cast<int64_t>(row * vocab),
                                   result.logits.begin() + static_cast<int64_t>((row + 1) * vocab));
      const std::vector<float> expected(all.begin() + static_cast<int64_t>(i * vocab),
                                        all.begin() + static_cast<int64_t>((i + 1) * vocab));
      ASSERT_EQ(got, expected) << "row " << i << ", every " << every;
    }
    EXPECT_EQ(result.logits.size(), row * vocab);
  }
}

TEST_P(SameBits, AfterTrimming) {
  const auto model = open();
  const std::vector<int> tokens = random_tokens(90, model->config().vocab, 7);
  const std::vector<int> others = random_tokens(90, model->config().vocab, 8);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const std::vector<float> whole = logits(*model, tokens);
  KvCache cache(model->device(), model->cache_spec(GetParam().kv));
  const int sequence = cache.add_sequence();
  ForwardResult result;
  const auto run = [&](const std::vector<int>& source, size_t begin, size_t end) {
    Batch batch;
    batch.add(sequence, std::span(source).subspan(begin, end - begin), true);
    model->forward(batch, cache, result);
  };
  run(tokens, 0, 50);
  run(others, 50, 80);  // a wrong guess, taken back
  ASSERT_TRUE(cache.can_trim(sequence, 50));
  cache.trim(sequence, 50);
  run(tokens, 50, 90);
  EXPECT_EQ(result.logits, std::vector<float>(whole.end() - static_cast<int64_t>(vocab), whole.end()));
}

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + (info.param.precision == Precision::kExact ? "_exact_" : "_fast_") +
                     kv_choice_name(info.param.kv);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, SameBits, testing::ValuesIn(cases()), test_name);

}  // namespace
}  // namespace carat

// Embedding rows, bidirectional spans, taps, and batches that are refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "base/error.h"
#include "support/golden.h"
#include "support/run_model.h"

namespace carat {
namespace {

std::filesystem::path model_path(const char* name) {
  return test::data_directory() / "goldens" / "models" / name;
}

std::vector<int> prompt(size_t count) {
  std::mt19937 random(1);
  std::vector<int> tokens{2};
  while (tokens.size() < count) tokens.push_back(static_cast<int>(random() % 512));
  return tokens;
}

struct Session {
  explicit Session(const std::filesystem::path& path, test::RunOptions options = {})
      : model(test::open_model(path, options)),
        cache(model->device(), model->cache_spec(KvFormat::kF32)),
        sequence(cache.add_sequence()) {}

  std::vector<float> forward(const Batch& batch) {
    model->forward(batch, cache, result);
    return result.logits;
  }
  Batch batch_of(const std::vector<int>& tokens) const {
    Batch batch;
    for (const int token : tokens) batch.rows.push_back({.sequence = sequence, .token = token, .wants_logits = true});
    return batch;
  }

  std::unique_ptr<Model> model;
  KvCache cache;
  int sequence;
  ForwardResult result;
};

TEST(Batch, EmbeddingRowsEqualToTheTablesGiveTheTablesLogits) {
  for (const char* name : {"e2b/q4g64", "dense31/bf16-hf"}) {
    Session tokens(model_path(name));
    const std::vector<int> ids = prompt(40);
    const std::vector<float> expected = tokens.forward(tokens.batch_of(ids));

    Session rows(model_path(name));
    const Matrix& table = rows.model->weights().embedding;
    std::vector<float> embeddings(ids.size() * static_cast<size_t>(table.cols));
    Batch batch = rows.batch_of(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      decode_row(table, ids[i], embeddings.data() + i * static_cast<size_t>(table.cols));
      if (i % 3 != 0) batch.rows[i].embedding = static_cast<int64_t>(i);
    }
    batch.embeddings = embeddings;
    EXPECT_EQ(rows.forward(batch), expected) << name;
  }
}

TEST(Batch, MaskedRowsUseTokenZerosPerLayerInput) {
  Session masked(model_path("e2b/bf16-hf"));
  Session zero(model_path("e2b/bf16-hf"));
  const std::vector<int> ids = prompt(20);
  const Matrix& table = masked.model->weights().embedding;
  std::vector<float> embedding(static_cast<size_t>(table.cols));
  decode_row(table, ids[7], embedding.data());
  Batch a = masked.batch_of(ids);
  a.rows[7].mask_per_layer = true;
  Batch b = zero.batch_of(ids);  // token 0's per-layer input beside the embedding of ids[7]
  b.rows[7].token = 0;
  b.rows[7].embedding = 0;
  b.embeddings = embedding;
  const std::vector<float> got = masked.forward(a);
  EXPECT_EQ(got, zero.forward(b));
  Session plain(model_path("e2b/bf16-hf"));
  EXPECT_NE(got, plain.forward(plain.batch_of(ids)));
}

TEST(Batch, SpansSeeThemselvesWholeAndNothingElseChanges) {
  for (const char* name : {"dense31/bf16-hf", "e2b/bf16-hf"}) {
    const std::vector<int> ids = prompt(60);
    Session causal(model_path(name));
    const std::vector<float> before = causal.forward(causal.batch_of(ids));
    const auto with_span = [&](Session& run) {
      Batch batch = run.batch_of(ids);
      for (size_t i = 10; i < 35; ++i) {  // longer than the window of 16
        batch.rows[i].span_begin = 10;
        batch.rows[i].span_end = 35;
      }
      return run.forward(batch);
    };
    Session fast(model_path(name), {.threads = 2});
    Session reference(model_path(name), {.reference = true});
    const std::vector<float> got = with_span(fast);
    const auto d = test::compare(with_span(reference), got, fast.model->config().vocab);
    EXPECT_LE(d.max_abs, 1e-3) << name;
    const auto vocab = static_cast<int64_t>(fast.model->config().vocab);
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 10 * vocab, before.begin())) << "rows before the span";
    EXPECT_FALSE(std::equal(got.begin() + 10 * vocab, got.begin() + 11 * vocab, before.begin() + 10 * vocab))
        << "first row of the span";
  }
}

TEST(Batch, TapsShowTheResidualsOfTheRowsThatWantThem) {
  const std::vector<int> ids = prompt(30);
  Session all(model_path("e2b/q4g64"));
  const int layers = all.model->config().layer_count();
  Batch everything = all.batch_of(ids);
  everything.taps = {0, 3, layers - 1, layers};
  for (BatchRow& row : everything.rows) row.wants_taps = true;
  all.forward(everything);

  Session few(model_path("e2b/q4g64"));
  Batch batch = few.batch_of(ids);
  batch.taps = everything.taps;
  for (BatchRow& row : batch.rows) row.wants_logits = false;
  batch.rows[5].wants_taps = batch.rows[29].wants_taps = true;
  EXPECT_TRUE(few.forward(batch).empty());
  const auto hidden = static_cast<int64_t>(few.model->config().hidden);
  for (size_t tap = 0; tap < batch.taps.size(); ++tap) {
    std::vector<float> expected;
    for (const int64_t row : {5, 29}) {
      const auto begin = all.result.taps[tap].begin() + row * hidden;
      expected.insert(expected.end(), begin, begin + hidden);
    }
    EXPECT_EQ(few.result.taps[tap], expected) << "tap " << tap;
  }
}

TEST(Batch, NewerConfigurationsGiveTheSameLogits) {
  for (const char* variant : {"dense31", "e2b"}) {
    const auto source = model_path(variant) / "bf16-hf";
    const auto directory = std::filesystem::path(testing::TempDir()) /
                           (std::string("carat-resaved-") + variant + std::to_string(getpid()));
    std::filesystem::create_directories(directory);
    for (const auto& file : std::filesystem::directory_iterator(source)) {
      const std::string name = file.path().filename().string();
      if (name != "config.json")
        std::filesystem::copy_file(file.path(), directory / name, std::filesystem::copy_options::overwrite_existing);
    }
    std::filesystem::rename(directory / "config.resaved-by-transformers-5.24.json", directory / "config.json");
    Session older(source);
    Session newer(directory);
    const std::vector<int> ids = prompt(40);
    EXPECT_EQ(newer.forward(newer.batch_of(ids)), older.forward(older.batch_of(ids))) << variant;
    std::filesystem::remove_all(directory);
  }
}

TEST(Batch, InvalidBatchesAreRefusedBeforeAnythingChanges) {
  Session run(model_path("e2b/q4g64"), {.max_rows = 32});
  const std::vector<int> ids = prompt(10);
  run.forward(run.batch_of(ids));
  const auto refused = [&](auto change) {
    Batch batch = run.batch_of(ids);
    change(batch);
    EXPECT_THROW(run.model->forward(batch, run.cache, run.result), Error);
    EXPECT_EQ(run.cache.length(run.sequence), 10);
  };
  refused([](Batch& b) { b.rows.clear(); });
  refused([](Batch& b) { b.rows[3].token = 512; });
  refused([](Batch& b) { b.rows[3].token = -1; });
  refused([](Batch& b) { b.rows[3].sequence = 9; });
  refused([&](Batch& b) { b.rows.resize(33, b.rows[0]); });
  refused([](Batch& b) { b.rows[3].embedding = 0; });
  refused([](Batch& b) { b.taps = {3, 1}; });
  refused([](Batch& b) { b.taps = {99}; });
  refused([](Batch& b) { b.rows[3].span_end = 14; });                             // begins before the batch
  refused([](Batch& b) { b.rows[9].span_begin = 19, b.rows[9].span_end = 21; });  // ends after it
  const int other = run.cache.add_sequence();
  refused([&](Batch& b) { b.rows[3].sequence = other; });  // the first sequence comes again after it
}

}  // namespace
}  // namespace carat

// Law 2 for every way to begin a sequence other than from nothing: logits are those of a cold run, bit for bit.
#include "engine/cached_sequence.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"
#include "compute/cpu/cpu_device.h"
#include "engine/model_identity.h"
#include "model/model.h"

namespace carat {
namespace {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(CARAT_TEST_DATA) / "goldens" / "models" / name;
}

/// A directory of its own that is removed at the end.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::path(testing::TempDir()) / ("carat-cache-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<Model> open_model(const std::filesystem::path& path, int64_t max_rows) {
  return std::make_unique<Model>(Checkpoint::open(path), make_cpu_device({.threads = 2}), max_rows);
}

std::vector<int> random_tokens(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens{2};
  while (tokens.size() < count) tokens.push_back(static_cast<int>(random() % 500));
  return tokens;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<int> first(const std::vector<int>& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

/// A model with a cache and what reuses it.
struct Reader {
  explicit Reader(Model& m, size_t budget = SIZE_MAX, const KvChoice& kv = KvFormat::kF16)
      : model(m), cache(m.device(), m.cache_spec(kv)), sequence(cache, budget, "") {}

  /// Logits after the last token of the prompt.
  std::vector<float> read(const std::vector<int>& prompt) {
    reused = sequence.begin(prompt);
    go_on(std::span(prompt).subspan(static_cast<size_t>(reused)));
    return result.logits;
  }
  void go_on(std::span<const int> tokens) {
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = std::min(tokens.size() - done, static_cast<size_t>(model.max_rows()));
      Batch batch;
      batch.add(sequence.id(), tokens.subspan(done, count), done + count == tokens.size());
      model.forward(batch, cache, result);
      sequence.append(tokens.subspan(done, count));
      done += count;
    }
  }
  /// Appends tokens one by one, as if generated.
  std::vector<float> generate(const std::vector<int>& tokens) {
    for (const int token : tokens) go_on({&token, 1});
    return result.logits;
  }

  Model& model;
  KvCache cache;
  CachedSequence sequence;
  ForwardResult result;
  int64_t reused = 0;
};

std::vector<float> cold(Model& model, const std::vector<int>& prompt, const KvChoice& kv = KvFormat::kF16) {
  return Reader(model, 0, kv).read(prompt);
}

/// Reading the prompt gives what a cold run gives: at once, after `guess` was generated and taken back, and after
/// `other` was read in between.
void expect_exact_reuse(Reader& reader, const std::vector<int>& prompt, const KvChoice& kv,
                        const std::vector<int>& guess, const std::vector<int>& other) {
  const auto length = static_cast<int64_t>(prompt.size());
  const std::vector<float> expected = cold(reader.model, prompt, kv);
  EXPECT_EQ(reader.read(prompt), expected) << length << " tokens, " << reader.reused << " reused";
  reader.generate(guess);
  EXPECT_EQ(reader.read(prompt), expected) << length << " tokens after a rollback";
  EXPECT_EQ(reader.reused, length - 1);
  reader.read(other);
  EXPECT_EQ(reader.read(prompt), expected) << length << " tokens out of the tree";
  EXPECT_EQ(reader.reused, length - 1);
}

struct Case {
  const char* model;
  KvChoice kv;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model;
}

class Reuse : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Model> model_ = open_model(golden(GetParam().model), 32);

  std::vector<float> cold(const std::vector<int>& prompt) { return carat::cold(*model_, prompt, GetParam().kv); }
};

// A conversation that goes on, is edited, begun again, interleaved with another, and repeated.
TEST_P(Reuse, EqualsAColdRunWhateverCameBefore) {
  Reader reader(*model_, SIZE_MAX, GetParam().kv);
  const std::vector<int> system = random_tokens(150, 1);
  const std::vector<int> a = joined(system, random_tokens(120, 2));
  const std::vector<int> b = joined(system, random_tokens(90, 3));
  const auto check = [&](const std::vector<int>& prompt, int64_t least, const char* what) {
    const std::vector<float> expected = cold(prompt);
    EXPECT_EQ(reader.read(prompt), expected) << what;
    EXPECT_GE(reader.reused, least) << what;
    EXPECT_LT(reader.reused, static_cast<int64_t>(prompt.size())) << what;
  };
  check(a, 0, "first");
  reader.generate(random_tokens(80, 4));
  check(a, 269, "the same again");
  check(joined(a, random_tokens(30, 5)), 270, "another next turn");
  check(b, 0, "branches inside");
  check(joined(system, random_tokens(77, 6)), 151, "branches where others have branched");
  check(a, 269, "back to the first");
  check(first(a, 260), 259, "a little shorter");
  check(first(a, 200), 151, "shorter");
  check(first(a, 65), 0, "one block and a token");
  check(first(a, 64), 0, "one block");
  check({2}, 0, "one token");
  check(joined(a, random_tokens(200, 7)), 270, "longer");
  check(joined(first(a, 261), random_tokens(50, 16)), 261, "edited near its end");
  EXPECT_GT(reader.sequence.stats().hits, 3u);
}

// Whatever is sampled from a shared prefix and however it is cut back.
TEST_P(Reuse, RandomConversationsEqualColdRuns) {
  Reader reader(*model_, 400000, GetParam().kv);
  std::mt19937 random(11);
  std::vector<std::vector<int>> known{random_tokens(100, 20)};
  for (int i = 0; i < 25; ++i) {
    std::vector<int> prompt = known[random() % known.size()];
    prompt.resize(1 + random() % prompt.size());
    prompt = joined(prompt, random_tokens(1 + random() % 90, 100 + static_cast<unsigned>(i)));
    const std::vector<float> expected = cold(prompt);
    ASSERT_EQ(reader.read(prompt), expected) << "prompt " << i << ", " << reader.reused << " reused";
    const std::vector<int> answer = random_tokens(1 + random() % 40, 200 + static_cast<unsigned>(i));
    reader.generate(answer);
    known.push_back(joined(prompt, answer));
    ASSERT_LE(reader.sequence.stats().bytes, 400000u);
  }
}

TEST_P(Reuse, ForksGoTheirOwnWays) {
  const std::vector<int> prompt = random_tokens(90, 8);
  Reader reader(*model_, 0, GetParam().kv);
  reader.read(prompt);
  const int fork = reader.cache.fork(reader.sequence.id());
  const std::vector<int> x = random_tokens(75, 9);
  const std::vector<int> y = random_tokens(75, 10);
  for (size_t i = 0; i < x.size(); ++i) {  // turn by turn
    reader.go_on({&x[i], 1});
    Batch batch;
    batch.add(fork, {&y[i], 1}, true);
    model_->forward(batch, reader.cache, reader.result);
  }
  EXPECT_EQ(reader.result.logits, cold(joined(prompt, y)));
  const int last = 7;
  reader.go_on({&last, 1});
  EXPECT_EQ(reader.result.logits, cold(joined(joined(prompt, x), {last})));
}

TEST_P(Reuse, FilesBringBackTheSequenceAndItsBeginnings) {
  const Scratch scratch;
  const std::filesystem::path file = scratch.path() / "a.cache";
  const std::string identity = model_identity(model_->checkpoint(), Precision::kFast);
  const std::vector<int> prompt = random_tokens(200, 12);
  const std::vector<int> answer = random_tokens(100, 13);
  {
    Reader reader(*model_, SIZE_MAX, GetParam().kv);
    reader.read(prompt);
    reader.generate(answer);
    save_cache_file(file, reader.cache, reader.sequence.contents(), identity);
  }
  const std::vector<int> next = joined(joined(prompt, answer), random_tokens(20, 14));
  const std::vector<int> other = joined(prompt, random_tokens(20, 15));
  for (const size_t budget : {size_t{0}, SIZE_MAX}) {
    Reader reader(*model_, budget, GetParam().kv);
    reader.sequence.restore(load_cache_file(file, reader.cache, identity));
    EXPECT_EQ(reader.read(next), cold(next));
    EXPECT_EQ(reader.reused, 300);
    EXPECT_EQ(reader.read(other), cold(other));
    if (budget > 0) {
      EXPECT_EQ(reader.reused, 200);  // by the checkpoint at the end of the prompt
    }
  }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + std::string("_") + std::to_string(info.index);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
/// Conversations pass the position where floats begin anew.
KvChoice with_recent(const char* name, int positions) {
  KvChoice choice = parse_kv_choice(name);
  choice.keep_recent(positions);
  return choice;
}
INSTANTIATE_TEST_SUITE_P(Models, Reuse,
                         testing::Values(Case{"dense31/q4g64", KvFormat::kF16}, Case{"e2b/q4g64", KvFormat::kF16},
                                         Case{"moe26/q4g64", KvFormat::kBF16}, Case{"gemma3/q4g64", KvFormat::kF32},
                                         Case{"e4b/q4g64", KvFormat::spread(8, 32)},
                                         Case{"e4b/q4g64", with_recent("q4", 1)},
                                         Case{"dense31/q4g64", with_recent("turbo:k8v3", 40)}),
                         case_name);

/// The dense31 golden with its window of 16 made larger.
std::filesystem::path widened(const Scratch& scratch, int window) {
  const auto source = golden("dense31/q4g64");
  std::filesystem::copy_file(source / "model.safetensors", scratch.path() / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::ifstream in(source / "config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  const std::string narrow = "\"sliding_window\": 16";
  const size_t at = config.find(narrow);
  if (at == std::string::npos) fail("the golden has no window of 16");
  config.replace(at, narrow.size(), "\"sliding_window\": " + std::to_string(window));
  std::ofstream(scratch.path() / "config.json") << config;
  return scratch.path();
}

// A window of real size: rings wrap at the window, one before and one behind, and prompts end around multiples of it.
TEST(WideWindow, ReuseAndRollbackAroundTheWindow) {
  const Scratch scratch;
  const auto model = open_model(widened(scratch, 1024), 256);
  const std::vector<int> tokens = random_tokens(2200, 1);
  Reader reader(*model);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::vector<size_t> lengths = {1025, 2049};
#else
  const std::vector<size_t> lengths = {1023, 1024, 1025, 2047, 2049};
#endif
  for (const size_t length : lengths) {
    expect_exact_reuse(reader, first(tokens, length), KvFormat::kF16, random_tokens(9, 2), random_tokens(300, 3));
  }
}

// The same where it is full layers that have a window: of floats beside their codes.
TEST(RecentPositions, ReuseAndRollbackAroundTheSteps) {
  const auto model = open_model(golden("dense31/q4g64"), 256);
  const KvChoice kv = with_recent("q4", 128);
  const std::vector<int> tokens = random_tokens(1500, 1);
  Reader reader(*model, SIZE_MAX, kv);
  for (const size_t length : {383u, 384u, 385u, 640u, 641u, 900u, 1408u}) {
    expect_exact_reuse(reader, first(tokens, length), kv, random_tokens(150, 2), random_tokens(700, 3));
  }
}

// A file is of the positions that are kept as floats, too.
TEST(RecentPositions, FilesOfOthersAreRefused) {
  const Scratch scratch;
  const std::filesystem::path file = scratch.path() / "a.cache";
  const auto model = open_model(golden("dense31/q4g64"), 64);
  Reader reader(*model, SIZE_MAX, with_recent("q4", 100));
  reader.read(random_tokens(400, 1));
  save_cache_file(file, reader.cache, reader.sequence.contents(), "model");
  EXPECT_NO_THROW(load_cache_file(file, reader.cache, "model"));
  for (const int other : {0, 99, 128}) {
    Reader elsewhere(*model, SIZE_MAX, with_recent("q4", other));
    EXPECT_THROW(load_cache_file(file, elsewhere.cache, "model"), Error) << other;
  }
}

// A holds 3000 tokens; B shares 1500 of them and then differs. What is said to be reused is true, and the next one that
// branches there reuses all of it.
TEST(WideWindow, BranchesFarBeforeTheWindow) {
  const Scratch scratch;
  const auto model = open_model(widened(scratch, 512), 256);
  const std::vector<int> a = random_tokens(3000, 4);
  Reader reader(*model);
  reader.read(a);
  for (const unsigned seed : {5u, 6u}) {
    const std::vector<int> b = joined(first(a, 1500), random_tokens(100, seed));
    EXPECT_EQ(reader.read(b), cold(*model, b));
    if (seed == 6) {
      EXPECT_GE(reader.reused, 1500);
    }
  }
  EXPECT_EQ(reader.read(a), cold(*model, a));
  EXPECT_EQ(reader.reused, 2999);
}

TEST(CachedSequenceBudget, NothingIsKeptWithoutABudget) {
  const auto model = open_model(golden("e2b/q4g64"), 64);
  Reader reader(*model, 0);
  const std::vector<int> a = random_tokens(200, 1);
  reader.read(a);
  reader.read(random_tokens(200, 2));
  reader.read(a);
  EXPECT_LE(reader.reused, 1);
  EXPECT_EQ(reader.sequence.stats().bytes, 0u);
  // Only the current sequence holds memory.
  EXPECT_LE(reader.cache.bytes_in_use(), reader.cache.bytes_for(200) * 2);
}

}  // namespace
}  // namespace carat

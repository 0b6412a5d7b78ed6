#include "cli/speed_test.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/cpus.h"
#include "base/error.h"
#include "model/kv_choice.h"

namespace carat {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int some_token(int64_t i, int vocab) {
  return static_cast<int>((i * 7919 + 13) % std::min(vocab, 50000));
}

std::shared_ptr<Device> make_device(const EngineOptions& options, std::optional<Isa> isa) {
  return make_cpu_device({.threads = options.threads, .precision = options.precision, .isa = isa});
}

}  // namespace

SpeedTest::SpeedTest(const std::filesystem::path& model, const EngineOptions& options, const Workload& workload,
                     std::optional<Isa> isa)
    : workload_(workload),
      options_(options),
      model_(Checkpoint::open(model), make_device(options, isa), options.chunk),
      kv_(kv_choice_for(options, model_.checkpoint())) {
  const int64_t longest = int64_t{workload.depth} + std::max(workload.prompt, workload.generate + 1);
  if (longest > model_.config().max_positions) {
    fail("the benchmark needs {} positions; the model's context is {}", longest, model_.config().max_positions);
  }
  if (workload.batch > model_.max_rows())
    fail("--batch is {}; expected at most --chunk ({})", workload.batch, model_.max_rows());
}

void SpeedTest::warm_up() {
  KvCache cache(model_.device(), model_.cache_spec(kv_));
  read(cache, cache.add_sequence(), 1);
  // A chunk touches all weights and gives all buffers their size; a long prompt would only take long.
  if (workload_.prompt > 0) read(cache, cache.add_sequence(), std::min<int64_t>(workload_.prompt, model_.max_rows()));
}

double SpeedTest::prefill_once() {
  KvCache cache(model_.device(), model_.cache_spec(kv_));
  const int sequence = cache.add_sequence();
  fill(cache, sequence, workload_.depth);
  cache.reserve(sequence, int64_t{workload_.depth} + workload_.prompt);
  const Clock::time_point start = Clock::now();
  read(cache, sequence, workload_.prompt);
  return workload_.prompt / seconds_since(start);
}

double SpeedTest::decode_once() {
  KvCache cache(model_.device(), model_.cache_spec(kv_));
  std::vector<int> sequences;
  for (int i = 0; i < workload_.batch; ++i) {
    sequences.push_back(cache.add_sequence());
    fill(cache, sequences.back(), workload_.depth);
    cache.reserve(sequences.back(), int64_t{workload_.depth} + workload_.generate + 1);
  }
  const auto step = [&](int64_t number) {
    batch_.rows.clear();
    for (const int sequence : sequences) {
      // Different tokens, so that a router sends them to different experts.
      const int64_t which = number * workload_.batch + sequence;
      batch_.rows.push_back(
          {.sequence = sequence, .token = some_token(which, model_.config().vocab), .wants_logits = true});
    }
    model_.forward(batch_, cache, result_);
  };
  step(0);
  const Clock::time_point start = Clock::now();
  for (int i = 1; i <= workload_.generate; ++i) step(i);
  return static_cast<double>(workload_.generate) * workload_.batch / seconds_since(start);
}

CostOptions SpeedTest::cost_options() const {
  return {.kv = kv_, .precision = options_.precision, .chunk = model_.max_rows()};
}

StepCost SpeedTest::prefill_cost() const {
  return carat::prefill_cost(model_, cost_options(), workload_.prompt, workload_.depth);
}

StepCost SpeedTest::decode_cost() const {
  return carat::decode_cost(model_, cost_options(), workload_.batch,
                            int64_t{workload_.depth} + workload_.generate / 2 + 1);
}

int SpeedTest::threads() const {
  return options_.threads > 0 ? options_.threads : physical_cores();
}

/// Blocks of a cache are zeroed when they are made.
void SpeedTest::fill(KvCache& cache, int sequence, int64_t count) const {
  for (int64_t done = 0; done < count; done += model_.max_rows()) {
    cache.extend(sequence, std::min(count - done, model_.max_rows()));
  }
}

/// Reads `count` tokens, the last of which wants logits.
void SpeedTest::read(KvCache& cache, int sequence, int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t rows = std::min(count - done, model_.max_rows());
    batch_.rows.clear();
    for (int64_t i = 0; i < rows; ++i) {
      batch_.rows.push_back({.sequence = sequence,
                             .token = some_token(done + i, model_.config().vocab),
                             .wants_logits = done + i + 1 == count});
    }
    model_.forward(batch_, cache, result_);
    done += rows;
  }
}

}  // namespace carat

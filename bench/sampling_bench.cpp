// What drawing a token costs: Sampler::sample over the 262,144 logits of one position, on one thread.
//
//   sampling_bench [--benchmark_filter=REGEX] [--benchmark_format=json] [--benchmark_min_time=SECONDS]
//
// Times are processor time of sample() alone. Logits are drawn to resemble those of Gemma 3 270M: a normal
// distribution of deviation 5, whose best token is some 22 above the mean and has a probability of 0.05 to 0.5. They
// are written before each call, as the head writes them, so that they come from the second or third level of cache.
#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "sampling/sampling.h"

namespace carat {
namespace {

constexpr size_t kVocab = 262144;
constexpr size_t kPositions = 16;

/// Processor time of this thread: other programs on the machine do not count.
double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Case {
  std::string name;
  SamplingParams params;
  std::vector<uint64_t> allowed = {};
};

void sample(benchmark::State& state, const Case& c) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(-2.0f, 5.0f);
  std::vector<std::vector<float>> positions(kPositions, std::vector<float>(kVocab));
  for (auto& logits : positions) {
    for (float& logit : logits) logit = normal(random);
  }
  std::vector<int> history(2000);
  for (int& id : history) id = static_cast<int>(random() % kVocab);
  std::vector<float> logits(kVocab);
  Sampler sampler;
  int64_t position = 0;
  for (auto _ : state) {
    logits = positions[static_cast<size_t>(position) % kPositions];
    const double begin = seconds();
    benchmark::DoNotOptimize(sampler.sample(logits, c.params, history, position++, c.allowed));
    state.SetIterationTime(seconds() - begin);
  }
}

SamplingParams with(const std::function<void(SamplingParams&)>& set) {
  SamplingParams params;
  params.temperature = 1.0f;
  set(params);
  return params;
}

/// One bit in `every` is set, as a grammar leaves them.
std::vector<uint64_t> mask(uint64_t every) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> words(kVocab / 64);
  for (uint64_t& word : words) {
    for (int bit = 0; bit < 64; ++bit) word |= static_cast<uint64_t>(random() % every == 0) << bit;
  }
  return words;
}

std::vector<Case> cases() {
  const auto gemma = [](SamplingParams& p) { p.top_k = 64, p.top_p = 0.95f; };
  return {
      {"greedy", {}},
      {"greedy/logprobs", with([](auto& p) { p.temperature = 0.0f, p.logprobs = true, p.top_logprobs = 20; })},
      {"greedy/penalties",
       with([](auto& p) { p.temperature = 0.0f, p.repetition_penalty = 1.1f, p.repetition_context = 0; })},
      {"greedy/mask_few", {}, mask(1000)},
      {"greedy/mask_most", with([](auto& p) { p.temperature = 0.0f; }), mask(1)},
      {"top_k64_top_p95", with(gemma)},
      {"top_k64_top_p95/logprobs", with([&](auto& p) { gemma(p), p.logprobs = true, p.top_logprobs = 20; })},
      {"top_k64_top_p95/penalties",
       with([&](auto& p) { gemma(p), p.repetition_penalty = 1.1f, p.frequency_penalty = 0.1f; })},
      {"top_k64_top_p95/mask_few", with(gemma), mask(1000)},
      {"top_k64_top_p95/mask_half", with(gemma), mask(2)},
      {"top_k64", with([](auto& p) { p.top_k = 64; })},
      {"top_p95", with([](auto& p) { p.top_p = 0.95f; })},
      {"min_p05", with([](auto& p) { p.min_p = 0.05f; })},
      {"min_p05/logprobs", with([](auto& p) { p.min_p = 0.05f, p.logprobs = true; })},
      {"xtc", with([](auto& p) { p.xtc_probability = 1.0f; })},
      {"temperature", with([](auto&) {})},
      {"temperature/logprobs", with([](auto& p) { p.logprobs = true, p.top_logprobs = 20; })},
      {"hlg", with([](auto& p) { p.hlg.enabled = true; })},
  };
}

}  // namespace
}  // namespace carat

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const carat::Case& c : carat::cases()) {
    benchmark::RegisterBenchmark(("sample/" + c.name).c_str(), [c](benchmark::State& s) { carat::sample(s, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

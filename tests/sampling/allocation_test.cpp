// The token loop does not allocate: counted at operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "sampling/sampling.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: the compiler would see malloc and delete side by side and warn of a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace carat {
namespace {

TEST(Allocation, OnlyTheFirstTokenAllocates) {
  std::mt19937_64 random(41);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(20000), copy(20000);
  std::vector<int> history(100, 5);
  std::vector<SamplingParams> cases(9);
  for (SamplingParams& params : cases) {
    params.temperature = 1.0f;
    params.repetition_penalty = 1.1f;
    params.frequency_penalty = 0.1f;
    params.logprobs = true;
  }
  cases[0].temperature = 0.0f;
  cases[2].top_p = 0.9f;
  cases[3].top_k = 40;
  cases[4].xtc_probability = 0.5f, cases[4].min_p = 0.01f;
  cases[5].hlg.enabled = true;
  cases[6].top_k = 64, cases[6].top_p = 0.95f, cases[6].logprobs = false;
  cases[7].top_k = 700;
  cases[8].top_p = 0.95f, cases[8].logprobs = false;
  for (const SamplingParams& params : cases) {
    Sampler sampler;
    int64_t before = 0;
    for (int64_t position = 0; position < 30; ++position) {
      // Sharp at first, flat later: the later tokens need far more candidates.
      for (float& logit : logits) logit = normal(random) * (position == 0 ? 5.0f : 0.1f);
      copy = logits;
      if (position == 1) before = allocations;
      sampler.sample(copy, params, history, position);
    }
    EXPECT_EQ(allocations - before, 0);
  }
}

}  // namespace
}  // namespace carat

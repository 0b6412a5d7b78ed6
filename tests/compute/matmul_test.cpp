// Prompts long enough for their tokens to be divided among tasks, times more rows than one strip of panels has.
#include "compute/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "test_weights.h"

namespace carat {
namespace {

std::vector<const Kernels*> kernels_here() {
  std::vector<const Kernels*> all;
  for (const Kernels* kernels : {avx2_kernels(), avx512_kernels(), amx_kernels(), neon_kernels()}) {
    if (kernels != nullptr) all.push_back(kernels);
  }
  return all;
}

TEST(Matmul, GivesTheSameBitsHoweverTokensAndRowsAreDivided) {
  constexpr int64_t kTokens = 301;
  constexpr int64_t kRows = 461;
  for (const WeightCase& weight : some_weight_cases()) {
    for (const int64_t cols : {int64_t{256}, int64_t{1536}}) {
      const TestMatrix w(weight, kRows, cols, 2000);
      const TestMatrix gate(weight, kRows, cols, 2001);
      const std::vector<float> x = random_activations(kTokens, cols, 2002);
      std::vector<float> first;
      for (const Kernels* kernels : kernels_here()) {
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Matmul matmul(pool, *kernels, Precision::kFast);
          // A few tokens at a time, which makes them decode products, then all at once.
          for (const int64_t count : {int64_t{5}, kTokens}) {
            if (count != kTokens && !first.empty()) continue;
            std::vector<float> out(static_cast<size_t>(2 * kTokens * kRows));
            for (int64_t token = 0; token < kTokens; token += count) {
              const int64_t some = std::min(count, kTokens - token);
              Activations input;
              matmul.set_input(input, x.data() + token * cols, some, cols);
              std::array<Product, 2> products;
              for (size_t i = 0; i < 2; ++i) {
                products[i].w = w;
                if (i == 1) products[i].gate = gate;
                products[i].tokens = matmul.all_tokens(some);
                products[i].out = out.data() + (static_cast<int64_t>(i) * kTokens + token) * kRows;
                products[i].stride = kRows;
              }
              matmul.run(input, products);
            }
            if (first.empty()) first = out;
            ASSERT_EQ(out, first) << kernels->name << ", " << threads << " threads, " << count << " tokens at a time";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace carat

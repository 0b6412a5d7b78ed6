#include "compute/cpu/moe.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace carat {

CpuMoe::CpuMoe(ThreadPool& pool, const Kernels& kernels, Matmul& matmul)
    : pool_(pool), kernels_(kernels), matmul_(matmul) {}

void CpuMoe::route(const MoeArgs& args) {
  const int64_t hidden = args.router.cols;
  const int64_t experts = args.router.rows;
  const auto k = static_cast<int64_t>(args.experts_per_token);
  normed_.resize(static_cast<size_t>(args.rows * hidden));
  scores_.resize(static_cast<size_t>(args.rows * experts));
  pool_.run(args.rows, [&](int64_t r, int) {
    kernels_.rms_norm(args.residual.x + r * hidden, args.router_norm.weight, args.router_norm.eps, hidden,
                      normed_.data() + r * hidden);
  });
  matmul_.set_input(input_, normed_.data(), args.rows, hidden);
  matmul_.run(input_, std::array{Product{.w = args.router,
                                         .gate = {},
                                         .tokens = matmul_.all_tokens(args.rows),
                                         .out = scores_.data(),
                                         .stride = experts,
                                         .exact = true}});
  expert_.resize(static_cast<size_t>(args.rows * k));
  weight_.resize(static_cast<size_t>(args.rows * k));
  for (int64_t r = 0; r < args.rows; ++r) {
    float* scores = scores_.data() + r * experts;
    double total = 0.0;
    float best = 0.0f;
    for (int64_t slot = 0; slot < k; ++slot) {
      const auto chosen = static_cast<int>(std::max_element(scores, scores + experts) - scores);  // first of equals
      const auto at = static_cast<size_t>(r * k + slot);
      if (slot == 0) best = scores[chosen];
      expert_[at] = chosen;
      weight_[at] = static_cast<float>(std::exp(static_cast<double>(scores[chosen]) - best));
      total += weight_[at];
      scores[chosen] = -HUGE_VALF;
    }
    for (int64_t slot = 0; slot < k; ++slot) {
      const auto at = static_cast<size_t>(r * k + slot);
      weight_[at] = static_cast<float>(weight_[at] / total) * args.per_expert_scale[expert_[at]];
    }
  }
}

void CpuMoe::run(const MoeArgs& args, float* branches) {
  const int64_t hidden = args.router.cols;
  const int64_t experts = args.gate.experts;
  const auto k = static_cast<int64_t>(args.experts_per_token);
  const int64_t width = args.gate.rows;
  const int64_t pairs = args.rows * k;
  route(args);

  // Pairs (token, slot) in the order of their experts; within an expert in token order.
  first_pair_.assign(static_cast<size_t>(experts) + 1, 0);
  for (const int expert : expert_) ++first_pair_[static_cast<size_t>(expert) + 1];
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) first_pair_[e + 1] += first_pair_[e];
  pair_row_.resize(static_cast<size_t>(pairs));
  pair_of_slot_.resize(static_cast<size_t>(pairs));
  {
    std::vector<int64_t>& next = first_pair_;  // advanced while filling, then shifted back
    for (size_t slot = 0; slot < static_cast<size_t>(pairs); ++slot) {
      const int64_t pair = next[static_cast<size_t>(expert_[slot])]++;
      pair_row_[static_cast<size_t>(pair)] = static_cast<int64_t>(slot) / k;
      pair_of_slot_[slot] = pair;
    }
    for (auto e = static_cast<size_t>(experts); e > 0; --e) next[e] = next[e - 1];
    next[0] = 0;
  }
  const auto pairs_of = [&](int64_t e) {
    const auto first = static_cast<size_t>(first_pair_[static_cast<size_t>(e)]);
    return std::pair(first, static_cast<size_t>(first_pair_[static_cast<size_t>(e) + 1]) - first);
  };

  // Gate and up of every chosen expert in one section, then every down.
  pool_.run(args.rows, [&](int64_t r, int) {
    kernels_.rms_norm(args.residual.x + r * hidden, args.expert_pre_norm.weight, args.expert_pre_norm.eps, hidden,
                      normed_.data() + r * hidden);
  });
  active_.resize(static_cast<size_t>(pairs * width));
  out_.resize(static_cast<size_t>(pairs * hidden));
  const auto run_all = [&](Activations& x, bool down) {
    products_.clear();
    for (int64_t e = 0; e < experts; ++e) {
      const auto [first, count] = pairs_of(e);
      if (count == 0) continue;
      const auto at = static_cast<int64_t>(first);
      if (down) {
        products_.push_back({.w = args.down.at(e),
                             .gate = {},
                             .tokens = matmul_.all_tokens(pairs).subspan(first, count),
                             .out = out_.data() + at * hidden,
                             .stride = hidden});
      } else {
        products_.push_back({.w = args.up.at(e),
                             .gate = args.gate.at(e),
                             .tokens = std::span(pair_row_).subspan(first, count),
                             .out = active_.data() + at * width,
                             .stride = width});
      }
    }
    matmul_.run(x, products_);
  };
  matmul_.set_input(input_, normed_.data(), args.rows, hidden);
  run_all(input_, false);
  matmul_.set_input(inner_, active_.data(), pairs, width);
  run_all(inner_, true);

  pool_.run(args.rows, [&](int64_t r, int) {
    float* row = branches + r * hidden;
    float* sum = normed_.data() + r * hidden;  // the expert input is no longer needed
    std::fill(sum, sum + hidden, 0.0f);
    for (int64_t slot = 0; slot < k; ++slot) {
      const auto at = static_cast<size_t>(r * k + slot);
      kernels_.axpby(out_.data() + pair_of_slot_[at] * hidden, weight_[at], 1.0f, hidden, sum);
    }
    kernels_.rms_norm(row, args.dense_post_norm.weight, args.dense_post_norm.eps, hidden, row);
    kernels_.add_rms_norm(sum, args.expert_post_norm.weight, args.expert_post_norm.eps, hidden, 1.0f, row);
  });
}

}  // namespace carat

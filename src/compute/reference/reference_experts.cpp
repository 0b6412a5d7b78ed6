// Gemma 4 26B-A4B: the dense MLP and the routed experts, side by side.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "compute/reference/reference_math.h"
#include "compute/reference/reference_operations.h"

namespace carat::reference {
namespace {

struct Choice {
  int64_t expert;
  double weight;
};

/// The `count` largest of softmax(scores), renormalised to one, each times its expert's scale.
std::vector<Choice> route(std::span<const double> scores, int count, const float* per_expert_scale) {
  std::vector<Choice> choices;
  const double largest = *std::max_element(scores.begin(), scores.end());
  for (size_t e = 0; e < scores.size(); ++e) {
    choices.push_back({static_cast<int64_t>(e), std::exp(scores[e] - largest)});
  }
  // By score rather than by probability: exp may tie what the scores tell apart. Stable, so ties go to the lowest
  // index.
  std::stable_sort(choices.begin(), choices.end(), [&](const Choice& a, const Choice& b) {
    return scores[static_cast<size_t>(a.expert)] > scores[static_cast<size_t>(b.expert)];
  });
  choices.resize(static_cast<size_t>(count));
  const double sum = std::accumulate(choices.begin(), choices.end(), 0.0,
                                     [](double total, const Choice& choice) { return total + choice.weight; });
  for (Choice& choice : choices) choice.weight *= per_expert_scale[choice.expert] / sum;
  return choices;
}

/// The weighted sum of the chosen experts, for one row.
Rows experts(const MoeArgs& args, const Rows& x, const std::vector<Choice>& choices) {
  Rows sum(1, x.width());
  for (const Choice& choice : choices) {
    const MlpWeights weights{args.gate.at(choice.expert), args.up.at(choice.expert), args.down.at(choice.expert)};
    const Rows y = gated_mlp(weights, x);
    for (size_t i = 0; i < y.all().size(); ++i) sum.all()[i] += choice.weight * y.all()[i];
  }
  return sum;
}

}  // namespace

void moe(const MoeArgs& args) {
  const int64_t hidden = args.router.cols;
  const Rows x(args.residual.x, args.rows, hidden);
  Rows both = normalised(gated_mlp(args.dense, normalised(x, args.dense_pre_norm)), args.dense_post_norm);
  const Rows scores = multiply(args.router, normalised(x, args.router_norm));
  for (int64_t r = 0; r < args.rows; ++r) {
    const std::vector<Choice> choices = route(scores[r], args.experts_per_token, args.per_expert_scale);
    const Rows row = normalised(Rows(args.residual.x + r * hidden, 1, hidden), args.expert_pre_norm);
    const Rows routed = normalised(experts(args, row, choices), args.expert_post_norm);
    for (size_t i = 0; i < routed.all().size(); ++i) both[r][i] += routed.all()[i];
  }
  add_normalised(std::move(both), args.residual);
}

}  // namespace carat::reference

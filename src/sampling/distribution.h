// The distribution over a vocabulary while filters narrow it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "carat/sampling.h"

namespace carat {

struct Candidate {
  float logit;
  int id;
};

/// Ranks before: greater logit, then lower id.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/// The tokens that may still be drawn. Starts as all tokens, without a list of them; the first filter makes the list.
/// Nothing sorts the vocabulary: filters select by partition, or with a heap of what they keep. The list is in the
/// order of ids, so that a draw does not depend on how it came about. Tokens of logit -infinity are never in it.
class Distribution {
 public:
  /// All tokens. `best` is the greatest logit and finite; none is NaN. The logits must outlive the use.
  void start(std::span<const float> logits, float best);

  // The filters of SamplingParams, which defines them. Each leaves at least one token.
  void keep_top_p(float p);
  void keep_min_p(float p);
  void drop_top_choices(float threshold, std::span<const int> protected_ids);  // XTC, once it is to be done
  void keep_top_k(int k);

  /// The first token at which the cumulated probability, in the order of ids, exceeds `u` in [0, 1).
  int draw(float temperature, double u);
  int draw(const HlgParams& hlg, float temperature, double u);

  /// Sum of exp(logit - best) over all tokens, whatever the filters left.
  double total();
  /// The k best of all tokens, best first. Valid until another member is called.
  std::span<const Candidate> best_of_all(int k);
  /// Log-probability at temperature 1, among all tokens, of one with this logit.
  float logprob(float logit);
  /// The k most probable of all tokens with theirs, best first.
  std::vector<TokenLogprob> top_logprobs(int k);

 private:
  void list_from(float lowest);
  void list_all();
  template <typename Weight>
  int draw_by(const Weight& weight, double u);

  std::span<const float> logits_;
  float best_ = 0.0f;
  bool listed_ = false;
  std::optional<double> log_total_;  // once it has been asked for
  std::vector<Candidate> list_;
  std::vector<Candidate> selected_;  // scratch of selections
  std::vector<double> sums_;         // weights of the blocks of the vocabulary
};

}  // namespace carat

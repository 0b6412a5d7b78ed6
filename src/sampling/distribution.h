// The distribution over a vocabulary while filters narrow it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carat/sampling.h"
#include "sampling/logit_blocks.h"

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
/// Nothing sorts the vocabulary, and blocks of logits without a token that is kept are not read a second time: filters
/// select by the greatest of blocks, then by partition. The list is in the order of ids, so that a draw does not depend
/// on how it came about. Tokens of logit -infinity or NaN are never in it.
class Distribution {
 public:
  /// All tokens. +infinity is beyond what the others can deal with: see best(). `roughly`: keep_top_p() will be
  /// called after keep_top_k(): it is faster where it knows the total roughly. The logits must outlive the use.
  void start(std::span<const float> logits, bool roughly = false);
  /// Tokens whose bit (t % 64 of allowed[t / 64]) is set; the logits of others become unusable.
  void start(std::span<float> logits, std::span<const uint64_t> allowed, bool roughly = false);
  /// The greatest logit. REQUIRES of all that follows: it is finite.
  float best() const { return blocks_.best(); }
  /// The first token by rank.
  int best_id() const { return blocks_.best_id(); }

  // The filters of SamplingParams, which defines them. Each leaves at least one token. Top-p, min-p and top-k keep
  // tokens from the best on, so that these three may come in any order; but XTC after top-p and min-p, and before
  // top-k.
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
  struct Range {
    double low;
    double high;
  };
  enum class Cut { kDone, kListTooShort, kUnknown };

  void restart();
  void collect(float lowest, std::vector<Candidate>& into) const;
  void collect_best(int k, std::vector<Candidate>& into);
  Range total_beside(std::span<const Candidate> known);
  Cut cut_at(double p, Range total);
  void drop_after(const Candidate& last);
  template <typename Weight>
  int draw_by(const Weight& weight, double u);

  LogitBlocks blocks_;
  bool listed_ = false;
  std::optional<double> total_;  // once it has been asked for
  std::vector<Candidate> list_;
  std::vector<Candidate> selected_;  // scratch of selections
  std::vector<double> sums_;         // scratch: weights of the blocks of what is drawn from
  std::vector<double> total_sums_;   // weights of the blocks of all tokens, once total_ is known
};

}  // namespace carat

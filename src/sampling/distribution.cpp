#include "sampling/distribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sampling/hlg.h"
#include "sampling/vector_math.h"

namespace carat {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Tokens whose weights are summed before they join the total: a draw finds its block first, then its token.
constexpr size_t kBlock = LogitBlocks::kSize;

// Weights of a logit or of four, of NaN and -infinity 0. They rise with the logit.

/// exp(logit - best).
struct PlainWeight {
  float best;
  template <typename F>
  F operator()(F logit) const {
    return exp_of_negative(logit - best);
  }
};

/// exp((logit - best) / temperature). Division and not a product with 1 / T: no overflow, however small T is.
struct TemperatureWeight {
  float best;
  float temperature;
  template <typename F>
  F operator()(F logit) const {
    return exp_of_negative((logit - best) / temperature);
  }
};

/// exp((curve(logit) - curve(best)) / temperature).
struct HlgWeight {
  HlgCurve curve;
  float best;
  float temperature;
  float curve_at_best;
  template <typename F>
  F operator()(F logit) const {
    // Where the logit is -infinity the curve has no meaning: 0 stands in and the weight is put out.
    const auto possible = logit > kNever;
    const F exponent = (curve(select(possible, logit - best, F{})) - curve_at_best) / temperature;
    return select(possible, exp_of_negative(select(exponent < 0.0f, exponent, F{})), F{});
  }
};

/// All tokens, and a list of some: what weights are summed and drawn over, in the order of ids.
struct AllTokens {
  const LogitBlocks& blocks;
  size_t size() const { return blocks.logits().size(); }
  float logit(size_t i) const { return blocks.logits()[i]; }
  Floats four(size_t i) const { return load(&blocks.logits()[i]); }
  int id(size_t i) const { return static_cast<int>(i); }
  /// False when no token of the block weighs anything.
  template <typename Weight>
  bool weighs(size_t block, const Weight& weight) const {
    return weight(blocks.greatest(block)) > 0.0f;
  }
};

struct SomeTokens {
  std::span<const Candidate> candidates;
  size_t size() const { return candidates.size(); }
  float logit(size_t i) const { return candidates[i].logit; }
  Floats four(size_t i) const { return Floats{logit(i), logit(i + 1), logit(i + 2), logit(i + 3)}; }
  int id(size_t i) const { return candidates[i].id; }
  template <typename Weight>
  bool weighs(size_t /*block*/, const Weight& /*weight*/) const {
    return true;
  }
};

/// The weight of tokens [first, end), kBlock at most, summed in one fixed order: every fourth token by itself.
template <typename Tokens, typename Weight>
double block_sum(const Tokens& tokens, size_t first, size_t end, const Weight& weight) {
  // Weighed first and summed then: together, GCC keeps the sums in memory.
  std::array<float, kBlock> weights;
  size_t count = 0;
  for (; first + count + 4 <= end; count += 4) store(weight(tokens.four(first + count)), &weights[count]);
  for (; first + count < end; ++count) weights[count] = weight(tokens.logit(first + count));
  for (; count % 4 != 0; ++count) weights[count] = 0.0f;
  std::array<double, 4> sums{};
  for (size_t i = 0; i < count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) sums[lane] += static_cast<double>(weights[i + lane]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// The weight of all tokens; per block in `sums`.
template <typename Tokens, typename Weight>
double sum_blocks(const Tokens& tokens, const Weight& weight, std::vector<double>& sums) {
  sums.clear();
  double total = 0.0;
  for (size_t first = 0; first < tokens.size(); first += kBlock) {
    const bool weighs = tokens.weighs(first / kBlock, weight);
    sums.push_back(weighs ? block_sum(tokens, first, std::min(first + kBlock, tokens.size()), weight) : 0.0);
    total += sums.back();
  }
  return total;
}

/// The first token at which the cumulated weight exceeds `target`. `sums`: those of sum_blocks(). REQUIRES: some weight
/// is positive.
template <typename Tokens, typename Weight>
int draw_from(const Tokens& tokens, const Weight& weight, std::span<const double> sums, double target) {
  size_t chosen = 0;
  double before = 0.0;
  double reached = 0.0;
  for (size_t block = 0; block < sums.size(); ++block) {
    if (sums[block] <= 0.0) continue;
    chosen = block;
    before = reached;
    reached += sums[block];
    if (reached > target) break;
  }
  // Where rounding leaves the target just beyond the end, the last possible token is it.
  int last = -1;
  reached = before;
  for (size_t i = chosen * kBlock; i < std::min(tokens.size(), (chosen + 1) * kBlock); ++i) {
    const auto share = static_cast<double>(weight(tokens.logit(i)));
    if (share > 0.0) last = tokens.id(i);
    reached += share;
    if (reached > target) break;
  }
  return last;
}

struct Prefix {
  Candidate last;
  double mass_before;  // of those that rank before it
};

/// The last candidate (by rank) of the shortest prefix of the ranking that weighs `target` or more. Weighted
/// quickselect: partitions, never sorts more than a few. Reorders the candidates.
template <typename Weight>
Prefix prefix_of_mass(std::span<Candidate> candidates, const Weight& weight, double target, std::vector<double>& sums) {
  constexpr size_t kFew = 32;
  size_t first = 0;
  size_t end = candidates.size();
  double mass_before = 0.0;
  const auto begin = candidates.begin();
  const auto at = [&](size_t index) { return begin + static_cast<std::ptrdiff_t>(index); };
  while (end - first > kFew) {
    const size_t middle = first + (end - first) / 2;
    std::nth_element(at(first), at(middle), at(end), better);
    const double mass = mass_before + sum_blocks(SomeTokens{candidates.subspan(first, middle - first)}, weight, sums);
    if (mass >= target) {
      end = middle;
    } else {
      first = middle;
      mass_before = mass;
    }
  }
  std::sort(at(first), at(end), better);
  for (size_t i = first; i + 1 < end; ++i) {
    const double mass = mass_before + static_cast<double>(weight(candidates[i].logit));
    if (mass >= target) return {candidates[i], mass_before};
    mass_before = mass;
  }
  return {candidates[end - 1], mass_before};
}

}  // namespace

void Distribution::start(std::span<const float> logits, bool roughly) {
  blocks_.read(logits, roughly);
  restart();
}

void Distribution::start(std::span<float> logits, std::span<const uint64_t> allowed, bool roughly) {
  blocks_.read(logits, allowed, roughly);
  restart();
}

void Distribution::restart() {
  listed_ = false;
  total_.reset();
  sums_.reserve(blocks_.count());
  total_sums_.reserve(blocks_.count());
}

double Distribution::total() {
  if (!total_) total_ = sum_blocks(AllTokens{blocks_}, PlainWeight{best()}, total_sums_);
  return *total_;
}

float Distribution::logprob(float logit) {
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(best())) - std::log(total()));
}

std::vector<TokenLogprob> Distribution::top_logprobs(int k) {
  std::vector<TokenLogprob> top;
  if (k <= 0) return top;
  const std::span<const Candidate> best = best_of_all(k);
  top.reserve(best.size());
  for (const Candidate& candidate : best) top.push_back({candidate.id, logprob(candidate.logit)});
  return top;
}

/// The tokens of logit `lowest` or more.
void Distribution::collect(float lowest, std::vector<Candidate>& into) const {
  into.clear();
  into.reserve(blocks_.logits().size());
  blocks_.for_each_from(std::max(lowest, std::numeric_limits<float>::lowest()), [&](float logit, int id) {
    into.push_back({logit, id});
  });
}

/// The k best tokens and perhaps more.
void Distribution::collect_best(int k, std::vector<Candidate>& into) {
  const auto wanted = static_cast<size_t>(k);
  if (const std::optional<float> lowest = blocks_.reached_by(wanted)) return collect(*lowest, into);
  for (const float depth : {8.0f, 16.0f, 32.0f, std::numeric_limits<float>::infinity()}) {
    collect(best() - depth, into);
    if (into.size() >= wanted) return;
  }
}

/// Drops from the list what ranks after `last`.
void Distribution::drop_after(const Candidate& last) {
  std::erase_if(list_, [&](const Candidate& candidate) { return better(last, candidate); });
}

/// Between what limits total() lies: the weight of `known`, which holds all tokens from the best to some other, and
/// what is known roughly of the others.
Distribution::Range Distribution::total_beside(std::span<const Candidate> known) {
  if (total_) return {*total_, *total_};
  const double mass = sum_blocks(SomeTokens{known}, PlainWeight{best()}, sums_);
  if (!blocks_.has_rough_total()) return {mass, std::numeric_limits<double>::infinity()};
  double rough = 0.0;
  for (const Candidate& candidate : known) rough += static_cast<double>(rough_exp(candidate.logit));
  constexpr double kSumError = 1e-5;  // of the float sums of blocks, and of weights beside exponentials
  const double scale = std::exp(-static_cast<double>(best()));
  const double rest = (blocks_.rough_total() - rough) * scale;
  const double error = kSumError * blocks_.rough_total() * scale;
  return {mass + std::max(0.0, (rest - error) * (1.0 - kRoughError) / kRoughExcess),
          mass + (rest + error) * (1.0 + kRoughError)};
}

/// Keeps of the list what holds p of a total. Does nothing when the list holds less, or when the total is not known
/// well enough to tell.
Distribution::Cut Distribution::cut_at(double p, Range total) {
  const PlainWeight weight{best()};
  const double mass = sum_blocks(SomeTokens{list_}, weight, sums_);
  if (mass < p * total.low) return Cut::kListTooShort;
  if (mass < p * total.high) return Cut::kUnknown;
  selected_.reserve(blocks_.logits().size());
  selected_.assign(list_.begin(), list_.end());
  const Prefix prefix = prefix_of_mass(selected_, weight, p * total.high, sums_);
  // Were the total the lowest that it may be, would the same token be the last?
  if (prefix.mass_before >= p * total.low) return Cut::kUnknown;
  drop_after(prefix.last);
  return Cut::kDone;
}

void Distribution::keep_top_p(float p) {
  const auto exact_total = [&] { return Range{total(), total()}; };
  if (listed_) {
    // What is wanted of the total is seldom more than whether the list holds p of it.
    constexpr float kDepth = 12.0f;
    if (cut_at(p, total_beside(list_)) != Cut::kUnknown) return;
    if (!total_ && blocks_.has_rough_total()) {
      collect(best() - kDepth, selected_);
      if (cut_at(p, total_beside(selected_)) != Cut::kUnknown) return;
    }
    cut_at(p, exact_total());
    return;
  }
  listed_ = true;
  // Few tokens hold most of a model's probability: look among those near the best before looking at all.
  for (const float depth : {6.0f, 9.0f, 13.0f, std::numeric_limits<float>::infinity()}) {
    collect(best() - depth, list_);
    if (cut_at(p, exact_total()) == Cut::kDone) return;
  }
}

void Distribution::keep_min_p(float p) {
  const double lowest = static_cast<double>(best()) + std::log(static_cast<double>(p));
  if (!listed_) {
    constexpr double kLowestFloat = std::numeric_limits<float>::lowest();
    listed_ = true;
    // Rounded down: the exact comparison follows.
    collect(std::nextafter(static_cast<float>(std::max(lowest, kLowestFloat)), kNever), list_);
  }
  std::erase_if(list_, [&](const Candidate& candidate) { return static_cast<double>(candidate.logit) < lowest; });
}

void Distribution::drop_top_choices(float threshold, std::span<const int> protected_ids) {
  if (!listed_) collect(kNever, list_);
  listed_ = true;
  const PlainWeight weight{best()};
  const double least = static_cast<double>(threshold) * sum_blocks(SomeTokens{list_}, weight, sums_);
  // Found by weight, dropped by logit: logits that differ may have weights that do not.
  float lowest = std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : list_) {
    const bool counts = static_cast<double>(weight(candidate.logit)) > least;
    if (counts) lowest = std::min(lowest, candidate.logit);
  }
  std::erase_if(list_, [&](const Candidate& candidate) {
    return candidate.logit > lowest &&
           std::find(protected_ids.begin(), protected_ids.end(), candidate.id) == protected_ids.end();
  });
}

void Distribution::keep_top_k(int k) {
  const auto wanted = static_cast<size_t>(k);
  if (!listed_) {
    if (wanted >= blocks_.logits().size()) return;
    listed_ = true;
    collect_best(k, list_);
  }
  if (wanted >= list_.size()) return;
  selected_.reserve(blocks_.logits().size());
  selected_.assign(list_.begin(), list_.end());
  std::nth_element(selected_.begin(), selected_.begin() + (k - 1), selected_.end(), better);
  drop_after(selected_[wanted - 1]);
}

std::span<const Candidate> Distribution::best_of_all(int k) {
  collect_best(k, selected_);
  const size_t found = std::min(static_cast<size_t>(k), selected_.size());
  std::partial_sort(selected_.begin(), selected_.begin() + static_cast<std::ptrdiff_t>(found), selected_.end(), better);
  return std::span(selected_).first(found);
}

template <typename Weight>
int Distribution::draw_by(const Weight& weight, double u) {
  const auto draw = [&](const auto& tokens) {
    const double target = u * sum_blocks(tokens, weight, sums_);
    return draw_from(tokens, weight, sums_, target);
  };
  return listed_ ? draw(SomeTokens{list_}) : draw(AllTokens{blocks_});
}

int Distribution::draw(float temperature, double u) {
  // The log-probabilities have taken these sums already.
  if (!listed_ && temperature == 1.0f && total_) {
    return draw_from(AllTokens{blocks_}, PlainWeight{best()}, total_sums_, u * *total_);
  }
  float greatest = best();
  if (listed_) {  // XTC may have dropped the best token
    const auto first = std::max_element(list_.begin(), list_.end(),
                                        [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; });
    greatest = first->logit;
  }
  if (temperature == 1.0f) return draw_by(PlainWeight{greatest}, u);
  return draw_by(TemperatureWeight{greatest, temperature}, u);
}

int Distribution::draw(const HlgParams& hlg, float temperature, double u) {
  const HlgCurve curve(hlg);
  if (curve.is_plain()) return draw(temperature, u);
  return draw_by(HlgWeight{curve, best(), temperature, curve(0.0f)}, u);
}

}  // namespace carat

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

/// Logits whose weights are summed before they join the total: a draw finds its block first, then its token.
constexpr size_t kBlock = 512;

/// exp((logit - best) / temperature). Division and not a product with 1 / T: no overflow, however small T is.
struct TemperatureWeight {
  float best;
  float temperature;
  float operator()(float logit) const { return exp_of_negative((logit - best) / temperature); }
};

/// exp((curve(logit) - curve(best)) / temperature).
struct HlgWeight {
  HlgCurve curve;
  float best;
  float temperature;
  float curve_at_best;
  float operator()(float logit) const {
    // Where the logit is -infinity the curve has no meaning: 0 stands in and the weight is put out.
    const bool possible = logit > kNever;
    const float exponent = (curve(select(possible, logit - best, 0.0f)) - curve_at_best) / temperature;
    return select(possible, exp_of_negative(select(exponent < 0.0f, exponent, 0.0f)), 0.0f);
  }
};

/// All tokens, and a list of some: what weights are summed and drawn over, in the order of ids.
struct AllTokens {
  std::span<const float> logits;
  size_t size() const { return logits.size(); }
  float logit(size_t i) const { return logits[i]; }
  int id(size_t i) const { return static_cast<int>(i); }
};

struct SomeTokens {
  std::span<const Candidate> candidates;
  size_t size() const { return candidates.size(); }
  float logit(size_t i) const { return candidates[i].logit; }
  int id(size_t i) const { return candidates[i].id; }
};

/// The weight of tokens [first, first + count), count <= kBlock, summed in one fixed order, four sums wide so that it
/// can be vectorised.
template <typename Tokens, typename Weight>
double block_sum(const Tokens& tokens, size_t first, size_t count, const Weight& weight) {
  std::array<float, kBlock> weights;
  for (size_t i = 0; i < count; ++i) weights[i] = weight(tokens.logit(first + i));
  for (size_t i = count; i % 4 != 0; ++i) weights[i] = 0.0f;
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
    sums.push_back(block_sum(tokens, first, std::min(kBlock, tokens.size() - first), weight));
    total += sums.back();
  }
  return total;
}

/// The first token at which the cumulated weight exceeds u of the total. REQUIRES: some weight is positive.
template <typename Tokens, typename Weight>
int draw_from(const Tokens& tokens, const Weight& weight, std::vector<double>& sums, double u) {
  const double target = u * sum_blocks(tokens, weight, sums);
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

/// Offers a candidate to a heap of at most k, whose front is the worst. Candidates must come in the order of ids.
void offer(std::vector<Candidate>& heap, size_t k, Candidate candidate) {
  if (heap.size() < k) {
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), better);
  } else if (candidate.logit > heap.front().logit) {
    std::pop_heap(heap.begin(), heap.end(), better);
    heap.back() = candidate;
    std::push_heap(heap.begin(), heap.end(), better);
  }
}

/// The last candidate (by rank) of the shortest prefix of the ranking that weighs `target` or more. Weighted
/// quickselect: partitions, never sorts more than a few. Reorders the candidates.
template <typename Weight>
Candidate last_of_mass(std::span<Candidate> candidates, const Weight& weight, double target,
                       std::vector<double>& sums) {
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
    mass_before += static_cast<double>(weight(candidates[i].logit));
    if (mass_before >= target) return candidates[i];
  }
  return candidates[end - 1];
}

}  // namespace

void Distribution::start(std::span<const float> logits, float best) {
  logits_ = logits;
  best_ = best;
  listed_ = false;
  log_total_.reset();
  sums_.reserve(logits.size() / kBlock + 1);
}

double Distribution::total() {
  return sum_blocks(AllTokens{logits_}, TemperatureWeight{best_, 1.0f}, sums_);
}

float Distribution::logprob(float logit) {
  if (!log_total_) log_total_ = std::log(total());
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(best_)) - *log_total_);
}

std::vector<TokenLogprob> Distribution::top_logprobs(int k) {
  std::vector<TokenLogprob> top;
  if (k <= 0) return top;
  const std::span<const Candidate> best = best_of_all(k);
  top.reserve(best.size());
  for (const Candidate& candidate : best) top.push_back({candidate.id, logprob(candidate.logit)});
  return top;
}

/// Lists the tokens of logit `lowest` or more.
void Distribution::list_from(float lowest) {
  listed_ = true;
  list_.clear();
  list_.reserve(logits_.size());
  for (size_t id = 0; id < logits_.size(); ++id) {
    if (logits_[id] >= lowest) list_.push_back({logits_[id], static_cast<int>(id)});
  }
}

void Distribution::list_all() {
  list_from(std::numeric_limits<float>::lowest());
}

void Distribution::keep_top_p(float p) {
  const TemperatureWeight weight{best_, 1.0f};
  const double target = static_cast<double>(p) * total();
  // Few tokens hold most of a model's probability: look among those near the best before looking at all.
  for (const float depth : {6.0f, 12.0f, std::numeric_limits<float>::infinity()}) {
    list_from(std::max(best_ - depth, std::numeric_limits<float>::lowest()));
    if (sum_blocks(SomeTokens{list_}, weight, sums_) >= target) break;
  }
  selected_.reserve(logits_.size());
  selected_.assign(list_.begin(), list_.end());
  const Candidate last = last_of_mass(selected_, weight, target, sums_);
  std::erase_if(list_, [&](const Candidate& candidate) { return better(last, candidate); });
}

void Distribution::keep_min_p(float p) {
  const double lowest = static_cast<double>(best_) + std::log(static_cast<double>(p));
  if (!listed_) {
    constexpr double kLowestFloat = std::numeric_limits<float>::lowest();
    // Rounded down: the exact comparison follows.
    list_from(std::nextafter(static_cast<float>(std::max(lowest, kLowestFloat)), kNever));
  }
  std::erase_if(list_, [&](const Candidate& candidate) { return static_cast<double>(candidate.logit) < lowest; });
}

void Distribution::drop_top_choices(float threshold, std::span<const int> protected_ids) {
  if (!listed_) list_all();
  const TemperatureWeight weight{best_, 1.0f};
  const double least = static_cast<double>(threshold) * sum_blocks(SomeTokens{list_}, weight, sums_);
  // Found by weight, dropped by logit: logits that differ may have weights that do not.
  float lowest = std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : list_) {
    if (candidate.logit<lowest&& static_cast<double>(weight(candidate.logit))> least) lowest = candidate.logit;
  }
  std::erase_if(list_, [&](const Candidate& candidate) {
    return candidate.logit > lowest &&
           std::find(protected_ids.begin(), protected_ids.end(), candidate.id) == protected_ids.end();
  });
}

void Distribution::keep_top_k(int k) {
  const auto wanted = static_cast<size_t>(k);
  constexpr size_t kSmallHeap = 1024;
  if (!listed_ && wanted > kSmallHeap) list_all();
  if (!listed_) {
    if (wanted >= logits_.size()) return;
    const Candidate last = best_of_all(k).back();
    list_from(last.logit);
    std::erase_if(list_, [&](const Candidate& candidate) { return better(last, candidate); });
    return;
  }
  if (wanted >= list_.size()) return;
  selected_.reserve(logits_.size());
  selected_.assign(list_.begin(), list_.end());
  std::nth_element(selected_.begin(), selected_.begin() + (k - 1), selected_.end(), better);
  const Candidate last = selected_[wanted - 1];
  std::erase_if(list_, [&](const Candidate& candidate) { return better(last, candidate); });
}

std::span<const Candidate> Distribution::best_of_all(int k) {
  const size_t wanted = std::min(static_cast<size_t>(k), logits_.size());
  selected_.clear();
  selected_.reserve(logits_.size());
  if (wanted > 0) {
    for (size_t id = 0; id < logits_.size(); ++id) {
      if (logits_[id] > kNever) offer(selected_, wanted, {logits_[id], static_cast<int>(id)});
    }
  }
  std::sort_heap(selected_.begin(), selected_.end(), better);
  return selected_;
}

template <typename Weight>
int Distribution::draw_by(const Weight& weight, double u) {
  return listed_ ? draw_from(SomeTokens{list_}, weight, sums_, u) : draw_from(AllTokens{logits_}, weight, sums_, u);
}

int Distribution::draw(float temperature, double u) {
  float best = best_;
  if (listed_) {  // XTC may have dropped the best token
    best = std::max_element(list_.begin(), list_.end(), [](const Candidate& a, const Candidate& b) {
             return a.logit < b.logit;
           })->logit;
  }
  return draw_by(TemperatureWeight{best, temperature}, u);
}

int Distribution::draw(const HlgParams& hlg, float temperature, double u) {
  const HlgCurve curve(hlg);
  if (curve.is_plain()) return draw(temperature, u);
  return draw_by(HlgWeight{curve, best_, temperature, curve(0.0f)}, u);
}

}  // namespace carat

// The same filters again, slow and in double precision: sorts, sums and sets, straight from their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "sampling/sampling.h"

namespace carat::test {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Ids by rank: greater logit first, then lower id; without -infinity.
inline std::vector<int> ranking(const std::vector<float>& logits) {
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
  std::erase_if(ids, [&](int id) { return logits[size_t(id)] == kNever; });
  return ids;
}

/// softmax over `ids` (all other tokens: 0).
inline std::vector<double> softmax(const std::vector<float>& logits, const std::vector<int>& ids, double temperature) {
  std::vector<double> p(logits.size(), 0.0);
  double best = -std::numeric_limits<double>::infinity();
  for (int id : ids) best = std::max(best, double(logits[size_t(id)]));
  double total = 0.0;
  for (int id : ids) total += p[size_t(id)] = std::exp((double(logits[size_t(id)]) - best) / temperature);
  for (double& value : p) value /= total;
  return p;
}

/// What is left, by rank, and how close the nearest decision was: below about 1e-6 float32 may decide otherwise.
struct Survivors {
  std::vector<int> ids;
  double margin = 1.0;
};

inline Survivors top_p(const std::vector<float>& logits, double p) {
  Survivors left;
  const std::vector<int> all = ranking(logits);
  const std::vector<double> probability = softmax(logits, all, 1.0);
  double before = 0.0;
  for (int id : all) {
    left.margin = std::min(left.margin, std::abs(before - p));
    if (before < p) left.ids.push_back(id);
    before += probability[size_t(id)];
  }
  return left;
}

inline Survivors min_p(const std::vector<float>& logits, Survivors in, double p) {
  if (in.ids.empty()) return in;
  const double lowest = double(logits[size_t(in.ids.front())]) + std::log(p);
  for (int id : in.ids) in.margin = std::min(in.margin, std::abs(double(logits[size_t(id)]) - lowest));
  if (p == 1.0) in.margin = 1.0;  // log(1) is exact
  std::erase_if(in.ids, [&](int id) { return double(logits[size_t(id)]) < lowest; });
  return in;
}

inline Survivors xtc(const std::vector<float>& logits, Survivors in, double threshold, const std::vector<int>& safe) {
  const std::vector<double> q = softmax(logits, in.ids, 1.0);
  float lowest = std::numeric_limits<float>::infinity();
  for (int id : in.ids) {
    in.margin = std::min(in.margin, std::abs(q[size_t(id)] - threshold));
    if (q[size_t(id)] > threshold) lowest = std::min(lowest, logits[size_t(id)]);
  }
  std::erase_if(in.ids, [&](int id) {
    return logits[size_t(id)] > lowest && std::find(safe.begin(), safe.end(), id) == safe.end();
  });
  return in;
}

inline Survivors top_k(Survivors in, int k) {
  if (in.ids.size() > size_t(k)) in.ids.resize(size_t(k));
  return in;
}

inline Survivors everything(const std::vector<float>& logits) {
  return {ranking(logits), 1.0};
}

/// All filters; `with_xtc`: whether XTC strikes.
inline Survivors filtered(const std::vector<float>& logits, const SamplingParams& params, bool with_xtc,
                          const std::vector<int>& safe = {}) {
  Survivors left = params.top_p > 0.0f && params.top_p < 1.0f ? top_p(logits, params.top_p) : everything(logits);
  if (params.min_p > 0.0f) left = min_p(logits, left, params.min_p);
  if (with_xtc) left = xtc(logits, left, params.xtc_threshold, safe);
  if (params.top_k > 0) left = top_k(left, params.top_k);
  return left;
}

/// The HLG curve over temperature, as the formula stands.
inline double hlg(const HlgParams& params, double below_best, double temperature) {
  const double m = 1.0 / temperature;
  const double z = below_best + double(params.pivot_offset);
  const double w = params.width, shoulder = params.shoulder, toe = params.toe;
  if (z > w) return m * w + m * (shoulder > 0 ? shoulder * std::log(1 + (z - w) / shoulder) : z - w);
  if (z < -w) return -m * w - m * (toe > 0 ? toe * std::log(1 + (-z - w) / toe) : -z - w);
  return m * z;
}

/// The probability with which each token is drawn.
inline std::vector<double> draw_probabilities(const std::vector<float>& logits, const SamplingParams& params,
                                              const std::vector<int>& safe = {}) {
  if (params.hlg.enabled) {
    const std::vector<int> all = ranking(logits);
    std::vector<double> p(logits.size(), 0.0);
    double total = 0.0;
    const double best = logits[size_t(all.front())];
    const double top = hlg(params.hlg, 0.0, params.temperature);
    for (int id : all) {
      const double value = hlg(params.hlg, double(logits[size_t(id)]) - best, params.temperature);
      total += p[size_t(id)] = std::exp(value - top);
    }
    for (double& value : p) value /= total;
    return p;
  }
  const double strikes = params.xtc_probability;
  std::vector<double> p = softmax(logits, filtered(logits, params, false).ids, params.temperature);
  const auto q = softmax(logits, filtered(logits, params, true, safe).ids, params.temperature);
  for (size_t i = 0; i < p.size(); ++i) p[i] = (1 - strikes) * p[i] + strikes * q[i];
  return p;
}

/// Where a chi-square statistic of `freedom` degrees lies in standard deviations of a normal (Wilson and Hilferty).
inline double chi_square_sigmas(double statistic, double freedom) {
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace carat::test

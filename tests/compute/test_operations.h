// Operations of Device over a pool of input rows, each with what it should give: the same operation can then be run
// over any choice of rows, on any backend.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bounded.h"
#include "compute/device.h"
#include "test_weights.h"

namespace carat {

/// Rows of input that an operation can be run on.
constexpr int kPool = 130;

class Operation {
 public:
  explicit Operation(std::string name) : name_(std::move(name)) {}
  virtual ~Operation() = default;
  const std::string& name() const { return name_; }
  /// Width of one row of results.
  virtual int64_t width() const = 0;
  /// Results of the pool's `rows` as one batch, [rows, width()].
  virtual std::vector<float> run(Device& device, std::span<const int> rows) const = 0;
  /// The result of one row.
  virtual BoundedRow expect(int row, Precision precision) const = 0;

 private:
  std::string name_;
};

/// Rows of `width` floats.
class Pool {
 public:
  Pool(int64_t width, uint64_t seed) : width_(width), values_(random_activations(kPool, width, seed)) {}
  std::span<const float> row(int r) const { return {values_.data() + r * width_, static_cast<size_t>(width_)}; }
  std::vector<float> gather(std::span<const int> rows) const {
    std::vector<float> out;
    for (const int r : rows) out.insert(out.end(), row(r).begin(), row(r).end());
    return out;
  }

 private:
  int64_t width_;
  std::vector<float> values_;
};

/// Random norm weights around one.
class TestNorm {
 public:
  TestNorm(int64_t width, uint64_t seed) : weight_(random_floats(static_cast<size_t>(width), seed, 0.25f)) {
    for (float& w : weight_) w += 1;
  }
  operator Norm() const { return {weight_.data(), 1e-5f}; }

 private:
  std::vector<float> weight_;
};

/// A matrix and its dequantised twin.
struct TestWeight {
  TestWeight(const WeightCase& weight, int64_t rows, int64_t cols, uint64_t seed)
      : matrix(weight, rows, cols, seed), dense(matrix) {}
  operator const Matrix&() const { return matrix; }
  operator Linear() const { return matrix; }
  TestMatrix matrix;
  DenseWeights dense;
};

struct Shape {
  int64_t hidden;
  int64_t width;  // of the MLP
};

class NormProject final : public Operation {
 public:
  NormProject(const WeightCase& weight, int64_t hidden, std::vector<int64_t> outs, uint64_t seed)
      : Operation("norm_project"), norm_(hidden, seed), x_(hidden, seed + 1) {
    for (const int64_t out : outs) {
      weights_.emplace_back(weight, out, hidden, seed + 2 + static_cast<uint64_t>(out));
      width_ += out;
    }
  }
  int64_t width() const override { return width_; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    const std::vector<float> x = x_.gather(rows);
    std::vector<std::vector<float>> outs;
    std::vector<Projection> projections;
    for (const TestWeight& weight : weights_) {
      outs.emplace_back(rows.size() * static_cast<size_t>(weight.matrix->rows));
      projections.push_back({weight, outs.back().data()});
    }
    device.norm_project(x.data(), static_cast<int64_t>(rows.size()), norm_, projections);
    std::vector<float> result;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (const std::vector<float>& out : outs) {
        const auto n = static_cast<std::ptrdiff_t>(out.size() / rows.size());
        const auto begin = out.begin() + static_cast<std::ptrdiff_t>(r) * n;
        result.insert(result.end(), begin, begin + n);
      }
    }
    return result;
  }

  BoundedRow expect(int row, Precision precision) const override {
    const BoundedRow n = normalised(exactly(x_.row(row)), norm_);
    BoundedRow result;
    for (const TestWeight& weight : weights_) {
      const BoundedRow y = weight.dense.multiply(n, precision);
      result.insert(result.end(), y.begin(), y.end());
    }
    return result;
  }

 private:
  TestNorm norm_;
  Pool x_;
  std::vector<TestWeight> weights_;
  int64_t width_ = 0;
};

class ProjectNormResidual final : public Operation {
 public:
  ProjectNormResidual(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : Operation("project_norm_residual"),
        weight_(weight, shape.hidden, shape.width, seed),
        norm_(shape.hidden, seed + 1),
        a_(shape.width, seed + 2),
        x_(shape.hidden, seed + 3) {}
  int64_t width() const override { return weight_.matrix->rows; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    const std::vector<float> a = a_.gather(rows);
    std::vector<float> x = x_.gather(rows);
    device.project_norm_residual(a.data(), static_cast<int64_t>(rows.size()), weight_, {x.data(), norm_, 0.75f});
    return x;
  }

  BoundedRow expect(int row, Precision precision) const override {
    return residual_sum(x_.row(row), weight_.dense.multiply(exactly(a_.row(row)), precision), norm_, 0.75f);
  }

 private:
  TestWeight weight_;
  TestNorm norm_;
  Pool a_, x_;
};

/// gate, up and down.
struct TestMlp {
  TestMlp(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : gate(weight, shape.width, shape.hidden, seed),
        up(weight, shape.width, shape.hidden, seed + 1),
        down(weight, shape.hidden, shape.width, seed + 2) {}
  operator MlpWeights() const { return {gate, up, down}; }
  BoundedRow run(const BoundedRow& n, Precision precision) const {
    return down.dense.multiply(gated(gate.dense.multiply(n, precision), up.dense.multiply(n, precision)), precision);
  }
  TestWeight gate, up, down;
};

class GatedMlp final : public Operation {
 public:
  GatedMlp(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : Operation("gated_mlp"),
        hidden_(shape.hidden),
        mlp_(weight, shape, seed),
        pre_norm_(hidden_, seed + 3),
        norm_(hidden_, seed + 4),
        x_(hidden_, seed + 5) {}
  int64_t width() const override { return hidden_; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    std::vector<float> x = x_.gather(rows);
    device.gated_mlp(static_cast<int64_t>(rows.size()), pre_norm_, mlp_, {x.data(), norm_, 1.25f});
    return x;
  }

  BoundedRow expect(int row, Precision precision) const override {
    const BoundedRow n = normalised(exactly(x_.row(row)), pre_norm_);
    return residual_sum(x_.row(row), mlp_.run(n, precision), norm_, 1.25f);
  }

 private:
  int64_t hidden_;
  TestMlp mlp_;
  TestNorm pre_norm_, norm_;
  Pool x_;
};

class PerLayerGate final : public Operation {
 public:
  PerLayerGate(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : Operation("per_layer_gate"),
        hidden_(shape.hidden),
        gate_(weight, shape.width, hidden_, seed),
        projection_(weight, hidden_, shape.width, seed + 1),
        norm_(hidden_, seed + 2),
        x_(hidden_, seed + 3),
        input_(shape.width * kLayers, seed + 4) {}
  int64_t width() const override { return hidden_; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    std::vector<float> x = x_.gather(rows);
    const std::vector<float> inputs = input_.gather(rows);
    const int64_t width = gate_.matrix->rows;
    device.per_layer_gate(static_cast<int64_t>(rows.size()), gate_, inputs.data() + kLayer * width, kLayers * width,
                          projection_, {x.data(), norm_, 0.5f});
    return x;
  }

  BoundedRow expect(int row, Precision precision) const override {
    const auto width = static_cast<size_t>(gate_.matrix->rows);
    const BoundedRow input = exactly(input_.row(row).subspan(kLayer * width, width));
    const BoundedRow gate = gate_.dense.multiply(exactly(x_.row(row)), precision);
    return residual_sum(x_.row(row), projection_.dense.multiply(gated(gate, input), precision), norm_, 0.5f);
  }

 private:
  static constexpr int kLayers = 3;
  static constexpr int kLayer = 1;  // the one whose input is used
  int64_t hidden_;
  TestWeight gate_, projection_;
  TestNorm norm_;
  Pool x_, input_;
};

class PerLayerInputs final : public Operation {
 public:
  PerLayerInputs(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : Operation("per_layer_inputs"),
        slice_(shape.width),
        table_(weight, kVocab, slice_ * kLayers, seed),
        projection_(weight, slice_ * kLayers, shape.hidden, seed + 1),
        norm_(slice_, seed + 2),
        x_(shape.hidden, seed + 3) {}
  int64_t width() const override { return slice_ * kLayers; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    const std::vector<float> x = x_.gather(rows);
    std::vector<int> ids;
    for (const int r : rows) ids.push_back(id(r));
    std::vector<float> out(rows.size() * static_cast<size_t>(width()));
    device.per_layer_inputs(x.data(), static_cast<int64_t>(rows.size()), table_, ids, projection_, norm_,
                            static_cast<int>(slice_), out.data());
    return out;
  }

  BoundedRow expect(int row, Precision precision) const override {
    BoundedRow out;
    const BoundedRow context = projection_.dense.multiply(exactly(x_.row(row)), precision);
    const std::span<const float> token = table_.dense.row(id(row));
    const auto hidden = static_cast<double>(projection_.matrix->cols);
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto begin = context.begin() + layer * slice_;
      BoundedRow slice(begin, begin + slice_);
      for (Bounded& c : slice) c = c * Bounded{1 / std::sqrt(hidden), kUnit};
      slice = normalised(std::move(slice), norm_);
      for (int64_t i = 0; i < slice_; ++i) {
        const double t = token[static_cast<size_t>(layer * slice_ + i)];
        const Bounded scaled = Bounded{t, kTableError} * Bounded{std::sqrt(static_cast<double>(slice_)), 32 * kUnit};
        out.push_back((slice[static_cast<size_t>(i)] + scaled) * Bounded{std::sqrt(0.5), kUnit});
      }
    }
    return out;
  }

 private:
  static constexpr int kLayers = 3;
  static constexpr int kVocab = 11;
  static constexpr double kTableError = 0.5 * kUnit;  // weights are up to 0.3 and are sums of two terms
  static int id(int row) { return row * 7 % kVocab; }
  int64_t slice_;
  TestWeight table_, projection_;
  TestNorm norm_;
  Pool x_;
};

class Moe final : public Operation {
 public:
  Moe(const WeightCase& weight, const Shape& shape, uint64_t seed)
      : Operation("moe"),
        hidden_(shape.hidden),
        expert_width_(shape.width),
        dense_(weight, shape, seed),
        router_(weight, kExperts, hidden_, seed + 3),
        gate_up_(weight, kExperts * 2 * expert_width_, hidden_, seed + 4),
        down_(weight, kExperts * hidden_, expert_width_, seed + 5),
        per_expert_scale_(random_floats(kExperts, seed + 6)),
        x_(hidden_, seed + 7) {
    for (uint64_t i = 0; i < 6; ++i) norms_.emplace_back(hidden_, seed + 8 + i);
  }
  int64_t width() const override { return hidden_; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    std::vector<float> x = x_.gather(rows);
    MoeArgs args;
    args.rows = static_cast<int64_t>(rows.size());
    args.dense = dense_;
    args.dense_pre_norm = norms_[0];
    args.dense_post_norm = norms_[1];
    args.router_norm = norms_[2];
    args.router = router_;
    args.per_expert_scale = per_expert_scale_.data();
    args.experts_per_token = kChosen;
    args.gate = {gate_up_, kExperts, 2 * expert_width_, 0, expert_width_};
    args.up = {gate_up_, kExperts, 2 * expert_width_, expert_width_, expert_width_};
    args.down = {down_, kExperts, hidden_, 0, hidden_};
    args.expert_pre_norm = norms_[3];
    args.expert_post_norm = norms_[4];
    args.residual = {x.data(), norms_[5], 0.875f};
    device.moe(args);
    return x;
  }

  BoundedRow expect(int row, Precision precision) const override {
    const BoundedRow x = exactly(x_.row(row));
    const BoundedRow dense = normalised(dense_.run(normalised(x, norms_[0]), precision), norms_[1]);
    const BoundedRow scores = router_.dense.multiply(normalised(x, norms_[2]), precision);
    const BoundedRow n = normalised(x, norms_[3]);

    std::vector<size_t> order;
    for (size_t e = 0; e < kExperts; ++e) order.push_back(e);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a].value > scores[b].value; });
    double sum = 0;
    double score_error = 0;
    for (size_t i = 0; i < kChosen; ++i) {
      sum += std::exp(scores[order[i]].value);
      score_error = std::max(score_error, scores[order[i]].error);
    }
    BoundedRow routed(static_cast<size_t>(hidden_));
    for (size_t i = 0; i < kChosen; ++i) {
      const size_t e = order[i];
      const double share = std::exp(scores[e].value) / sum;
      const Bounded weight =
          Bounded{share, share * (2 * kHigherOrders * score_error + 32 * kUnit)} * Bounded{per_expert_scale_[e], 0};
      const BoundedRow y = expert(e, n, precision);
      for (size_t c = 0; c < y.size(); ++c) routed[c] = routed[c] + weight * y[c];
    }
    routed = normalised(routed, norms_[4]);
    for (size_t c = 0; c < routed.size(); ++c) routed[c] = routed[c] + dense[c];
    return residual_sum(x_.row(row), routed, norms_[5], 0.875f);
  }

  /// Whether float32 must choose the same experts as float64.
  bool routing_is_clear(int row, Precision precision) const {
    BoundedRow scores = router_.dense.multiply(normalised(exactly(x_.row(row)), norms_[2]), precision);
    std::sort(scores.begin(), scores.end(), [](const Bounded& a, const Bounded& b) { return a.value > b.value; });
    const Bounded& last = scores[kChosen - 1];
    const Bounded& next = scores[kChosen];
    return last.value - last.error > next.value + next.error;
  }

 private:
  static constexpr int kExperts = 7;
  static constexpr int kChosen = 3;

  BoundedRow expert(size_t e, const BoundedRow& n, Precision precision) const {
    const auto first = static_cast<int64_t>(e);
    const MatrixStack gate{gate_up_, kExperts, 2 * expert_width_, 0, expert_width_};
    const MatrixStack up{gate_up_, kExperts, 2 * expert_width_, expert_width_, expert_width_};
    const MatrixStack down{down_, kExperts, hidden_, 0, hidden_};
    const BoundedRow g = DenseWeights(gate.at(first)).multiply(n, precision);
    const BoundedRow u = DenseWeights(up.at(first)).multiply(n, precision);
    return DenseWeights(down.at(first)).multiply(gated(g, u), precision);
  }

  int64_t hidden_, expert_width_;
  TestMlp dense_;
  TestWeight router_;
  TestMatrix gate_up_, down_;
  std::vector<float> per_expert_scale_;
  Pool x_;
  std::vector<TestNorm> norms_;
};

class Head final : public Operation {
 public:
  Head(const WeightCase& weight, int64_t hidden, int64_t vocab, float softcap, uint64_t seed)
      : Operation(softcap > 0 ? "head with softcap" : "head"),
        softcap_(softcap),
        weight_(weight, vocab, hidden, seed),
        x_(hidden, seed + 1) {}
  int64_t width() const override { return weight_.matrix->rows; }

  std::vector<float> run(Device& device, std::span<const int> rows) const override {
    const std::vector<float> x = x_.gather(rows);
    std::vector<float> logits(rows.size() * static_cast<size_t>(width()));
    device.head(x.data(), static_cast<int64_t>(rows.size()), weight_, softcap_, logits.data());
    return logits;
  }

  BoundedRow expect(int row, Precision precision) const override {
    BoundedRow logits = weight_.dense.multiply(exactly(x_.row(row)), precision);
    if (softcap_ <= 0) return logits;
    for (Bounded& logit : logits) {
      logit.error += 8 * kUnit * std::abs(logit.value);
      logit.value = softcap_ * std::tanh(logit.value / softcap_);
    }
    return logits;
  }

 private:
  float softcap_;
  TestWeight weight_;
  Pool x_;
};

}  // namespace carat

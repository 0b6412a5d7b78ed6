#include "cli/step_cost.h"

#include <algorithm>
#include <cmath>

#include "compute/cpu/kernels.h"
#include "model/kv_choice.h"

namespace carat {
namespace {

/// Adds up weights, each with the number of rows that are multiplied with it and how often it is read.
class Counter {
 public:
  Counter(const Model& model, const CostOptions& options) : model_(model), options_(options) {}

  void weight(const Matrix& w, double rows, double readings, bool exact = false) {
    if (!w || rows <= 0.0) return;
    const double macs = rows * static_cast<double>(w.rows) * static_cast<double>(w.cols);
    const bool integer = options_.precision == Precision::kFast && !exact && has_integer_kernel(w);
    (integer ? cost_.integer_macs : cost_.float_macs) += macs;
    cost_.weight_bytes += readings * static_cast<double>(w.bytes());
  }

  void keys_and_values(const LayerWeights& w, double rows, double readings) {
    weight(w.k, rows, readings);
    weight(w.v, rows, readings);
  }

  /// Everything of a layer but keys, values and attention.
  void rest_of_layer(const LayerWeights& w, double rows, double readings) {
    const ModelConfig& c = model_.config();
    for (const Matrix* matrix :
         {&w.q, &w.o, &w.mlp.gate.matrix, &w.mlp.up.matrix, &w.mlp.down.matrix, &w.pli_gate, &w.pli_projection}) {
      weight(*matrix, rows, readings);
    }
    if (!c.has_moe()) return;
    weight(w.router, rows, readings, true);
    // An expert is read when one of a reading's rows chose it.
    const double unchosen = 1.0 - static_cast<double>(c.experts_per_token) / c.experts;
    const double read = c.experts * (1.0 - std::pow(unchosen, rows / readings));
    for (const MatrixStack* stack : {&w.expert_gate, &w.expert_up, &w.expert_down}) {
      weight(stack->at(0), rows * c.experts_per_token, readings * read);
    }
  }

  /// `readings` times `keys` keys and values are read; `pairs` pairs of a query row and a key it sees are multiplied.
  void attention(const LayerPlan& layer, double pairs, double keys, double readings) {
    cost_.float_macs += 2.0 * model_.config().heads * layer.head_dim * pairs;
    const int owner = model_.plan().owners[static_cast<size_t>(layer.cache)];
    const int recent = layer_formats(options_.kv, model_.plan(), owner).recent;
    const double floats = recent > 0 ? std::min(keys, recent + kRecentStep / 2.0) : 0.0;  // beside codes, on average
    cost_.kv_bytes +=
        readings * (static_cast<double>(kv_bytes_per_position(options_.kv, model_.plan(), owner)) * (keys - floats) +
                    static_cast<double>(kv_bytes_per_recent(options_.kv, model_.plan(), owner)) * floats);
  }

  void head(double rows) { weight(model_.weights().head, rows, 1.0); }

  void per_layer_projection(int64_t first, int64_t layers, double rows, double readings) {
    const int64_t width = model_.config().pli_width;
    if (width > 0 && layers > 0) {
      weight(model_.weights().pli_model_projection.slice(first * width, layers * width), rows, readings);
    }
  }

  const StepCost& cost() const { return cost_; }

 private:
  const Model& model_;
  CostOptions options_;
  StepCost cost_;
};

/// Keys that the token at `position` sees.
int64_t keys_seen(const Model& model, const LayerPlan& layer, int64_t position) {
  const int64_t window = model.config().window;
  return layer.kind == LayerKind::kSliding && window > 0 ? std::min(position + 1, window) : position + 1;
}

/// The matrix products and the attention of decode_cost().
StepCost count_decode(const Model& model, const CostOptions& options, int64_t batch, int64_t length) {
  Counter counter(model, options);
  const auto rows = static_cast<double>(batch);
  counter.per_layer_projection(0, model.config().layer_count(), rows, 1.0);
  for (size_t i = 0; i < model.plan().layers.size(); ++i) {
    const LayerPlan& layer = model.plan().layers[i];
    counter.keys_and_values(model.weights().layers[i], rows, 1.0);
    counter.rest_of_layer(model.weights().layers[i], rows, 1.0);
    const auto keys = static_cast<double>(keys_seen(model, layer, std::max<int64_t>(length - 1, 0)));
    counter.attention(layer, rows * keys, keys, rows);
  }
  counter.head(rows);
  return counter.cost();
}

}  // namespace

StepCost decode_cost(const Model& model, const CostOptions& options, int64_t batch, int64_t length) {
  StepCost cost = count_decode(model, options, batch, length);
  // Norms and rows of tables: what `inspect` says of one token and the products do not explain.
  cost.weight_bytes +=
      static_cast<double>(model.bytes_per_token()) - count_decode(model, options, 1, length).weight_bytes;
  return cost;
}

StepCost prefill_cost(const Model& model, const CostOptions& options, int64_t tokens, int64_t depth) {
  Counter counter(model, options);
  const auto rows = static_cast<double>(tokens);
  const int64_t whole_chunks = (tokens + options.chunk - 1) / options.chunk;
  const auto chunks = static_cast<double>(whole_chunks);
  const int last_owner = model.plan().last_owner;
  const int layers = model.config().layer_count();
  counter.per_layer_projection(0, last_owner, rows, chunks);
  counter.per_layer_projection(last_owner, layers - last_owner, 1.0, 1.0);
  for (int i = 0; i < layers; ++i) {
    const LayerPlan& layer = model.plan().layers[static_cast<size_t>(i)];
    const LayerWeights& weights = model.weights().layers[static_cast<size_t>(i)];
    const bool all = i < last_owner;  // from the last owner of keys on, only the row with logits goes on
    if (i <= last_owner) counter.keys_and_values(weights, rows, chunks);
    counter.rest_of_layer(weights, all ? rows : 1.0, all ? chunks : 1.0);
    double pairs = 0.0;
    for (int64_t t = all ? 0 : tokens - 1; t < tokens; ++t) {
      pairs += static_cast<double>(keys_seen(model, layer, depth + t));
    }
    const auto keys = static_cast<double>(keys_seen(model, layer, depth + tokens - 1));
    counter.attention(layer, pairs, keys, all ? chunks : 1.0);
  }
  counter.head(1.0);
  return counter.cost();
}

}  // namespace carat

// The forward pass of every Gemma 3 and Gemma 4 text model, from top to bottom.
// Semantics: the reference models of transformers (Gemma3ForCausalLM, Gemma4ForCausalLM) in exact arithmetic.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "model/model.h"

namespace carat {

void Model::forward(const Batch& batch, KvCache& cache, ForwardResult& result) {
  check(batch, cache);
  place_rows(batch, cache);
  embed(batch);
  prepare_per_layer_inputs();
  result.taps.resize(batch.taps.size());

  for (int i = 0; i < config().layer_count(); ++i) {
    const LayerPlan& plan = plan_.layers[static_cast<size_t>(i)];
    const KvLayer kv = cache.layer(plan.cache);

    // After the last layer that owns keys and values, a row that nobody asks anything of has done all that it is for:
    // in models with shared KV that skips most of prefill, exactly.
    if (i == plan_.last_owner && static_cast<int64_t>(wanted_.size()) < rows_) {
      project(Part::kKeyValue, i, kv);
      if (wanted_.empty()) {
        result.logits.clear();
        return;
      }
      drop_unwanted_rows();
      project(Part::kQuery, i, kv);
    } else {
      project(plan.owns_kv ? Part::kAll : Part::kQuery, i, kv);
    }
    attend(i, kv);
    feed_forward(i);
    add_per_layer_input(i);
    collect_taps(batch, i, x_.data(), result);
  }

  device_->norm(x_.data(), rows_, config().hidden, norm(weights_.final_norm), gathered_.data());
  collect_taps(batch, config().layer_count(), gathered_.data(), result);
  compute_logits(batch, gathered_.data(), result);
}

/// x = table[token] * sqrt(hidden), or the row of embeddings that stands in for it.
void Model::embed(const Batch& batch) {
  const ModelConfig& c = config();
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(c.hidden)));
  device_->embed(weights_.embedding, ids_, scale, x_.data());
  std::vector<float> row;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    if (batch.rows[r].embedding < 0) continue;
    const std::span<const float> source = batch.embeddings.subspan(
        static_cast<size_t>(batch.rows[r].embedding) * static_cast<size_t>(c.hidden), static_cast<size_t>(c.hidden));
    row.assign(source.begin(), source.end());
    for (float& value : row) value *= scale;
    device_->upload(x_.data() + r * static_cast<size_t>(c.hidden), row.data(), row.size() * sizeof(float));
  }
}

/// The per-layer inputs of Gemma E models come from the embeddings. Rows that stop at the last owner need those of the
/// layers before it only.
void Model::prepare_per_layer_inputs() {
  const ModelConfig& c = config();
  if (c.pli_width == 0) return;
  const auto compute = [&](PerLayerInputs& part, int first, int layers, const float* x, std::span<const int> ids) {
    part.first_layer = first;
    part.layers = layers;
    if (layers == 0 || ids.empty()) return;
    const int64_t begin = static_cast<int64_t>(first) * c.pli_width;
    const int64_t count = static_cast<int64_t>(layers) * c.pli_width;
    device_->per_layer_inputs(x, static_cast<int64_t>(ids.size()), *columns(weights_.pli_table, begin, count), ids,
                              weights_.pli_model_projection.slice(begin, count), norm(weights_.pli_norm), c.pli_width,
                              part.values.data());
  };
  const int64_t cut = static_cast<int64_t>(plan_.last_owner) * c.pli_width;
  const int64_t total = static_cast<int64_t>(c.layer_count()) * c.pli_width;
  const bool whole = static_cast<int64_t>(wanted_.size()) == rows_ || !columns(weights_.pli_table, 0, cut) ||
                     !columns(weights_.pli_table, cut, total - cut);
  if (whole) {
    compute(early_, 0, c.layer_count(), x_.data(), pli_ids_);
    late_.layers = 0;
    return;
  }
  compute(early_, 0, plan_.last_owner, x_.data(), pli_ids_);
  batch_rows_of_.clear();
  for (const int row : wanted_) batch_rows_of_.push_back(pli_ids_[static_cast<size_t>(row)]);
  device_->gather_rows(x_.data(), wanted_, c.hidden, gathered_.data());
  compute(late_, plan_.last_owner, c.layer_count() - plan_.last_owner, gathered_.data(), batch_rows_of_);
}

/// q = rope(norm(Wq n)), k = rope(norm(Wk n)), v = norm(Wv n) with n = norm(x); k and v go to the cache. On K=V layers
/// v is the raw key projection. Gemma 3 does not normalise v.
void Model::project(Part part, int layer, const KvLayer& kv) {
  const LayerPlan& plan = plan_.layers[static_cast<size_t>(layer)];
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool query = part != Part::kKeyValue;
  const bool key_value = part != Part::kQuery;
  std::array<Projection, 3> projections;
  size_t count = 0;
  if (query) projections[count++] = {adapted(w.q, layer, LoraModule::kQuery), q_.data()};
  if (key_value) projections[count++] = {adapted(w.k, layer, LoraModule::kKey), k_.data()};
  if (key_value && !plan.k_eq_v) projections[count++] = {adapted(w.v, layer, LoraModule::kValue), v_.data()};
  device_->norm_project(x_.data(), rows_, norm(w.input_norm), std::span(projections).first(count));

  QkvArgs args{.rows = rows_,
               .heads = query ? config().heads : 0,
               .q = q_.data(),
               .k = key_value ? k_.data() : nullptr,
               .v = key_value ? (plan.k_eq_v ? k_.data() : v_.data()) : nullptr,
               .q_norm = norm(w.q_norm),
               .k_norm = norm(w.k_norm),
               .v_norm = std::nullopt,
               .rope = &rope(plan.kind),
               .tokens = tokens(plan.kind),
               .cache = kv};
  if (config().family == Family::kGemma4) args.v_norm = Norm{nullptr, static_cast<float>(config().norm_eps)};
  device_->finish_qkv(args);
}

/// x += norm(Wo attention(q, cache)).
void Model::attend(int layer, const KvLayer& kv) {
  const LayerPlan& plan = plan_.layers[static_cast<size_t>(layer)];
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  device_->attention({.rows = rows_,
                      .heads = config().heads,
                      .q = q_.data(),
                      .out = attended_.data(),
                      .scale = static_cast<float>(config().attention_scale),
                      .tokens = tokens(plan.kind),
                      .cache = kv});
  device_->project_norm_residual(attended_.data(), rows_, adapted(w.o, layer, LoraModule::kOutput),
                                 {x_.data(), norm(w.post_attention_norm)});
}

/// x += norm(MLP(norm(x))), with experts beside the MLP where the model has them. The layer scalar multiplies the whole
/// residual stream at the very end of a layer.
void Model::feed_forward(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const MlpWeights mlp{adapted(w.mlp.gate.matrix, layer, LoraModule::kGate),
                       adapted(w.mlp.up.matrix, layer, LoraModule::kUp),
                       adapted(w.mlp.down.matrix, layer, LoraModule::kDown)};
  const Residual residual{x_.data(), norm(w.post_mlp_norm), config().pli_width > 0 ? 1.0f : w.scalar};
  if (!config().has_moe()) {
    device_->gated_mlp(rows_, norm(w.pre_mlp_norm), mlp, residual);
    return;
  }
  device_->moe({.rows = rows_,
                .dense = mlp,
                .dense_pre_norm = norm(w.pre_mlp_norm),
                .dense_post_norm = norm(w.post_dense_norm),
                .router_norm = norm(w.router_scale),
                .router = w.router,
                .per_expert_scale = w.per_expert_scale.data(),
                .experts_per_token = config().experts_per_token,
                .gate = w.expert_gate,
                .up = w.expert_up,
                .down = w.expert_down,
                .expert_pre_norm = norm(w.pre_expert_norm),
                .expert_post_norm = norm(w.post_expert_norm),
                .residual = residual});
}

/// x += norm(Wp(gelu(Wg x) * input of this layer)), then the layer scalar.
void Model::add_per_layer_input(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int width = config().pli_width;
  if (width == 0) return;
  const PerLayerInputs& part = layer < early_.first_layer + early_.layers ? early_ : late_;
  device_->per_layer_gate(rows_, adapted(w.pli_gate, layer, LoraModule::kPliGate),
                          part.values.data() + static_cast<int64_t>(layer - part.first_layer) * width,
                          static_cast<int64_t>(part.layers) * width,
                          adapted(w.pli_projection, layer, LoraModule::kPliProjection),
                          {x_.data(), norm(w.post_pli_norm), w.scalar});
}

Linear Model::adapted(const Matrix& weight, int layer, LoraModule module) {
  if (adapters_.empty()) return weight;
  std::vector<LoraPair>& pairs = lora_pairs_[static_cast<size_t>(module)];
  pairs.clear();
  bool any = false;
  for (const Adapter* adapter : adapters_) {
    pairs.push_back(adapter->pair(layer, module));
    any = any || pairs.back().rank > 0;
  }
  return any ? Linear(weight, {pairs, adapter_of_}) : Linear(weight);
}

/// Keeps the rows of `wanted_`, in order.
void Model::drop_unwanted_rows() {
  const ModelConfig& c = config();
  device_->gather_rows(x_.data(), wanted_, c.hidden, gathered_.data());
  std::swap(x_, gathered_);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const auto row = static_cast<size_t>(wanted_[i]);
    full_[i] = full_[row];
    sliding_[i] = sliding_[row];
    source_[i] = source_[row];
    adapter_of_[i] = adapter_of_[row];
  }
  full_.resize(wanted_.size());
  sliding_.resize(wanted_.size());
  source_.resize(wanted_.size());
  adapter_of_.resize(wanted_.size());
  if (c.pli_width > 0 && late_.layers == 0) {  // the inputs of all layers are in early_
    const int64_t width = static_cast<int64_t>(c.layer_count()) * c.pli_width;
    device_->gather_rows(early_.values.data(), wanted_, width, late_.values.data());
    std::swap(early_.values, late_.values);
  }
  rows_ = static_cast<int64_t>(wanted_.size());
}

void Model::collect_taps(const Batch& batch, int layer, const float* values, ForwardResult& result) {
  const auto tap = std::find(batch.taps.begin(), batch.taps.end(), layer);
  if (tap == batch.taps.end()) return;
  const auto hidden = static_cast<size_t>(config().hidden);
  std::vector<float>& out = result.taps[static_cast<size_t>(tap - batch.taps.begin())];
  out.clear();
  for (int64_t r = 0; r < rows_; ++r) {
    if (!batch.rows[static_cast<size_t>(source_[static_cast<size_t>(r)])].wants_taps) continue;
    out.resize(out.size() + hidden);
    device_->download(out.data() + out.size() - hidden, values + static_cast<size_t>(r) * hidden,
                      hidden * sizeof(float));
  }
}

/// logits = softcap(head norm(x)) for the rows that want them.
void Model::compute_logits(const Batch& batch, const float* normed, ForwardResult& result) {
  const ModelConfig& c = config();
  std::vector<int>& rows = wanted_;
  rows.clear();
  for (int64_t r = 0; r < rows_; ++r) {
    if (batch.rows[static_cast<size_t>(source_[static_cast<size_t>(r)])].wants_logits)
      rows.push_back(static_cast<int>(r));
  }
  if (static_cast<int64_t>(rows.size()) < rows_) {
    device_->gather_rows(normed, rows, c.hidden, x_.data());
    normed = x_.data();
  }
  const size_t count = rows.size() * static_cast<size_t>(c.vocab);
  result.logits.resize(count);
  if (count == 0) return;
  const bool shared = device_->shares_host_memory();
  if (!shared && logits_.size() < count) logits_ = DeviceArray<float>(*device_, count);
  float* logits = shared ? result.logits.data() : logits_.data();
  device_->head(normed, static_cast<int64_t>(rows.size()), weights_.head,
                static_cast<float>(c.final_softcap.value_or(0.0)), logits);
  if (!shared) device_->download(result.logits.data(), logits, count * sizeof(float));
}

/// Positions, visible keys and cache room of every row.
void Model::place_rows(const Batch& batch, KvCache& cache) {
  const ModelConfig& c = config();
  rows_ = static_cast<int64_t>(batch.rows.size());
  full_.clear();
  sliding_.clear();
  source_.clear();
  wanted_.clear();
  ids_.clear();
  pli_ids_.clear();
  adapter_of_.clear();
  adapters_ = {};
  const bool late_taps = !batch.taps.empty() && batch.taps.back() >= plan_.last_owner;
  int64_t last_position = 0;
  for (size_t begin = 0; begin < batch.rows.size();) {
    const int sequence = batch.rows[begin].sequence;
    size_t end = begin;
    while (end < batch.rows.size() && batch.rows[end].sequence == sequence) ++end;
    const int64_t start = cache.length(sequence);
    cache.extend(sequence, static_cast<int64_t>(end - begin));
    for (size_t r = begin; r < end; ++r) {
      const BatchRow& row = batch.rows[r];
      const int64_t position = start + static_cast<int64_t>(r - begin);
      TokenRow token{sequence, position, 0, position + 1};
      TokenRow windowed = token;
      windowed.key_begin = std::max<int64_t>(0, position - c.window + 1);
      if (row.span_end > row.span_begin) {
        token.key_end = windowed.key_end = std::max(position + 1, row.span_end);
        windowed.key_begin = std::min(windowed.key_begin, row.span_begin);
      }
      full_.push_back(token);
      sliding_.push_back(windowed);
      source_.push_back(static_cast<int>(r));
      if (row.wants_logits || (row.wants_taps && late_taps)) wanted_.push_back(static_cast<int>(r));
      ids_.push_back(row.token);
      pli_ids_.push_back(row.mask_per_layer ? 0 : row.token);
      adapter_of_.push_back(row.adapter);
      if (row.adapter >= 0) adapters_ = batch.adapters;
      last_position = std::max(last_position, position);
    }
    begin = end;
  }
  rope_full_.reserve(last_position + 1);
  rope_sliding_.reserve(last_position + 1);
}

void Model::check(const Batch& batch, const KvCache& cache) {
  const ModelConfig& c = config();
  const auto rows = static_cast<int64_t>(batch.rows.size());
  if (rows == 0) fail("a batch has no rows");
  if (rows > max_rows_) fail("a batch has {} rows; this model was prepared for {}", rows, max_rows_);
  if (batch.embeddings.size() % static_cast<size_t>(c.hidden) != 0) {
    fail("a batch has {} embedding values, expected a multiple of the hidden size {}", batch.embeddings.size(),
         c.hidden);
  }
  if (!std::is_sorted(batch.taps.begin(), batch.taps.end()) ||
      (!batch.taps.empty() && (batch.taps.front() < 0 || batch.taps.back() > c.layer_count()))) {
    fail("the taps of a batch must be ascending layers from 0 to {}", c.layer_count());
  }
  for (const Adapter* adapter : batch.adapters) {
    if (adapter == nullptr) fail("an adapter of a batch is null");
    if (!adapter->fits(*this)) fail("an adapter of a batch was loaded for another model");
  }
  seen_.clear();
  for (int64_t begin = 0; begin < rows;) {
    const int sequence = batch.rows[static_cast<size_t>(begin)].sequence;
    int64_t end = begin;
    while (end < rows && batch.rows[static_cast<size_t>(end)].sequence == sequence) ++end;
    const int64_t start = cache.length(sequence);  // throws for an unknown sequence
    if (static_cast<size_t>(sequence) >= seen_.size()) seen_.resize(static_cast<size_t>(sequence) + 1);
    if (seen_[static_cast<size_t>(sequence)] != 0)
      fail("the rows of sequence {} are not consecutive in the batch", sequence);
    seen_[static_cast<size_t>(sequence)] = 1;
    if (end - begin > cache.spec().max_rows) {
      fail("a batch has {} rows of one sequence; the KV cache was made for {}", end - begin, cache.spec().max_rows);
    }
    if (start + end - begin > c.max_positions) {
      fail("the sequence would reach {} positions; the model's context is {}", start + end - begin, c.max_positions);
    }
    for (int64_t r = begin; r < end; ++r) {
      const BatchRow& row = batch.rows[static_cast<size_t>(r)];
      if (row.token < 0 || row.token >= c.vocab ||
          (c.pli_width > 0 && !row.mask_per_layer && row.token >= c.pli_vocab)) {
        fail("token {} is outside the vocabulary of {}", row.token,
             c.pli_width > 0 ? std::min(c.vocab, c.pli_vocab) : c.vocab);
      }
      if (row.embedding >= static_cast<int64_t>(batch.embeddings.size()) / c.hidden) {
        fail("row {} uses embedding {}, but the batch has {}", r, row.embedding,
             batch.embeddings.size() / static_cast<size_t>(c.hidden));
      }
      if (row.adapter < -1 || row.adapter >= static_cast<int64_t>(batch.adapters.size())) {
        fail("row {} uses adapter {}, but the batch has {}", r, row.adapter, batch.adapters.size());
      }
      const int64_t position = start + r - begin;
      if (row.span_end > row.span_begin && (row.span_begin < start || row.span_end > start + end - begin ||
                                            position < row.span_begin || position >= row.span_end)) {
        fail("the bidirectional span [{}, {}) of position {} is not inside the batch's positions [{}, {})",
             row.span_begin, row.span_end, position, start, start + end - begin);
      }
    }
    begin = end;
  }
}

}  // namespace carat

// carat kv-calibrate: which layers' keys and values bear fewer bits.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "checkpoint/kv_config.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "compute/cpu/cpu_device.h"
#include "model/kv_budget.h"
#include "model/kv_choice.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

struct Flags {
  ModelFlags model;
  std::string text;
  std::string out;
  size_t bytes_per_token = 0;
  int tokens = 512;
  int positions = 64;
};

/// Mean KL(reference || other) of rows of logits, in nats.
double divergence(std::span<const float> reference, std::span<const float> other, size_t vocab) {
  const auto log_sum = [](std::span<const float> row) {
    const float largest = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(double{logit} - largest);
    return std::log(sum) + largest;
  };
  double total = 0.0;
  for (size_t begin = 0; begin < reference.size(); begin += vocab) {
    const auto p = reference.subspan(begin, vocab);
    const auto q = other.subspan(begin, vocab);
    const double p_sum = log_sum(p);
    const double q_sum = log_sum(q);
    for (size_t i = 0; i < vocab; ++i) total += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
  }
  const size_t positions = reference.size() / vocab;
  return total / static_cast<double>(positions);
}

/// Logits at evenly spread positions of the second half of a text, whatever the cache stores.
class Probe {
 public:
  Probe(Model& model, std::vector<int> ids, int positions) : model_(model), ids_(std::move(ids)) {
    const size_t half = ids_.size() / 2;
    const size_t count = std::min(static_cast<size_t>(positions), ids_.size() - half);
    wanted_.assign(ids_.size(), false);
    for (size_t i = 0; i < count; ++i) wanted_[half + i * (ids_.size() - half) / count] = true;
  }

  std::vector<float> logits(const KvChoice& choice) {
    KvCache cache(model_.device(), model_.cache_spec(choice));
    const int sequence = cache.add_sequence();
    const auto chunk = static_cast<size_t>(model_.max_rows());
    std::vector<float> all;
    ForwardResult result;
    for (size_t begin = 0; begin < ids_.size(); begin += chunk) {
      Batch batch;
      for (size_t i = begin; i < std::min(ids_.size(), begin + chunk); ++i) {
        batch.rows.push_back({.sequence = sequence, .token = ids_[i], .wants_logits = wanted_[i]});
      }
      model_.forward(batch, cache, result);
      all.insert(all.end(), result.logits.begin(), result.logits.end());
    }
    return all;
  }

 private:
  Model& model_;
  std::vector<int> ids_;
  std::vector<bool> wanted_;
};

std::vector<int> read_ids(const Flags& flags, const Checkpoint& checkpoint) {
  const auto tokenizer = Tokenizer::load(checkpoint);
  std::vector<int> ids{tokenizer->bos_id()};
  const std::vector<int> text = tokenizer->encode(read_input(flags.text, "the text"), Tokenizer::Specials::kText);
  ids.insert(ids.end(), text.begin(), text.end());
  if (ids.size() < 32) fail("{} has {} tokens; a calibration needs at least 32", flags.text, ids.size());
  const auto limit = static_cast<size_t>(std::min(flags.tokens, checkpoint.config().max_positions));
  if (ids.size() > limit) ids.resize(limit);
  return ids;
}

/// The choice of formats for one layer, all others f16.
KvChoice only(int layer, const KvFormats& formats) {
  KvChoice choice = KvFormat::kF16;
  choice.layers = {{layer, formats}};
  return choice;
}

std::vector<KvLayerOptions> measure(Model& model, Probe& probe, int recent) {
  const auto vocab = static_cast<size_t>(model.config().vocab);
  const std::vector<int>& owners = model.plan().owners;
  Progress progress("calibrating", 2 * owners.size() + 1, ProgressUnit::kItems);
  const std::vector<float> reference = probe.logits(KvFormat::kF16);
  progress.add(1);
  std::vector<KvLayerOptions> layers;
  for (const int owner : owners) {
    KvLayerOptions layer{owner, {{KvFormat::kF16, kv_bytes_per_position(KvFormat::kF16, model.plan(), owner), 0.0}}};
    for (const int bits : {8, 4}) {
      const KvFormat format = KvFormat::spread(bits);
      layer.options.push_back({format, kv_bytes_per_position(format, model.plan(), owner),
                               divergence(reference, probe.logits(only(owner, {format, format, recent})), vocab)});
      progress.add(1);
    }
    layers.push_back(std::move(layer));
  }
  progress.finish();
  return layers;
}

int run(const Flags& flags) {
  const EngineOptions options = flags.model.engine_options();
  if (options.kv)
    throw UsageError("kv-calibrate chooses formats itself; of --kv and its kin only --kv-recent goes with it");
  const auto checkpoint = Checkpoint::open(resolve_model(flags.model.model));
  const std::vector<int> ids = read_ids(flags, *checkpoint);
  const std::shared_ptr<Device> device = make_cpu_device({.threads = options.threads, .precision = options.precision});
  Model model(checkpoint, device, options.chunk);
  Probe probe(model, ids, flags.positions);
  const int recent = options.kv_recent.value_or(0);
  const std::vector<KvLayerOptions> layers = measure(model, probe, recent);
  KvChoice choice = choose_kv_formats(layers, flags.bytes_per_token);
  for (KvChoice::Layer& layer : choice.layers) {
    const bool full = model.plan().layers[static_cast<size_t>(layer.index)].kind == LayerKind::kFull;
    if (full && layer.formats.is_coded()) layer.formats.recent = recent;
  }

  fmt::print("{:<7}{:<9}{:>11}{:>11}  {}\n", "LAYER", "KIND", "KL OF Q8", "KL OF Q4", "CHOSEN");
  size_t bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayerOptions& layer = layers[i];
    const KvFormat chosen = choice.layers[i].formats.k;
    bytes += kv_bytes_per_position(chosen, model.plan(), layer.layer);
    const bool full = model.plan().layers[static_cast<size_t>(layer.layer)].kind == LayerKind::kFull;
    fmt::print("{:<7}{:<9}{:>11.2e}{:>11.2e}  {}\n", layer.layer, full ? "full" : "sliding",
               layer.options[1].divergence, layer.options[2].divergence, kv_format_name(chosen));
  }
  const double together =
      divergence(probe.logits(KvFormat::kF16), probe.logits(choice), static_cast<size_t>(model.config().vocab));
  fmt::print("{} bytes a token, KL {:.2e} to f16\n", bytes, together);

  std::ofstream file(flags.out, std::ios::binary | std::ios::trunc);
  file << kv_config_text(choice);
  file.close();
  if (!file) fail("cannot write {}", flags.out);
  return 0;
}

}  // namespace

void add_kv_calibrate(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("kv-calibrate", "Choose bits of cached keys and values layer by layer");
  add_model_flags(*verb, flags->model);
  verb->add_option("--text", flags->text, "A text like those to be cached (\"-\": standard input)")->required();
  verb->add_option("--bytes-per-token", flags->bytes_per_token, "What keys and values of all layers may take together")
      ->required();
  verb->add_option("--out", flags->out, "The kv_config.json to write")->required();
  verb->add_option("--tokens", flags->tokens, "Tokens of the text to read, BOS included")
      ->check(CLI::Range(32, 1000000))
      ->capture_default_str();
  verb->add_option("--positions", flags->positions, "Positions to compare at; each takes a row of logits")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_examples(*verb, "  carat kv-calibrate gemma3-270m --text book.txt --bytes-per-token 8000 --out kv_config.json");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

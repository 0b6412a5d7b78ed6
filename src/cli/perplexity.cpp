// carat perplexity: how well a model predicts a text.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "compute/cpu/cpu_device.h"
#include "engine/prompt_format.h"
#include "model/kv_choice.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

struct Flags {
  ModelFlags model;
  std::string file;
  int window = 1024;
  bool json = false;
};

/// -log p of `token` under softmax(logits), in float64.
double cross_entropy(std::span<const float> logits, int token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - logits[static_cast<size_t>(token)];
}

int run(const Flags& flags) {
  const std::string text = read_input(flags.file, "the text");
  const EngineOptions options = flags.model.engine_options();
  const std::shared_ptr<Device> device = make_cpu_device({.threads = options.threads, .precision = options.precision});
  const auto checkpoint = Checkpoint::open(resolve_model(flags.model.model));
  if (flags.window > checkpoint->config().max_positions) {
    throw UsageError(
        fmt::format("--window is {}; the model's context is {}", flags.window, checkpoint->config().max_positions));
  }
  const auto tokenizer = Tokenizer::load(*checkpoint);
  Model model(checkpoint, device, options.chunk);
  const auto adapter = load_adapters(options.adapters, model);
  const std::vector<int> ids = tokenizer->encode(text, Tokenizer::Specials::kText);
  if (ids.size() < 2) fail("{} has {} tokens; a perplexity needs at least 2", flags.file, ids.size());

  // Windows of `window` tokens, each after a BOS of its own; every token of the text is predicted once.
  const auto stride = static_cast<size_t>(flags.window - 1);
  Progress progress("perplexity", ids.size(), ProgressUnit::kItems);
  KvCache cache(*device, model.cache_spec(kv_choice_for(options, model.checkpoint())));
  ForwardResult result;
  double total = 0.0;
  double squares = 0.0;
  size_t predicted = 0;
  for (size_t begin = 0; begin < ids.size(); begin += stride) {
    const int sequence = cache.add_sequence();
    std::vector<int> window{tokenizer->bos_id()};
    window.insert(window.end(), ids.begin() + static_cast<int64_t>(begin),
                  ids.begin() + static_cast<int64_t>(std::min(ids.size(), begin + stride)));
    for (size_t done = 0; done + 1 < window.size();) {
      const size_t count = std::min(window.size() - 1 - done, static_cast<size_t>(options.chunk));
      Batch batch;
      if (adapter) batch.adapters = {adapter.get()};
      for (size_t i = 0; i < count; ++i) {
        batch.rows.push_back(
            {.sequence = sequence, .token = window[done + i], .wants_logits = true, .adapter = adapter ? 0 : -1});
      }
      model.forward(batch, cache, result);
      const auto vocab = static_cast<size_t>(model.config().vocab);
      for (size_t i = 0; i < count; ++i) {
        const double loss = cross_entropy(std::span(result.logits).subspan(i * vocab, vocab), window[done + i + 1]);
        total += loss;
        squares += loss * loss;
        ++predicted;
      }
      done += count;
      progress.add(count);
    }
    cache.remove_sequence(sequence);
  }
  progress.finish();
  const auto n = static_cast<double>(predicted);
  const double mean = total / n;
  const double perplexity = std::exp(mean);
  const double error = perplexity * std::sqrt(std::max(0.0, squares / n - mean * mean) / n);
  if (flags.json) {
    std::puts(
        Json{{"perplexity", perplexity}, {"standard_error", error}, {"cross_entropy", mean}, {"tokens", predicted}}
            .dump(2)
            .c_str());
  } else {
    fmt::print("perplexity {:.4f} ± {:.4f}, cross entropy {:.5f} nats, {} tokens\n", perplexity, error, mean,
               predicted);
  }
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  flags->model.chunk = 64;  // [chunk, vocab] floats are in memory at a time
  CLI::App* verb = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  add_model_flags(*verb, flags->model);
  add_adapter_flag(*verb, flags->model.adapters);
  verb->add_option("FILE", flags->file, "The text (\"-\": standard input)")->required();
  verb->add_option("--window", flags->window, "Tokens of context, BOS included")
      ->check(CLI::Range(2, 10000000))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "As JSON");
  add_examples(*verb,
               "  carat perplexity gemma3-270m book.txt\n"
               "  carat perplexity gemma3-270m book.txt --precision exact --json");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

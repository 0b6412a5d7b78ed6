// carat bench: how fast a model runs here, and what share of the memory bandwidth that is.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/bandwidth.h"
#include "cli/options.h"
#include "cli/speed_test.h"
#include "cli/verbs.h"

namespace carat {
namespace {

struct Flags {
  ModelFlags model;
  Workload workload;
  int rounds = 3;
  bool json = false;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A value a round.
struct Samples {
  std::vector<double> prefill, decode, bandwidth;
  double rss = 0.0;
};

Samples measure(SpeedTest& test, const Flags& flags) {
  const Workload& workload = flags.workload;
  Progress progress("measuring", static_cast<uint64_t>(flags.rounds) + 1, ProgressUnit::kItems);
  Samples samples;
  test.warm_up();
  progress.add(1);
  const Spans weights = streamed_weights(test.model().checkpoint());
  ThreadPool pool(test.threads());
  for (int round = 0; round < flags.rounds; ++round) {
    if (workload.prompt > 0) samples.prefill.push_back(test.prefill_once());
    if (workload.generate > 0) samples.decode.push_back(test.decode_once());
    if (round == 0)
      samples.rss = static_cast<double>(peak_resident_memory());  // before experts are read that no token chose
    // In every round, so that what else happens on the machine slows both alike.
    samples.bandwidth.push_back(measure_read_bandwidth(pool, weights));
    progress.add(1);
  }
  progress.finish();
  return samples;
}

int run(const Flags& flags) {
  const Workload& w = flags.workload;
  if (w.prompt == 0 && w.generate == 0) fail("--prompt and --generate are both 0: nothing to measure");
  SpeedTest test(resolve_model(flags.model.model), flags.model.engine_options(), w);
  const std::string device = test.model().device().description();
  const Samples samples = measure(test, flags);

  const double bandwidth = median(samples.bandwidth);
  const double prefill_rate = median(samples.prefill);
  const double decode_rate = median(samples.decode);
  const double bytes = test.decode_cost().bytes();
  const double bytes_rate = decode_rate / w.batch * bytes;
  if (flags.json) {
    const Json json{{"model", flags.model.model},
                    {"device", device},
                    {"precision", flags.model.precision},
                    {"threads", test.threads()},
                    {"prompt_tokens", w.prompt},
                    {"generated_tokens", w.generate},
                    {"depth", w.depth},
                    {"batch", w.batch},
                    {"rounds", flags.rounds},
                    {"prefill_tokens_per_second", prefill_rate},
                    {"decode_tokens_per_second", decode_rate},
                    {"prefill_rounds", samples.prefill},
                    {"decode_rounds", samples.decode},
                    {"decode_bytes_per_token", bytes},
                    {"decode_bandwidth_share", bytes_rate / bandwidth},
                    {"read_bandwidth_bytes_per_second", bandwidth},
                    {"peak_rss_bytes", samples.rss}};
    std::puts(json.dump(2).c_str());
    return 0;
  }
  fmt::print("{}: {}\n", flags.model.model, device);
  fmt::print("{:<28}{:>12}\n", "weights read at", fmt::format("{:.1f} GB/s", bandwidth / 1e9));
  if (w.prompt > 0) {
    fmt::print("{:<28}{:>12}\n",
               fmt::format("prefill {}{}", w.prompt, w.depth > 0 ? fmt::format(" at {}", w.depth) : ""),
               fmt::format("{:.1f} tok/s", prefill_rate));
  }
  if (w.generate > 0) {
    fmt::print("{:<28}{:>12}   {:.1f} MB a {}, {:.1f} GB/s, {:.0f} % of the bandwidth\n",
               fmt::format("decode {}{}", w.generate, w.batch > 1 ? fmt::format(" x {}", w.batch) : ""),
               fmt::format("{:.1f} tok/s", decode_rate), bytes / 1e6, w.batch > 1 ? "step" : "token", bytes_rate / 1e9,
               100.0 * bytes_rate / bandwidth);
  }
  fmt::print("{:<28}{:>12}\n", "peak memory", format_bytes(static_cast<uint64_t>(samples.rss)));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("bench", "Measure prefill and decode speed");
  add_model_flags(*verb, flags->model);
  verb->add_option("--prompt", flags->workload.prompt, "Prompt tokens to read (0: skip)")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--generate", flags->workload.generate, "Tokens to generate (0: skip)")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--depth", flags->workload.depth, "Tokens already in the context")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--batch", flags->workload.batch, "Sequences decoded together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--rounds", flags->rounds, "Repetitions; medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "As JSON");
  add_examples(*verb,
               "  carat bench gemma3-270m\n"
               "  carat bench gemma3-270m --prompt 0 --generate 64 --depth 8192\n"
               "  carat bench gemma3-270m --batch 8 --threads 2 --json");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

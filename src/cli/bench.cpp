// carat bench: how fast a model runs here, and what share of the memory bandwidth that is.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/bandwidth.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "compute/cpu/cpu_device.h"
#include "model/model.h"

namespace carat {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  ModelFlags model;
  int prompt = 512;
  int generate = 128;
  int depth = 0;
  int batch = 1;
  int rounds = 3;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Any tokens will do: speed does not depend on which.
int some_token(int64_t position, int vocab) {
  return static_cast<int>((position * 7919 + 13) % std::min(vocab, 50000));
}

class Bench {
 public:
  explicit Bench(const Flags& flags)
      : flags_(flags),
        options_(flags.model.engine_options()),
        device_(make_cpu_device({.threads = options_.threads, .precision = options_.precision})),
        model_(Checkpoint::open(resolve_model(flags.model.model)), device_, options_.chunk),
        kv_(options_.kv_format()) {
    const int64_t longest = int64_t{flags.depth} + std::max(flags.prompt, flags.generate + 1);
    if (longest > model_.config().max_positions) {
      fail("the benchmark needs {} positions; the model's context is {}", longest, model_.config().max_positions);
    }
    if (flags.batch > model_.max_rows())
      fail("--batch is {}; expected at most --chunk ({})", flags.batch, model_.max_rows());
  }

  /// Tokens per second of reading the prompt, logits of its last token included.
  double prefill_once() {
    KvCache cache(*device_, model_.cache_spec(kv_));
    const int sequence = cache.add_sequence();
    read(cache, sequence, flags_.depth, false);
    const Clock::time_point start = Clock::now();
    read(cache, sequence, flags_.prompt, true);
    return flags_.prompt / seconds_since(start);
  }

  /// Tokens per second of all sequences together.
  double decode_once() {
    KvCache cache(*device_, model_.cache_spec(kv_));
    std::vector<int> sequences;
    for (int i = 0; i < flags_.batch; ++i) {
      sequences.push_back(cache.add_sequence());
      read(cache, sequences.back(), flags_.depth + 1, false);
      cache.reserve(sequences.back(), flags_.depth + 1 + flags_.generate);
    }
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < flags_.generate; ++i) {
      batch_.rows.clear();
      for (const int sequence : sequences) {
        batch_.rows.push_back(
            {.sequence = sequence, .token = some_token(i, model_.config().vocab), .wants_logits = true});
      }
      model_.forward(batch_, cache, result_);
    }
    return flags_.generate * flags_.batch / seconds_since(start);
  }

  /// Bytes of one decoded token: weights, and keys and values half-way through the generation.
  double bytes_per_token() const {
    return static_cast<double>(model_.bytes_per_token()) + kv_bytes(flags_.depth + flags_.generate / 2);
  }

  const Model& model() const { return model_; }
  int threads() const { return options_.threads > 0 ? options_.threads : physical_cores(); }
  Device& device() { return *device_; }

 private:
  void read(KvCache& cache, int sequence, int64_t count, bool logits) {
    for (int64_t done = 0; done < count;) {
      const int64_t rows = std::min(count - done, model_.max_rows());
      batch_.rows.clear();
      for (int64_t i = 0; i < rows; ++i) {
        batch_.rows.push_back({.sequence = sequence,
                               .token = some_token(done + i, model_.config().vocab),
                               .wants_logits = logits && done + i + 1 == count});
      }
      model_.forward(batch_, cache, result_);
      done += rows;
    }
  }

  double kv_bytes(int64_t length) const {
    double bytes = 0.0;
    for (const LayerPlan& layer : model_.plan().layers) {
      const int64_t seen =
          layer.kind == LayerKind::kSliding ? std::min<int64_t>(length, model_.config().window) : length;
      bytes += 2.0 * layer.kv_heads * layer.head_dim * static_cast<double>(kv_element_bytes(kv_)) *
               static_cast<double>(seen);
    }
    return bytes;
  }

  Flags flags_;
  EngineOptions options_;
  std::shared_ptr<Device> device_;
  Model model_;
  KvFormat kv_;
  Batch batch_;
  ForwardResult result_;
};

int run(const Flags& flags) {
  if (flags.prompt == 0 && flags.generate == 0) fail("--prompt and --generate are both 0: nothing to measure");
  Bench bench(flags);
  Progress progress("measuring", static_cast<uint64_t>(2 * flags.rounds + 1), ProgressUnit::kItems);
  std::vector<double> prefill;
  std::vector<double> decode;
  for (int round = -1; round < flags.rounds; ++round) {  // round -1 warms the page cache and the buffers
    const double p = flags.prompt > 0 ? bench.prefill_once() : 0.0;
    progress.add(1);
    const double d = flags.generate > 0 && round >= 0 ? bench.decode_once() : 0.0;
    if (round < 0) continue;
    progress.add(1);
    if (flags.prompt > 0) prefill.push_back(p);
    if (flags.generate > 0) decode.push_back(d);
  }
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);  // before the bandwidth buffer
  const double rss = static_cast<double>(usage.ru_maxrss) * 1024.0;
  ThreadPool pool(bench.threads());
  const double bandwidth = measure_read_bandwidth(pool);
  progress.finish();

  const double bytes = bench.bytes_per_token();
  const double decode_rate = median(decode);
  const double steps = decode_rate / flags.batch;
  if (flags.json) {
    const Json json{{"model", flags.model.model},
                    {"device", bench.device().description()},
                    {"precision", flags.model.precision},
                    {"threads", bench.threads()},
                    {"prompt_tokens", flags.prompt},
                    {"generated_tokens", flags.generate},
                    {"depth", flags.depth},
                    {"batch", flags.batch},
                    {"rounds", flags.rounds},
                    {"prefill_tokens_per_second", median(prefill)},
                    {"decode_tokens_per_second", decode_rate},
                    {"decode_bytes_per_token", bytes},
                    {"decode_bandwidth_share", steps * bytes / bandwidth},
                    {"read_bandwidth_bytes_per_second", bandwidth},
                    {"peak_rss_bytes", rss}};
    std::puts(json.dump(2).c_str());
    return 0;
  }
  fmt::print("{}: {}\n", flags.model.model, bench.device().description());
  fmt::print("{:<28}{:>12}\n", "memory read bandwidth", fmt::format("{:.1f} GB/s", bandwidth / 1e9));
  if (flags.prompt > 0) {
    fmt::print("{:<28}{:>12}\n",
               fmt::format("prefill {}{}", flags.prompt, flags.depth > 0 ? fmt::format(" at {}", flags.depth) : ""),
               fmt::format("{:.1f} tok/s", median(prefill)));
  }
  if (flags.generate > 0) {
    fmt::print("{:<28}{:>12}   {:.1f} MB a token, {:.1f} GB/s, {:.0f} % of the bandwidth\n",
               fmt::format("decode {}{}", flags.generate, flags.batch > 1 ? fmt::format(" x {}", flags.batch) : ""),
               fmt::format("{:.1f} tok/s", decode_rate), bytes / 1e6, steps * bytes / 1e9,
               100.0 * steps * bytes / bandwidth);
  }
  fmt::print("{:<28}{:>12}\n", "peak memory", format_bytes(static_cast<uint64_t>(rss)));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("bench", "Measure prefill and decode speed");
  add_model_flags(*verb, flags->model);
  verb->add_option("--prompt", flags->prompt, "Prompt tokens to read (0: skip)")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--generate", flags->generate, "Tokens to generate (0: skip)")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--depth", flags->depth, "Tokens already in the context")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--batch", flags->batch, "Sequences decoded together")
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

// What a prompt costs that has been read before.
//
//   prefix_reuse MODEL [--prompt 4096] [--threads N] [--rounds 5] [--json]
//
// Times the first token of a prompt computed from nothing, with another conversation in between out of the tree of
// prefixes, and out of a file; and says how many of its tokens were found. Results are those of the cold run, which is
// checked, too.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "carat/engine.h"
#include "checkpoint/store.h"

namespace carat {
namespace {

struct Flags {
  std::string model;
  int prompt = 4096;
  int threads = 0;
  int rounds = 5;
  bool json = false;
};

/// One way to the first token.
struct Way {
  double seconds = 1e30;  // of the prompt, the best round
  double restore_seconds = 0.0;
  int64_t reused = 0;
  std::vector<int> tokens;
};

std::vector<int> some_prompt(int tokens, int vocab, int seed) {
  std::vector<int> prompt{2};
  for (int64_t i = 1; i < tokens; ++i) prompt.push_back(static_cast<int>((i * 7919 + seed) % std::min(vocab, 50000)));
  return prompt;
}

void measure(Engine& engine, const std::vector<int>& prompt, Way& way) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = 4;
  const GenerateResult result = engine.generate(request);
  way.seconds = std::min(way.seconds, result.prefill_seconds);
  way.reused = result.reused_tokens;
  way.tokens = result.tokens;
}

int run(const Flags& flags) {
  const std::filesystem::path path = resolve_model(flags.model);
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("prefix_reuse." + std::to_string(::getpid()));
  Engine engine = Engine::load(path, {.threads = flags.threads});
  const std::vector<int> prompt = some_prompt(flags.prompt, engine.vocab_size(), 13);
  const std::vector<int> other = some_prompt(100, engine.vocab_size(), 17);
  Way cold;
  Way tree;
  Way disk;
  measure(engine, other, tree);  // the weights are in memory now
  measure(engine, prompt, cold);
  engine.save_prompt_cache(file);
  tree = {};
  for (int i = 0; i < flags.rounds; ++i) {
    Way between;
    measure(engine, other, between);
    measure(engine, prompt, tree);
  }
  {
    Engine fresh = Engine::load(path, {.threads = flags.threads});
    Way warm;
    measure(fresh, other, warm);
    const auto start = std::chrono::steady_clock::now();
    fresh.load_prompt_cache(file);
    disk.restore_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    measure(fresh, prompt, disk);
  }
  const auto bytes = std::filesystem::file_size(file);
  std::filesystem::remove(file);
  if (tree.tokens != cold.tokens || disk.tokens != cold.tokens) fail("a reused prefix gave other tokens");

  const double disk_seconds = disk.restore_seconds + disk.seconds;
  if (flags.json) {
    const nlohmann::ordered_json json{{"prompt", flags.prompt},
                                      {"cold_seconds", cold.seconds},
                                      {"tree_seconds", tree.seconds},
                                      {"tree_reused", tree.reused},
                                      {"tree_speedup", cold.seconds / tree.seconds},
                                      {"disk_seconds", disk_seconds},
                                      {"disk_reused", disk.reused},
                                      {"disk_bytes", bytes},
                                      {"disk_speedup", cold.seconds / disk_seconds}};
    std::puts(json.dump(2).c_str());
    return 0;
  }
  fmt::print("{:<12}{:>10.1f} ms\n", "computed", cold.seconds * 1e3);
  fmt::print("{:<12}{:>10.1f} ms   {} of {} tokens found, {:.0f} times as fast\n", "in memory", tree.seconds * 1e3,
             tree.reused, flags.prompt, cold.seconds / tree.seconds);
  fmt::print("{:<12}{:>10.1f} ms   {} found, {:.1f} MB read in {:.1f} ms, {:.0f} times as fast\n", "from a file",
             disk_seconds * 1e3, disk.reused, static_cast<double>(bytes) / 1e6, disk.restore_seconds * 1e3,
             cold.seconds / disk_seconds);
  return 0;
}

}  // namespace
}  // namespace carat

int main(int argc, char** argv) {
  carat::Flags flags;
  CLI::App app{"Times a prompt that has been read before."};
  app.add_option("MODEL", flags.model)->required();
  app.add_option("--prompt", flags.prompt)->check(CLI::Range(100, 10000000));
  app.add_option("--threads", flags.threads)->check(CLI::Range(0, 1024));
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000));
  app.add_flag("--json", flags.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return carat::run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefix_reuse: %s\n", error.what());
    return 1;
  }
}

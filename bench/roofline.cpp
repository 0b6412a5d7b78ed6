// What this machine can do at most, and what share of that a model reaches.
//
//   roofline [MODEL] [--threads N] [--isa NAME] [--prompt 512] [--generate 64] [--depth 0] [--batch 1] [--rounds 5]
//            [--directory DIR] [--json]
//
// Measures the read bandwidth of ordinary memory in huge and in 4 KiB pages and of a mapped file in the page cache
// (what weights are), the rates of integer and float32 multiply-adds, all with one thread and with all. With MODEL also
// whole steps: what they read and multiply, how long that takes at those rates, and what share of it they reach.
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/store.h"
#include "cli/bandwidth.h"
#include "cli/speed_test.h"
#include "peaks.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBytes = size_t{512} << 20;  // more than any cache

struct Flags {
  std::string model;
  std::string isa;
  std::string directory;
  int threads = 0;
  Workload workload{.prompt = 512, .generate = 64};
  int rounds = 5;
  bool json = false;
};

/// Anonymous memory with pages of one size, written once.
class Pages {
 public:
  explicit Pages(bool huge) {
    data_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) fail("cannot take {} bytes of memory: {}", kBytes, std::strerror(errno));
    // Advice: where the system does not follow it, both kinds measure the same.
    ::madvise(data_, kBytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(data_, 1, kBytes);
  }
  ~Pages() { ::munmap(data_, kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  Spans spans() const { return {{static_cast<const std::byte*>(data_), kBytes}}; }

 private:
  void* data_ = nullptr;
};

/// A file of which only the mapping is left.
std::shared_ptr<const MappedFile> map_temporary_file(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / fmt::format("carat-roofline-{}", ::getpid());
  {
    std::ofstream file(path, std::ios::binary);
    const std::vector<char> part(size_t{4} << 20, 1);
    for (size_t done = 0; done < kBytes; done += part.size())
      file.write(part.data(), static_cast<int64_t>(part.size()));
    if (!file.flush()) {
      std::filesystem::remove(path);
      fail("cannot write {} bytes to {}: {}", kBytes, path.string(), std::strerror(errno));
    }
  }
  auto mapped = MappedFile::open(path);
  std::filesystem::remove(path);
  return mapped;
}

struct Bandwidth {
  std::string name;  // also the JSON key
  double one = 0.0;  // bytes a second, one thread
  double all = 0.0;
};

struct Machine {
  int threads = 0;
  std::vector<Bandwidth> bandwidths;
  std::vector<Peak> one, all;
};

Machine measure_machine(const Flags& flags) {
  ThreadPool one(1);
  ThreadPool all(flags.threads);
  Machine machine{.threads = all.threads(), .bandwidths = {}, .one = measure_peaks(one), .all = measure_peaks(all)};
  const auto add = [&](const char* name, const Spans& spans) {
    machine.bandwidths.push_back({name, measure_read_bandwidth(one, spans), measure_read_bandwidth(all, spans)});
  };
  add("huge_pages", Pages(true).spans());
  add("small_pages", Pages(false).spans());
  const auto file = map_temporary_file(flags.directory);
  add("mapped_file", {file->bytes()});
  return machine;
}

/// A step beside the least time that its bytes and its products take.
struct Step {
  std::string name;
  double tokens = 0.0;  // of one step
  StepCost cost;        // of one step
  double rate = 0.0;    // tokens a second, measured
  double bandwidth = 0.0;
  double integer_peak = 0.0;
  double float_peak = 0.0;

  double memory_seconds() const { return cost.bytes() / bandwidth; }
  double arithmetic_seconds() const {
    if (integer_peak <= 0.0 || float_peak <= 0.0) return 0.0;
    return cost.integer_macs / integer_peak + cost.float_macs / float_peak;
  }
  double least_seconds() const { return std::max(memory_seconds(), arithmetic_seconds()); }
  double limit() const { return tokens / least_seconds(); }
  double share() const { return rate / limit(); }
  const char* bound() const { return memory_seconds() >= arithmetic_seconds() ? "memory" : "arithmetic"; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Isa wanted_isa(const std::string& name) {
  const std::vector<Isa> supported = supported_isas();
  if (name.empty()) return supported.back();
  const auto found = std::find_if(supported.begin(), supported.end(), [&](Isa isa) { return isa_name(isa) == name; });
  if (found == supported.end()) fail("--isa is \"{}\", which this machine or build does not support", name);
  return *found;
}

std::vector<Step> measure_steps(const Flags& flags, const Machine& machine) {
  const Workload& w = flags.workload;
  const Isa isa = wanted_isa(flags.isa);
  SpeedTest test(resolve_model(flags.model), {.threads = machine.threads}, w, isa);
  test.warm_up();
  const Spans weights = streamed_weights(test.model().checkpoint());
  ThreadPool pool(machine.threads);
  std::vector<double> prefill, decode, bandwidth;
  for (int round = 0; round < flags.rounds; ++round) {
    if (w.prompt > 0) prefill.push_back(test.prefill_once());
    if (w.generate > 0) decode.push_back(test.decode_once());
    bandwidth.push_back(measure_read_bandwidth(pool, weights));
  }
  std::vector<Step> steps;
  const auto add = [&](const std::string& name, double tokens, const StepCost& cost, const std::vector<double>& rates) {
    steps.push_back({.name = name,
                     .tokens = tokens,
                     .cost = cost,
                     .rate = median(rates),
                     .bandwidth = median(bandwidth),
                     .integer_peak = integer_peak(machine.all, std::string(isa_name(isa))),
                     .float_peak = float_peak(machine.all, std::string(isa_name(isa)))});
  };
  if (w.prompt > 0) add("prefill", w.prompt, test.prefill_cost(), prefill);
  if (w.generate > 0) add("decode", w.batch, test.decode_cost(), decode);
  return steps;
}

Json to_json(const Machine& machine) {
  Json json{{"threads", machine.threads}, {"bandwidth", Json::array()}, {"peaks", Json::array()}};
  for (const Bandwidth& b : machine.bandwidths) {
    json["bandwidth"].push_back(
        {{"memory", b.name}, {"one_thread_bytes_per_second", b.one}, {"all_threads_bytes_per_second", b.all}});
  }
  for (size_t i = 0; i < machine.all.size(); ++i) {
    json["peaks"].push_back({{"instruction", machine.all[i].name},
                             {"isa", machine.all[i].isa},
                             {"kind", machine.all[i].kind},
                             {"one_thread_macs_per_second", machine.one[i].macs_per_second},
                             {"all_threads_macs_per_second", machine.all[i].macs_per_second}});
  }
  return json;
}

Json to_json(const Step& step) {
  return {{"step", step.name},
          {"tokens_per_second", step.rate},
          {"limit_tokens_per_second", step.limit()},
          {"share", step.share()},
          {"bound", step.bound()},
          {"bytes_per_token", step.cost.bytes() / step.tokens},
          {"integer_macs_per_token", step.cost.integer_macs / step.tokens},
          {"float_macs_per_token", step.cost.float_macs / step.tokens},
          {"memory_seconds_per_token", step.memory_seconds() / step.tokens},
          {"arithmetic_seconds_per_token", step.arithmetic_seconds() / step.tokens},
          {"read_bandwidth_bytes_per_second", step.bandwidth},
          {"integer_peak_macs_per_second", step.integer_peak},
          {"float_peak_macs_per_second", step.float_peak}};
}

void print(const Machine& machine, const std::vector<Step>& steps, const Flags& flags) {
  fmt::print("{:<34}{:>10}{:>14}\n", "", "1 thread", fmt::format("{} threads", machine.threads));
  for (const Bandwidth& b : machine.bandwidths) {
    fmt::print("{:<34}{:>10.1f}{:>14.1f}  GB/s\n", "read, " + b.name, b.one / 1e9, b.all / 1e9);
  }
  for (size_t i = 0; i < machine.all.size(); ++i) {
    const Peak& peak = machine.all[i];
    fmt::print("{:<34}{:>10.1f}{:>14.1f}  G {} multiply-adds/s\n", peak.name, machine.one[i].macs_per_second / 1e9,
               peak.macs_per_second / 1e9, peak.kind == "fma" ? "float32" : peak.kind);
  }
  if (steps.empty()) return;
  fmt::print("\n{}, {} threads, weights read at {:.1f} GB/s\n", flags.model, machine.threads, steps[0].bandwidth / 1e9);
  fmt::print("{:<9}{:>10}{:>10}{:>8}  {:<12}{:>10}{:>15}{:>15}\n", "", "tok/s", "limit", "share", "bound by", "MB/tok",
             "int MMAC/tok", "f32 MMAC/tok");
  for (const Step& step : steps) {
    fmt::print("{:<9}{:>10.1f}{:>10.1f}{:>7.0f}%  {:<12}{:>10.1f}{:>15.1f}{:>15.1f}\n", step.name, step.rate,
               step.limit(), 100.0 * step.share(), step.bound(), step.cost.bytes() / step.tokens / 1e6,
               step.cost.integer_macs / step.tokens / 1e6, step.cost.float_macs / step.tokens / 1e6);
  }
}

int run(const Flags& flags) {
  const Machine machine = measure_machine(flags);
  std::vector<Step> steps;
  if (!flags.model.empty()) steps = measure_steps(flags, machine);
  if (!flags.json) {
    print(machine, steps, flags);
    return 0;
  }
  Json json{{"kind", "roofline"}, {"machine", to_json(machine)}};
  if (!flags.model.empty()) {
    json["model"] = std::filesystem::path(flags.model).filename().string();
    json["isa"] = isa_name(wanted_isa(flags.isa));
    json["workload"] = {{"prompt_tokens", flags.workload.prompt},
                        {"generated_tokens", flags.workload.generate},
                        {"depth", flags.workload.depth},
                        {"batch", flags.workload.batch},
                        {"rounds", flags.rounds}};
    json["steps"] = Json::array();
    for (const Step& step : steps) json["steps"].push_back(to_json(step));
  }
  std::puts(json.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace carat

int main(int argc, char** argv) {
  carat::Flags flags;
  flags.directory = std::filesystem::temp_directory_path().string();
  CLI::App app("What this machine can do at most, and what share of that a model reaches");
  app.add_option("model", flags.model, "Measure whole steps of this model, too");
  app.add_option("--threads", flags.threads, "0: one per physical core")->check(CLI::Range(0, 4096));
  app.add_option("--isa", flags.isa, "Kernels to run the model with: avx2, avx512 (default: the best)");
  app.add_option("--prompt", flags.workload.prompt, "Prompt tokens (0: skip)")->check(CLI::Range(0, 1000000));
  app.add_option("--generate", flags.workload.generate, "Tokens to decode (0: skip)")->check(CLI::Range(0, 1000000));
  app.add_option("--depth", flags.workload.depth, "Tokens already in the context")->check(CLI::Range(0, 1000000));
  app.add_option("--batch", flags.workload.batch, "Sequences decoded together")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", flags.rounds, "Repetitions; medians are shown")->check(CLI::Range(1, 1000));
  app.add_option("--directory", flags.directory, "Where to put a temporary file of 512 MiB")->capture_default_str();
  app.add_flag("--json", flags.json, "As JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return carat::run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "roofline: %s\n", error.what());
    return 1;
  }
}

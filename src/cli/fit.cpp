// carat fit: what a model takes of the memory, and how much of it fits.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/memory.h"
#include "base/progress.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "engine/memory_plan.h"

namespace carat {
namespace {

struct Flags {
  std::string model;
  std::vector<std::string> adapters;
  KvFlags kv;
  int64_t context = 0;  // 0: the model's
  int64_t parallel = 1;
  int chunk = 512;
  std::string precision = "fast";
  std::optional<size_t> memory;
  size_t prefix_cache = 0;
  bool json = false;
};

struct Facts {
  MemoryPlan plan;
  int64_t context = 0;
  int64_t model_context = 0;
  size_t memory = 0;
  int64_t longest = 0;  // context that fits with the sequences asked for
  int64_t most = 0;     // sequences that fit with the context asked for

  bool fits() const { return plan.peak() <= memory; }
};

Facts gather(const Flags& flags) {
  const auto checkpoint = Checkpoint::open(resolve_model(flags.model));
  Facts facts;
  facts.model_context = checkpoint->config().max_positions;
  facts.context = flags.context > 0 ? flags.context : facts.model_context;
  if (facts.context > facts.model_context) {
    fail("--ctx is {}; the model's context is {}", facts.context, facts.model_context);
  }
  facts.memory = flags.memory.value_or(usable_memory());
  EngineOptions options{.precision = flags.precision == "exact" ? Precision::kExact : Precision::kFast,
                        .chunk = flags.chunk};
  flags.kv.apply(options);
  options.prefix_cache_bytes = flags.prefix_cache;
  MemoryRequest request{.context = facts.context, .sequences = flags.parallel, .options = options};
  for (const std::string& path : flags.adapters) {
    request.adapters.push_back(adapter_size(path, checkpoint->config()));
  }
  facts.plan = plan_memory(*checkpoint, request);
  facts.longest = longest_context(*checkpoint, request, facts.memory);
  facts.most = most_sequences(*checkpoint, request, facts.memory);
  return facts;
}

void print_json(const Flags& flags, const Facts& facts) {
  const MemoryPlan& p = facts.plan;
  const Json json{{"model", flags.model},
                  {"context", facts.context},
                  {"parallel", flags.parallel},
                  {"memory", facts.memory},
                  {"mapped", p.mapped},
                  {"weights", p.weights},
                  {"table_rows", p.rows},
                  {"headers", p.headers},
                  {"tokenizer", p.tokenizer},
                  {"adapters", p.adapters},
                  {"activations", p.activations},
                  {"kv_per_sequence", p.kv_per_sequence},
                  {"kv_per_token", p.kv_per_token},
                  {"kv", p.kv},
                  {"prefix_cache", p.prefix_cache},
                  {"process", p.process},
                  {"peak", p.peak()},
                  {"fits", facts.fits()},
                  {"longest_context", facts.longest},
                  {"most_sequences", facts.most}};
  std::puts(json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void line(std::string_view name, size_t bytes, const std::string& remark) {
  fmt::print("{:<14}{:>10}   {}\n", name, format_bytes(bytes), remark);
}

void print(const Flags& flags, const Facts& facts) {
  const MemoryPlan& p = facts.plan;
  line("weights", p.weights, fmt::format("read for every token, of {} mapped", format_bytes(p.mapped)));
  if (p.rows > 0) line("table rows", p.rows, fmt::format("what a text of {} tokens touches of tables", facts.context));
  line("headers", p.headers, "names, shapes and vocabulary in the files");
  line("tokenizer", p.tokenizer, "");
  if (!flags.adapters.empty()) {
    line(flags.adapters.size() == 1 ? "adapter" : "adapters", p.adapters,
         "A and B as float32, whatever the files have");
  }
  line("activations", p.activations,
       fmt::format("of {} rows a forward", std::min<int64_t>(flags.chunk, facts.context)));
  line("KV cache", p.kv,
       fmt::format("{} x {} tokens, {} each; then {} a token", flags.parallel, facts.context,
                   format_bytes(p.kv_per_sequence), format_bytes(p.kv_per_token)));
  if (p.prefix_cache > 0) line("prefix cache", p.prefix_cache, "when it is full");
  line("program", p.process, "");
  line("peak", p.peak(),
       fmt::format("{} {}", facts.fits() ? "fits into" : "does not fit into", format_bytes(facts.memory)));
  fmt::print("\n{:<14}{:>10}   {}\n", "longest", facts.longest,
             fmt::format("tokens of context for {} sequence{}, of {}", flags.parallel, flags.parallel == 1 ? "" : "s",
                         facts.model_context));
  fmt::print("{:<14}{:>10}   {}\n", "most", facts.most, fmt::format("sequences of {} tokens", facts.context));
}

int run(const Flags& flags) {
  const Facts facts = gather(flags);
  if (flags.json) {
    print_json(flags, facts);
  } else {
    print(flags, facts);
  }
  return 0;
}

}  // namespace

void add_fit(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("fit", "Say what a model takes of the memory, and how much of it fits");
  add_model_argument(*verb, flags->model);
  verb->add_option("--ctx", flags->context, "Tokens of each sequence (default: the model's context)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  verb->add_option("--parallel", flags->parallel, "Sequences at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--memory", flags->memory, "What there is, such as 16GB (default: the memory of this machine)")
      ->transform(CLI::AsSizeValue(false));
  verb->add_option("--prefix-cache", flags->prefix_cache, "What to keep for prompts that begin alike, such as 512MB")
      ->transform(CLI::AsSizeValue(false));
  verb->add_option("--precision", flags->precision, "fast or exact")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str();
  add_adapter_flag(*verb, flags->adapters);
  add_kv_flags(*verb, flags->kv);
  verb->add_option("--chunk", flags->chunk, "Prompt tokens per forward")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "As JSON, in bytes");
  add_examples(*verb,
               "  carat fit gemma3-270m\n"
               "  carat fit ./gemma-4-31b-it --ctx 32768 --parallel 4 --kv q8 --memory 48GB");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

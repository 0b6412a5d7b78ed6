#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "checkpoint/kv_config.h"
#include "cli/terminal.h"

namespace carat {
namespace {

std::pair<int, float> parse_bias(const std::string& bias) {
  int id = 0;
  float value = 0.0f;
  const char* end = bias.data() + bias.size();
  const auto [colon, id_error] = std::from_chars(bias.data(), end, id);
  if (id_error == std::errc() && colon != end && *colon == ':') {
    const auto [rest, value_error] = std::from_chars(colon + 1, end, value);
    if (value_error == std::errc() && rest == end) return {id, value};
  }
  throw UsageError(fmt::format("--logit-bias is \"{}\"; expected ID:BIAS, such as 106:-5 or 106:-inf", bias));
}

}  // namespace

EngineOptions ModelFlags::engine_options() const {
  EngineOptions options{
      .threads = threads, .precision = precision == "exact" ? Precision::kExact : Precision::kFast, .chunk = chunk};
  kv.apply(options);
  options.adapters.assign(adapters.begin(), adapters.end());
  return options;
}

std::optional<KvChoice> KvFlags::choice() const {
  if (!config.empty()) {
    if (!all.empty() || !k.empty() || !v.empty()) {
      throw UsageError("--kv-config says what every layer stores; it does not go together with --kv, --kv-k or --kv-v");
    }
    return read_kv_config(config);
  }
  if (all.empty() && k.empty() && v.empty()) return std::nullopt;
  const auto parsed = [](const char* flag, const std::string& name, const auto& parse) {
    try {
      return parse(name);
    } catch (const Error& error) {
      throw UsageError(fmt::format("{}: {}", flag, error.what()));
    }
  };
  KvChoice choice = KvFormat::kF16;
  if (!all.empty()) choice = parsed("--kv", all, parse_kv_choice);
  for (KvFormats* formats : {&choice.full, &choice.sliding}) {
    if (!k.empty()) formats->k = parsed("--kv-k", k, parse_kv_format);
    if (!v.empty()) formats->v = parsed("--kv-v", v, parse_kv_format);
  }
  return choice;
}

void KvFlags::apply(EngineOptions& options) const {
  options.kv = choice();
  options.kv_recent = recent;
}

void add_model_argument(CLI::App& verb, std::string& model) {
  verb.add_option(
          "MODEL", model,
          "A directory with config.json, a .gguf file, a name in the store (carat ls), or a hub id (owner/name)")
      ->required();
}

void add_model_flags(CLI::App& verb, ModelFlags& flags) {
  add_model_argument(verb, flags.model);
  verb.add_option("--threads", flags.threads, "Threads; 0 takes one per physical core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb.add_option("--precision", flags.precision, "fast: integer dot products; exact: float32 throughout")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str();
  add_kv_flags(verb, flags.kv);
  verb.add_option("--chunk", flags.chunk, "Prompt tokens per forward; changes memory and speed, never the result")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
}

void add_adapter_flag(CLI::App& verb, std::vector<std::string>& adapters) {
  verb.add_option("--adapter", adapters,
                  "A LoRA adapter: a directory of mlx-lm or PEFT; may be repeated, then their corrections add up")
      ->allow_extra_args(false)
      ->check(CLI::ExistingPath);
}

void add_kv_flags(CLI::App& verb, KvFlags& flags) {
  verb.add_option("--kv", flags.all,
                  "Format of cached keys and values: f32, f16, bf16, q8, q4 (qB or qBgG), turbo:kAvB (default: the "
                  "model's kv_config.json, else f16; f32 with --precision exact)");
  verb.add_option("--kv-k", flags.k, "Format of keys, where it differs: f32, f16, bf16, q8, q4 …");
  verb.add_option("--kv-v", flags.v, "Format of values, where it differs");
  verb.add_option("--kv-recent", flags.recent,
                  "Latest positions, at least, that coded layers without a window read as f16 (default: 0)")
      ->check(CLI::Range(0, kMostRecentKv));
  verb.add_option("--kv-config", flags.config, "A kv_config.json: bits and groups layer by layer");
}

void add_sampling_flags(CLI::App& verb, SamplingFlags& flags) {
  const std::string group = "Sampling";
  SamplingChoice& values = flags.values;
  verb.add_option("--temperature,--temp", values.temperature, "0 is greedy (default: the model's recommendation)")
      ->group(group);
  verb.add_flag("--greedy", flags.greedy, "Always the most probable token")->group(group);
  verb.add_option("--top-k", values.top_k, "Keep the k best tokens")->group(group);
  verb.add_option("--top-p", values.top_p, "Keep the best tokens up to this probability together")->group(group);
  verb.add_option("--min-p", values.min_p, "Drop tokens below this share of the best one's probability")->group(group);
  verb.add_option("--xtc-probability", values.xtc_probability, "How often to drop the top choices")->group(group);
  verb.add_option("--xtc-threshold", values.xtc_threshold, "Probability above which a token counts as a top choice")
      ->group(group);
  verb.add_option("--repetition-penalty", values.repetition_penalty, "Divides the logits of recent tokens")
      ->group(group);
  verb.add_option("--repetition-context", values.repetition_context, "How many tokens back (0: all)")->group(group);
  verb.add_option("--presence-penalty", values.presence_penalty, "Subtracted once for each recent token")->group(group);
  verb.add_option("--presence-context", values.presence_context, "How many tokens back (0: all)")->group(group);
  verb.add_option("--frequency-penalty", values.frequency_penalty, "Subtracted for each recent occurrence")
      ->group(group);
  verb.add_option("--frequency-context", values.frequency_context, "How many tokens back (0: all)")->group(group);
  verb.add_option("--logit-bias", flags.logit_bias, "ID:BIAS, added to that token's logit; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  verb.add_flag("--hlg", flags.hlg.enabled, "Tone curve over log-probabilities instead of the filters above")
      ->group(group);
  verb.add_option("--hlg-width", flags.hlg.width, "Where the curve's linear part ends")->group(group);
  verb.add_option("--hlg-shoulder", flags.hlg.shoulder, "Softness of its upper end")->group(group);
  verb.add_option("--hlg-toe", flags.hlg.toe, "Softness of its lower end")->group(group);
  verb.add_option("--hlg-pivot-offset", flags.hlg.pivot_offset, "How far below the best token its middle lies")
      ->group(group);
  verb.add_option("--seed", values.seed, "Same seed, same text (default: a fresh one)")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
}

SamplingChoice SamplingFlags::choice() const {
  SamplingChoice choice = values;
  choice.hlg = hlg;
  if (greedy) choice.temperature = 0.0f;
  for (const std::string& bias : logit_bias) choice.logit_bias.push_back(parse_bias(bias));
  SamplingParams params;
  choice.apply_to(params);
  try {
    validate(params);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return choice;
}

SamplingParams SamplingFlags::resolve(SamplingParams recommended) const {
  const SamplingChoice chosen = choice();
  chosen.apply_to(recommended);
  if (!chosen.seed) {
    std::random_device device;
    recommended.seed = (uint64_t{device()} << 32) | device();
  }
  return recommended;
}

void add_examples(CLI::App& verb, const std::string& examples) {
  verb.footer("Examples:\n" + examples);
}

std::string read_input(const std::string& path, const std::string& what) {
  if (path == "-") {
    if (is_terminal(0))
      throw UsageError(what + " is missing: give it on the command line, in a file or through a pipe");
    return {std::istreambuf_iterator<char>(std::cin), {}};
  }
  if (std::filesystem::is_directory(path)) fail("{} is a directory; expected a file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot open {}", path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail("cannot read {}", path);
  return text;
}

std::string text_input(const std::optional<std::string>& text, const std::string& file, const std::string& what) {
  if (text && !file.empty()) throw UsageError(what + " is given twice: on the command line and with --file");
  return text ? *text : read_input(file.empty() ? "-" : file, what);
}

std::vector<int> parse_ids(const std::string& text, const std::string& origin) {
  std::vector<int> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto separator = [](char c) { return c == ' ' || c == ',' || c == '\n' || c == '\r' || c == '\t'; };
  while (true) {
    while (at != end && separator(*at)) ++at;
    if (at == end) break;
    int id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && !separator(*next))) {
      const char* word = std::find_if(at, end, separator);
      fail("{}: \"{}\" is not a token id", origin, std::string(at, std::min<const char*>(word, at + 40)));
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) fail("{}: no token ids", origin);
  return ids;
}

}  // namespace carat

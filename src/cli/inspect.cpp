// carat inspect: what a model is, from its headers alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/progress.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/model_report.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/prompt_format.h"
#include "model/kv_choice.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

struct Flags {
  std::string model;
  KvFlags kv;
  bool all = false;
  bool tensors = false;
  bool json = false;
};

/// Everything that the report is made of.
struct Facts {
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelPlan plan;
  std::shared_ptr<const Tokenizer> tokenizer;  // null when the model has none
  std::string tokenizer_problem;               // why it is null
  std::vector<int> stop_ids;
  KvChoice kv;

  const ModelConfig& config() const { return checkpoint->config(); }
  /// Of the keys and values that layer `index` reads.
  KvFormats formats(int index) const {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(index)];
    return layer_formats(kv, plan, plan.owners[static_cast<size_t>(layer.cache)]);
  }
};

Facts gather(const Flags& flags) {
  Facts facts;
  facts.checkpoint = Checkpoint::open(resolve_model(flags.model));
  facts.plan = make_plan(facts.config());
  EngineOptions options;
  flags.kv.apply(options);
  facts.kv = kv_choice_for(options, *facts.checkpoint);
  check_layers(facts.kv, facts.plan);
  facts.stop_ids = facts.checkpoint->stop_ids();
  try {
    facts.tokenizer = Tokenizer::load(*facts.checkpoint);
  } catch (const Error& error) {  // a model without a vocabulary can still be looked at
    facts.tokenizer_problem = error.what();
    return facts;
  }
  const std::vector<int>& eos = facts.tokenizer->eos_ids();
  facts.stop_ids.insert(facts.stop_ids.end(), eos.begin(), eos.end());
  std::sort(facts.stop_ids.begin(), facts.stop_ids.end());
  facts.stop_ids.erase(std::unique(facts.stop_ids.begin(), facts.stop_ids.end()), facts.stop_ids.end());
  return facts;
}

/// 1k, 8k, 32k and the longest, as far as the model goes.
std::vector<int64_t> contexts(const ModelConfig& config) {
  std::vector<int64_t> lengths;
  for (const int64_t length : {1024, 8192, 32768}) {
    if (length < config.max_positions) lengths.push_back(length);
  }
  lengths.push_back(config.max_positions);
  return lengths;
}

std::string_view kind_name(LayerKind kind) {
  return kind == LayerKind::kFull ? "full" : "sliding";
}

std::optional<std::string> stop_piece(const Facts& facts, int id) {
  if (facts.tokenizer == nullptr || id < 0 || id >= facts.tokenizer->vocab_size()) return std::nullopt;
  return std::string(facts.tokenizer->piece(id));
}

Json rope_json(const RopeConfig& rope) {
  return {{"type", rope.type == RopeConfig::Type::kProportional ? "proportional" : "default"},
          {"theta", rope.theta},
          {"partial", rope.partial},
          {"factor", rope.factor}};
}

Json architecture_json(const ModelConfig& c) {
  Json json{{"model_type", c.model_type},
            {"family", c.family == Family::kGemma4 ? "gemma4" : "gemma3"},
            {"layers", c.layer_count()},
            {"hidden", c.hidden},
            {"heads", c.heads},
            {"vocab", c.vocab},
            {"window", c.window},
            {"max_positions", c.max_positions},
            {"tied_head", c.tied_head},
            {"final_softcap", c.final_softcap ? Json(*c.final_softcap) : Json()},
            {"kv_shared_layers", c.kv_shared_layers},
            {"per_layer_input_width", c.pli_width},
            {"experts", c.experts},
            {"experts_per_token", c.experts_per_token},
            {"expert_width", c.expert_width},
            {"rope_sliding", rope_json(c.rope_sliding)},
            {"rope_full", rope_json(c.rope_full)}};
  return json;
}

Json layers_json(const Facts& facts) {
  Json layers = Json::array();
  for (const LayerRange& range : layer_ranges(facts.plan, false)) {
    const LayerPlan& plan = range.plan;
    layers.push_back({{"index", range.first},
                      {"kind", kind_name(plan.kind)},
                      {"heads", facts.config().heads},
                      {"kv_heads", plan.kv_heads},
                      {"head_dim", plan.head_dim},
                      {"k_eq_v", plan.k_eq_v},
                      {"owns_kv", plan.owns_kv},
                      {"k_format", kv_format_name(facts.formats(range.first).k)},
                      {"v_format", kv_format_name(facts.formats(range.first).v)},
                      {"kv_recent", facts.formats(range.first).recent},
                      {"kv_layer", plan.cache},
                      {"mlp_width", plan.mlp_width},
                      {"experts", facts.config().experts}});
  }
  return layers;
}

Json sampling_json(const Checkpoint& checkpoint) {
  const auto& defaults = checkpoint.sampling_defaults();
  return {{"temperature", defaults.temperature ? Json(*defaults.temperature) : Json()},
          {"top_k", defaults.top_k ? Json(*defaults.top_k) : Json()},
          {"top_p", defaults.top_p ? Json(*defaults.top_p) : Json()}};
}

Json to_json(const Facts& facts) {
  const Checkpoint& checkpoint = *facts.checkpoint;
  const ModelConfig& c = facts.config();
  Json tensors = Json::array();
  size_t used = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    tensors.push_back({{"name", t.name},
                       {"canonical", t.canonical.empty() ? Json() : Json(t.canonical)},
                       {"shape", t.shape},
                       {"format", t.format},
                       {"bytes", t.bytes}});
    if (!t.canonical.empty()) used += t.bytes;
  }
  Json formats = Json::array();
  for (const FormatShare& share : format_shares(checkpoint.tensors())) {
    formats.push_back({{"format", share.format},
                       {"tensors", share.tensors},
                       {"bytes", share.bytes},
                       {"share", static_cast<double>(share.bytes) / static_cast<double>(std::max<size_t>(used, 1))}});
  }
  Json kv_contexts = Json::array();
  for (const int64_t tokens : contexts(c)) {
    kv_contexts.push_back({{"tokens", tokens}, {"bytes", kv_bytes(facts.plan, c.window, tokens, facts.kv)}});
  }
  Json stops = Json::array();
  for (const int id : facts.stop_ids) {
    const auto piece = stop_piece(facts, id);
    stops.push_back({{"id", id}, {"piece", piece ? Json(*piece) : Json()}});
  }
  return {{"path", checkpoint.path().string()},
          {"kind", checkpoint.gguf() != nullptr ? "gguf" : "safetensors"},
          {"architecture", architecture_json(c)},
          {"parameters", parameter_count(checkpoint.tensors())},
          {"bytes_on_disk", checkpoint.bytes_on_disk()},
          {"bytes_used", used},
          {"bytes_repacked_at_load", 0},
          {"bytes_per_token", bytes_per_token(checkpoint)},
          {"formats", formats},
          {"kv_cache",
           {{"format", kv_choice_name(facts.kv)},
            {"bytes_per_token",
             {{"full", kv_bytes_per_token(facts.plan, LayerKind::kFull, facts.kv)},
              {"sliding", kv_bytes_per_token(facts.plan, LayerKind::kSliding, facts.kv)}}},
            {"contexts", kv_contexts}}},
          {"chat_format", chat_format_name(chat_format_of(checkpoint))},
          {"stop_tokens", stops},
          {"sampling_defaults", sampling_json(checkpoint)},
          {"tokenizer", facts.tokenizer ? Json{{"size", facts.tokenizer->vocab_size()}} : Json()},
          {"layers", layers_json(facts)},
          {"tensors", tensors}};
}

void line(std::string_view name, const std::string& value) {
  fmt::print("{:<18}{}\n", name, value);
}

std::string count_text(uint64_t count) {
  const auto n = static_cast<double>(count);
  if (n >= 1e9) return fmt::format("{:.2f} billion", n / 1e9);
  return n >= 1e6 ? fmt::format("{:.1f} million", n / 1e6) : fmt::format("{}", count);
}

void print_layers(const Facts& facts, bool all) {
  const ModelConfig& c = facts.config();
  fmt::print("\n{:<9}{:<9}{:>6}{:>10}{:>10}  {:<14}{:>10}{}\n", "LAYERS", "KIND", "HEADS", "KV HEADS", "HEAD DIM",
             "K AND V", "MLP", c.has_moe() ? "  EXPERTS" : "");
  for (const LayerRange& range : layer_ranges(facts.plan, !all)) {
    const LayerPlan& plan = range.plan;
    const std::string where =
        range.first == range.last ? fmt::format("{}", range.first) : fmt::format("{}-{}", range.first, range.last);
    const std::string kv = !plan.owns_kv ? fmt::format("of layer {}", plan.cache) : plan.k_eq_v ? "own, K = V" : "own";
    fmt::print("{:<9}{:<9}{:>6}{:>10}{:>10}  {:<14}{:>10}{}\n", where, kind_name(plan.kind), c.heads, plan.kv_heads,
               plan.head_dim, kv, plan.mlp_width,
               c.has_moe() ? fmt::format("  {} of {}, {} wide", c.experts_per_token, c.experts, c.expert_width) : "");
  }
}

void print_tensors(const Checkpoint& checkpoint) {
  size_t name = 4;
  size_t shape = 5;
  size_t format = 6;
  const auto shape_of = [](const TensorInfo& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); };
  for (const TensorInfo& t : checkpoint.tensors()) {
    name = std::max(name, t.name.size());
    shape = std::max(shape, shape_of(t).size());
    format = std::max(format, t.format.size());
  }
  fmt::print("\n{:<{}}  {:<{}}  {:<{}}  {:>9}  USED AS\n", "TENSOR", name, "SHAPE", shape, "FORMAT", format, "SIZE");
  for (const TensorInfo& t : checkpoint.tensors()) {
    fmt::print("{:<{}}  {:<{}}  {:<{}}  {:>9}  {}\n", terminal_safe(t.name), name, shape_of(t), shape, t.format, format,
               format_bytes(t.bytes), t.canonical.empty() ? "(not used)" : t.canonical);
  }
}

void print_groups(const Checkpoint& checkpoint) {
  const std::vector<TensorGroup> groups = tensor_groups(checkpoint.tensors());
  size_t role = 6;
  size_t format = 6;
  for (const TensorGroup& g : groups) {
    role = std::max(role, g.role.size());
    format = std::max(format, g.format.size());
  }
  fmt::print("\n{:<{}}  {:<{}}  {:>5}  {:>9}\n", "TENSORS", std::max<size_t>(role, 7), "FORMAT", format, "COUNT",
             "SIZE");
  for (const TensorGroup& g : groups) {
    fmt::print("{:<{}}  {:<{}}  {:>5}  {:>9}\n", g.role, std::max<size_t>(role, 7), g.format, format, g.count,
               format_bytes(g.bytes));
  }
}

std::string stops_text(const Facts& facts) {
  std::vector<std::string> names;
  for (const int id : facts.stop_ids) {
    const auto piece = stop_piece(facts, id);
    names.push_back(piece ? fmt::format("{} ({})", terminal_safe(*piece), id) : fmt::format("{}", id));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string sampling_text(const Checkpoint& checkpoint) {
  const auto& defaults = checkpoint.sampling_defaults();
  std::vector<std::string> parts;
  if (defaults.temperature) parts.push_back(fmt::format("temperature {}", *defaults.temperature));
  if (defaults.top_k) parts.push_back(fmt::format("top-k {}", *defaults.top_k));
  if (defaults.top_p) parts.push_back(fmt::format("top-p {}", *defaults.top_p));
  return parts.empty() ? "none recommended (greedy)" : fmt::format("{}", fmt::join(parts, ", "));
}

/// "q8 in layers 1, 2, 4" for each of the formats of a choice that goes layer by layer.
std::vector<std::string> layers_by_format(const Facts& facts) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  if (facts.kv.layers.empty()) return {};
  for (const int owner : facts.plan.owners) {
    const KvFormats formats = layer_formats(facts.kv, facts.plan, owner);
    const std::string name = kv_choice_name(formats);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(owner);
  }
  std::vector<std::string> lines;
  lines.reserve(groups.size());
  for (const auto& [name, layers] : groups) {
    lines.push_back(fmt::format("{} in layer{} {}", name, layers.size() == 1 ? "" : "s", fmt::join(layers, ", ")));
  }
  return lines;
}

void print(const Facts& facts, const Flags& flags) {
  const Checkpoint& checkpoint = *facts.checkpoint;
  const ModelConfig& c = facts.config();
  line("model", terminal_safe(checkpoint.path().string()));
  line("architecture", fmt::format("{}, {} layers, hidden size {}, {} parameters", terminal_safe(c.model_type),
                                   c.layer_count(), c.hidden, count_text(parameter_count(checkpoint.tensors()))));
  line("vocabulary",
       fmt::format("{} tokens, {}", c.vocab, c.tied_head ? "head tied to the embedding" : "head of its own"));
  line("context", fmt::format("{} tokens, sliding window {}", c.max_positions, c.window));
  if (c.pli_width > 0) line("per-layer inputs", fmt::format("{} wide, table of {} rows", c.pli_width, c.pli_vocab));
  line("chat format",
       fmt::format("{}{}", chat_format_name(chat_format_of(checkpoint)),
                   has_chat_template(checkpoint) ? "" : " (no template in the files: a pretrained model?)"));
  line("stop tokens", stops_text(facts));
  line("sampling", sampling_text(checkpoint));
  line("tokenizer",
       facts.tokenizer ? fmt::format("{} pieces", facts.tokenizer->vocab_size()) : "none: " + facts.tokenizer_problem);

  size_t used = 0;
  for (const TensorInfo& t : checkpoint.tensors()) used += t.canonical.empty() ? 0 : t.bytes;
  line("on disk", format_bytes(checkpoint.bytes_on_disk()));
  std::vector<std::string> shares;
  for (const FormatShare& share : format_shares(checkpoint.tensors())) {
    shares.push_back(
        fmt::format("{} {:.1f} %", share.format, 100.0 * static_cast<double>(share.bytes) / static_cast<double>(used)));
  }
  line("weights", fmt::format("{}: {}", format_bytes(used), fmt::join(shares, ", ")));
  line("at load", "nothing is repacked: weights are used in place");
  line("read per token", format_bytes(bytes_per_token(checkpoint)));
  line("KV cache", fmt::format("{} a token in full layers, {} in sliding ones ({})",
                               format_bytes(kv_bytes_per_token(facts.plan, LayerKind::kFull, facts.kv)),
                               format_bytes(kv_bytes_per_token(facts.plan, LayerKind::kSliding, facts.kv)),
                               kv_choice_name(facts.kv)));
  for (const std::string& formats : layers_by_format(facts)) line("", formats);
  for (const int64_t tokens : contexts(c)) {
    line("", fmt::format("{:>9} at {} tokens", format_bytes(kv_bytes(facts.plan, c.window, tokens, facts.kv)), tokens));
  }
  print_layers(facts, flags.all);
  if (flags.tensors) {
    print_tensors(checkpoint);
  } else {
    print_groups(checkpoint);
  }
}

int run(const Flags& flags) {
  const Facts facts = gather(flags);
  if (flags.json) {
    std::puts(to_json(facts).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print(facts, flags);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("inspect", "Show what a model is and what it costs to run");
  add_model_argument(*verb, flags->model);
  verb->add_flag("--all", flags->all, "Each layer, also where neighbours are alike");
  verb->add_flag("--tensors", flags->tensors, "Each tensor, with its shape");
  add_kv_flags(*verb, flags->kv);
  verb->add_flag("--json", flags->json, "All of it as JSON");
  add_examples(*verb,
               "  carat inspect gemma3-270m\n"
               "  carat inspect gemma3-270m --tensors\n"
               "  carat inspect ./gemma-4-31b-it --json | jq .kv_cache");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

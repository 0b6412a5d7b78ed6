// adapter_config.json of mlx-lm and of PEFT.
#include <cmath>

#include "base/error.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/json.h"

namespace carat {
namespace {

constexpr int64_t kMaxRank = 65536;
constexpr double kMaxScale = 1e6;

/// Whether `path` is `name` or ends with it, by whole parts of the path. A leading '^' asks for the whole path.
bool fits(std::string_view path, std::string_view name) {
  if (name.starts_with('^')) return path == name.substr(1);
  if (!path.ends_with(name)) return false;
  const size_t before = path.size() - name.size();
  return before == 0 || path[before - 1] == '.';
}

template <typename T>
const T* find(const std::vector<AdapterConfig::Exception<T>>& exceptions, std::string_view path) {
  for (const auto& exception : exceptions) {
    if (fits(path, exception.pattern)) return &exception.value;
  }
  return nullptr;
}

/// A field that is absent, null, false, empty or nothing: what it asks for is not asked for.
bool is_off(const JsonObject& object, std::string_view key) {
  const auto value = object.find(key);
  if (!value || value->is_null()) return true;
  switch (value->type()) {
    case simdjson::dom::element_type::BOOL:
      return !value->get_bool().value_unsafe();
    case simdjson::dom::element_type::ARRAY:
      return value->get_array().value_unsafe().size() == 0;
    case simdjson::dom::element_type::OBJECT:
      return value->get_object().value_unsafe().size() == 0;
    case simdjson::dom::element_type::STRING:
      return value->get_string().value_unsafe().empty();
    default:
      return false;
  }
}

void read_names(const JsonObject& object, std::string_view key, AdapterConfig& config) {
  const auto list = object.maybe_array(key);
  if (!list) return;
  config.any_module = false;
  for (const auto item : *list) {
    std::string_view name;
    if (item.get(name) != simdjson::SUCCESS || name.empty()) {
      fail("{} holds {}; expected names of modules", object.where(key), describe(item));
    }
    config.modules.emplace_back(name);
  }
}

AdapterConfig read_mlx(const JsonObject& root) {
  AdapterConfig config;
  config.layout = AdapterConfig::Layout::kMlx;
  const std::string_view kind = root.maybe_string("fine_tune_type").value_or("lora");
  if (kind != "lora") fail("{} is '{}'; only 'lora' is supported", root.where("fine_tune_type"), kind);
  const JsonObject parameters = root.object("lora_parameters");
  config.rank = static_cast<int>(parameters.integer("rank", 1, kMaxRank));
  if (parameters.stated("alpha") && !parameters.stated("scale")) {
    fail("{} is given, but mlx-lm multiplies by 'scale', which is missing", parameters.where("alpha"));
  }
  constexpr double kDefaultScale = 20.0;
  config.scale = parameters.maybe_number("scale", -kMaxScale, kMaxScale).value_or(kDefaultScale);
  config.last_layers = static_cast<int>(root.maybe_integer("num_layers", -1, INT32_MAX).value_or(0));
  if (config.last_layers < 0) config.last_layers = 0;
  read_names(parameters, "keys", config);
  return config;
}

void check_pattern(const JsonObject& patterns, std::string_view pattern) {
  if (pattern.empty() || pattern.substr(1).find('^') != std::string_view::npos ||
      pattern.find_first_of("\\*+?()[]{}|$") != std::string_view::npos) {
    fail("{} is a regular expression; expected the name of a module", patterns.where(pattern));
  }
}

/// What would make the adapter something other than b (a x) beside the model's own weights.
void refuse_other_kinds(const JsonObject& root) {
  if (const std::string_view type = root.string("peft_type"); type != "LORA") {
    fail("{} is '{}'; only 'LORA' is supported", root.where("peft_type"), type);
  }
  if (const std::string_view bias = root.maybe_string("bias").value_or("none"); bias != "none") {
    fail("{} is '{}': adapters with biases are not supported, only 'none'", root.where("bias"), bias);
  }
  struct Refusal {
    std::string_view field;
    std::string_view what;
  };
  constexpr Refusal kRefusals[] = {
      {"use_dora", "DoRA"},
      {"use_qalora", "QALoRA"},
      {"use_bdlora", "BD-LoRA"},
      {"lora_bias", "biases"},
      {"modules_to_save", "modules trained as a whole"},
      {"target_parameters", "adapters of bare parameters, such as experts,"},
      {"trainable_token_indices", "trained rows of the embedding table"},
      {"layer_replication", "replicated layers"},
      {"alora_invocation_tokens", "adapters that begin in the middle of a prompt"},
      {"arrow_config", "routing between adapters"},
  };
  for (const auto& [field, what] : kRefusals) {
    if (!is_off(root, field)) fail("{} is set: {} are not supported", root.where(field), what);
  }
  // Others take their first step away from the model's own weights, which they change.
  if (const auto init = root.find("init_lora_weights"); init && init->is_string()) {
    const std::string_view name = init->get_string().value_unsafe();
    if (name != "gaussian" && name != "eva" && name != "orthogonal") {
      fail("{} is '{}', which changes the weights of the model itself: not supported", root.where("init_lora_weights"),
           name);
    }
  }
}

AdapterConfig read_peft(const JsonObject& root) {
  refuse_other_kinds(root);
  AdapterConfig config;
  config.layout = AdapterConfig::Layout::kPeft;
  config.rank = static_cast<int>(root.integer("r", 1, kMaxRank));
  config.alpha = root.number("lora_alpha", -kMaxScale, kMaxScale);
  config.by_root = root.maybe_boolean("use_rslora").value_or(false);
  if (const auto patterns = root.maybe_object("rank_pattern")) {
    for (const auto field : patterns->fields()) {
      check_pattern(*patterns, field.key);
      config.ranks.push_back({std::string(field.key), static_cast<int>(patterns->integer(field.key, 1, kMaxRank))});
    }
  }
  if (const auto patterns = root.maybe_object("alpha_pattern")) {
    for (const auto field : patterns->fields()) {
      check_pattern(*patterns, field.key);
      config.alphas.push_back({std::string(field.key), patterns->number(field.key, -kMaxScale, kMaxScale)});
    }
  }
  // A list names modules; a string is a regular expression, or "all-linear", and says no more than the tensors do.
  if (const auto targets = root.find("target_modules"); targets && !targets->is_string()) {
    read_names(root, "target_modules", config);
  }
  return config;
}

}  // namespace

int AdapterConfig::rank_of(std::string_view path) const {
  const int* exception = find(ranks, path);
  return exception != nullptr ? *exception : rank;
}

double AdapterConfig::scale_of(std::string_view path) const {
  if (layout == Layout::kMlx) return scale;
  const double* exception = find(alphas, path);
  const double r = rank_of(path);
  return (exception != nullptr ? *exception : alpha) / (by_root ? std::sqrt(r) : r);
}

bool AdapterConfig::names(std::string_view path) const {
  if (any_module) return true;
  for (const std::string& module : modules) {
    if (fits(path, module)) return true;
  }
  return false;
}

AdapterConfig parse_adapter_config(std::string_view text, std::string_view origin) {
  const JsonDocument document(text, origin);
  const JsonObject root = document.root();
  if (root.stated("peft_type")) return read_peft(root);
  if (root.stated("lora_parameters") || root.stated("fine_tune_type")) return read_mlx(root);
  fail("{} has neither 'peft_type' (PEFT) nor 'lora_parameters' (mlx-lm): not the configuration of a LoRA adapter",
       origin);
}

}  // namespace carat

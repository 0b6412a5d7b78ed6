#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace carat::server {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int>::max();
constexpr double kMostFloat = std::numeric_limits<float>::max();

void set(std::optional<float>& out, std::optional<double> value) {
  if (value) out = static_cast<float>(*value);
}

void set(std::optional<int>& out, std::optional<int64_t> value) {
  if (value) out = static_cast<int>(*value);
}

std::optional<uint64_t> read_seed(const Fields& fields) {
  const Json* value = fields.find("seed");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  fields.refuse("seed", "a 64-bit integer");
}

std::vector<std::pair<int, float>> read_logit_bias(const Fields& fields) {
  std::vector<std::pair<int, float>> biases;
  const auto bias = fields.object("logit_bias");
  if (!bias) return biases;
  for (const auto& [key, value] : bias->json().items()) {
    int id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      refuse("logit_bias", fmt::format("logit_bias: found the key {}, expected token ids", describe(Json(key))));
    }
    if (value.is_null()) continue;
    if (!value.is_number() || !(value.get<double>() >= -100.0 && value.get<double>() <= 100.0)) {
      refuse(bias->path(key),
             fmt::format("{}: found {}, expected a number from -100 to 100", bias->path(key), describe(value)));
    }
    biases.emplace_back(id, value.get<float>());
  }
  return biases;
}

/// true, false, or an object that says "enabled": true unless it says otherwise.
std::optional<HlgParams> read_hlg(const Fields& fields) {
  const Json* value = fields.find("hlg");
  if (value == nullptr) return std::nullopt;
  HlgParams params;
  params.enabled = true;
  if (value->is_boolean()) {
    params.enabled = value->get<bool>();
    return params;
  }
  const Fields hlg(*value, "hlg");
  params.enabled = hlg.flag("enabled").value_or(true);
  const auto read = [&](const char* name, float& out) {
    if (const auto number = hlg.number(name, 0.0, 100.0)) out = static_cast<float>(*number);
  };
  read("width", params.width);
  read("shoulder", params.shoulder);
  read("toe", params.toe);
  read("pivot_offset", params.pivot_offset);
  return params;
}

bool is_tool_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

void read_model(const Fields& fields, GenerationTask& task) {
  task.model = fields.text("model").value_or("");
  const bool one = fields.has("adapter");
  if (one && fields.has("adapters")) {
    refuse("adapters", "adapters: found beside adapter, expected one of the two fields");
  }
  const char* name = one ? "adapter" : "adapters";
  const auto ids = one ? std::optional(std::vector{fields.text("adapter").value()}) : fields.texts("adapters", 16);
  if (!ids) return;
  for (const std::string& id : *ids) {
    if (id.empty() && ids->size() > 1) fields.refuse(name, "ids that are not empty");
    if (!task.adapter.empty()) task.adapter += '+';
    task.adapter += id;
  }
  std::replace(task.adapter.begin(), task.adapter.end(), ',', '+');
}

void read_sampling(const Fields& fields, GenerationTask& task, double hottest) {
  SamplingChoice& sampling = task.sampling;
  set(sampling.temperature, fields.number("temperature", 0.0, hottest));
  set(sampling.top_p, fields.number("top_p", 0.0, 1.0));
  // To the sampler 0 means off; to OpenAI's clients it is the narrowest nucleus.
  if (sampling.top_p == 0.0f) sampling.top_p = std::numeric_limits<float>::min();
  set(sampling.top_k, fields.integer("top_k", -1, kMostInt));
  if (sampling.top_k == -1) sampling.top_k = 0;
  set(sampling.min_p, fields.number("min_p", 0.0, 1.0));
  set(sampling.xtc_probability, fields.number("xtc_probability", 0.0, 1.0));
  set(sampling.xtc_threshold, fields.number("xtc_threshold", 0.0, 0.5));
  const char* repetition = fields.has("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  set(sampling.repetition_penalty, fields.number(repetition, 0.0, kMostFloat));
  set(sampling.presence_penalty, fields.number("presence_penalty", -2.0, 2.0));
  set(sampling.frequency_penalty, fields.number("frequency_penalty", -2.0, 2.0));
  set(sampling.repetition_context, fields.integer("repetition_context_size", 0, kMostInt));
  set(sampling.presence_context, fields.integer("presence_context_size", 0, kMostInt));
  set(sampling.frequency_context, fields.integer("frequency_context_size", 0, kMostInt));
  sampling.seed = read_seed(fields);
  sampling.logit_bias = read_logit_bias(fields);
  sampling.hlg = read_hlg(fields);
  if (auto ids = fields.ids("stop_token_ids")) task.stop_tokens = std::move(*ids);
  task.ignore_eos = fields.flag("ignore_eos").value_or(false);
  task.priority = -static_cast<int>(fields.integer("priority", -kMostInt, kMostInt).value_or(0));
}

void read_stop(const Fields& fields, std::string_view name, GenerationTask& task, size_t most) {
  auto stops = fields.texts(name, most);
  if (!stops) return;
  std::erase(*stops, "");
  task.stop = std::move(*stops);
}

std::optional<int> read_limit(const Fields& fields, std::string_view name, int lowest) {
  std::optional<int> limit;
  set(limit, fields.integer(name, lowest, kMostInt));
  return limit;
}

std::optional<bool> read_effort(const Fields& fields, std::string_view name) {
  const auto effort = fields.text(name);
  if (!effort) return std::nullopt;
  if (*effort == "none" || *effort == "minimal") return false;
  if (*effort == "low" || *effort == "medium" || *effort == "high" || *effort == "xhigh") return true;
  fields.refuse(name, "none, minimal, low, medium, high or xhigh");
}

void read_thinking(const Fields& fields, ChatTask& task) {
  if (const Json* value = fields.find("thinking")) {
    if (value->is_boolean()) {
      task.thinking = value->get<bool>();
    } else {
      const Fields thinking(*value, fields.path("thinking"));
      const auto type = thinking.text("type");
      if (type != "enabled" && type != "disabled") thinking.refuse("type", "enabled or disabled");
      task.thinking = type == "enabled";
    }
  }
  if (const auto arguments = fields.object("chat_template_kwargs")) {
    if (const auto enabled = arguments->flag("enable_thinking")) task.thinking = enabled;
  }
  if (const auto enabled = fields.flag("enable_thinking")) task.thinking = enabled;
  set(task.thinking_budget, fields.integer("thinking_budget", 0, kMostInt));
}

void check_tools(const Json& tools, std::string_view path) {
  if (tools.is_null()) return;
  const std::string array(path);
  if (!tools.is_array()) refuse(array, fmt::format("{}: found {}, expected an array", path, describe(tools)));
  std::set<std::string, std::less<>> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Fields tool(tools[i], fmt::format("{}[{}]", path, i));
    if (tool.text("type") != "function") tool.refuse("type", "\"function\"");
    tool.require("function", "an object with a name");
    const auto function = tool.object("function");
    const auto name = function->text("name");
    if (!name || !is_tool_name(*name)) function->refuse("name", "1 to 128 letters, digits, underscores and dashes");
    if (!names.insert(*name).second) {
      refuse(function->path("name"),
             fmt::format("{}: found {} a second time, expected different names", function->path("name"), *name));
    }
    function->text("description");
    function->object("parameters");
    function->flag("strict");
  }
}

void check_tool_choice(const ToolChoice& choice, const Json& tools, std::string_view path) {
  using Kind = ToolChoice::Kind;
  if (choice.kind == Kind::kRequired && tools.empty()) {
    refuse(std::string(path), fmt::format("{}: found a choice that requires a call, expected tools beside it", path));
  }
  if (choice.kind != Kind::kNamed) return;
  const bool known = std::any_of(tools.begin(), tools.end(),
                                 [&](const Json& tool) { return tool["function"]["name"] == choice.name; });
  if (!known) {
    refuse(std::string(path),
           fmt::format("{}: found the name {}, expected that of one of the tools", path, describe(Json(choice.name))));
  }
}

}  // namespace carat::server

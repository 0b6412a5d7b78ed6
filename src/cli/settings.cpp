#include "cli/settings.h"

#include <charconv>
#include <variant>
#include <vector>

#include "base/error.h"

namespace carat {
namespace {

struct Field {
  std::string_view name;
  std::variant<float SamplingParams::*, int SamplingParams::*, float HlgParams::*> member;
};

constexpr Field kFields[] = {
    {"temperature", &SamplingParams::temperature},
    {"top_k", &SamplingParams::top_k},
    {"top_p", &SamplingParams::top_p},
    {"min_p", &SamplingParams::min_p},
    {"xtc_probability", &SamplingParams::xtc_probability},
    {"xtc_threshold", &SamplingParams::xtc_threshold},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
    {"repetition_context", &SamplingParams::repetition_context},
    {"presence_penalty", &SamplingParams::presence_penalty},
    {"presence_context", &SamplingParams::presence_context},
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"frequency_context", &SamplingParams::frequency_context},
    {"hlg_width", &HlgParams::width},
    {"hlg_shoulder", &HlgParams::shoulder},
    {"hlg_toe", &HlgParams::toe},
    {"hlg_pivot_offset", &HlgParams::pivot_offset},
};

template <typename Number>
Number parse(std::string_view name, std::string_view text, std::string_view kind) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) fail("{} is \"{}\"; expected {}", name, text, kind);
  return number;
}

template <typename Params, typename Visitor>
void visit(Params& params, const Field& field, const Visitor& visitor) {
  std::visit(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), float HlgParams::*>) {
          visitor(params.hlg.*member);
        } else {
          visitor(params.*member);
        }
      },
      field.member);
}

void assign(SamplingParams& params, std::string_view name, std::string_view value) {
  if (name == "seed") {
    params.seed = parse<uint64_t>(name, value, "a whole number from 0");
    return;
  }
  if (name == "hlg") {
    if (value != "on" && value != "off") fail("hlg is \"{}\"; expected on or off", value);
    params.hlg.enabled = value == "on";
    return;
  }
  for (const Field& field : kFields) {
    if (field.name != name) continue;
    visit(params, field, [&](auto& target) {
      using Number = std::remove_reference_t<decltype(target)>;
      target = parse<Number>(name, value, std::is_integral_v<Number> ? "a whole number" : "a number");
    });
    return;
  }
  fail("there is no setting \"{}\"; there are {}", name, sampling_names());
}

}  // namespace

void set_sampling(SamplingParams& params, std::string_view name, std::string_view value) {
  std::string field(name);
  for (char& c : field) {
    if (c == '-') c = '_';
  }
  SamplingParams changed = params;
  assign(changed, field, value);
  validate(changed);
  params = std::move(changed);
}

std::string describe_sampling(const SamplingParams& params) {
  const SamplingParams defaults;
  std::string text;
  for (const Field& field : kFields) {
    if (std::holds_alternative<float HlgParams::*>(field.member) && !params.hlg.enabled) continue;
    visit(params, field, [&](const auto& value) {
      auto standard = value;
      visit(defaults, field, [&](const auto& d) { standard = static_cast<decltype(standard)>(d); });
      if (value == standard && field.name != "temperature") return;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field.name, value);
    });
  }
  if (params.hlg.enabled) text += ", hlg on";
  return text;
}

std::string sampling_names() {
  std::string names;
  for (const Field& field : kFields) names += fmt::format("{} ", field.name);
  return names + "hlg seed";
}

int parse_integer(std::string_view name, std::string_view text) {
  return parse<int>(name, text, "a whole number");
}

}  // namespace carat

#include "carat/kv_format.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace carat {
namespace {

constexpr std::string_view kSpreadName = "q";
constexpr std::string_view kAffineName = "mlx";
constexpr std::array kAffineBits = {2, 3, 4, 5, 6, 8};
constexpr std::array kRotatedBits = {2, 3, 4, 5, 8};

template <size_t N>
std::optional<int> digit(char c, const std::array<int, N>& allowed) {
  const int value = c - '0';
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end() ? std::optional(value) : std::nullopt;
}

std::optional<KvFormat> find_format(std::string_view name) {
  if (name == "f32") return KvFormat::kF32;
  if (name == "f16") return KvFormat::kF16;
  if (name == "bf16") return KvFormat::kBF16;
  const bool affine = name.starts_with(kAffineName);
  if (!affine && !name.starts_with(kSpreadName)) return std::nullopt;
  name.remove_prefix(affine ? kAffineName.size() : kSpreadName.size());
  if (name.empty()) return std::nullopt;
  const std::optional<int> bits = digit(name[0], kAffineBits);
  const std::string_view group = name.substr(1);
  if (!bits || (!group.empty() && group != "g16" && group != "g32" && group != "g64")) return std::nullopt;
  const int numbers = group == "g16" ? 16 : group == "g64" ? 64 : 32;
  return affine ? KvFormat::affine(*bits, numbers) : KvFormat::spread(*bits, numbers);
}

}  // namespace

std::string kv_format_name(KvFormat format) {
  switch (format.kind) {
    case KvFormat::Kind::kFloat32:
      return "f32";
    case KvFormat::Kind::kFloat16:
      return "f16";
    case KvFormat::Kind::kBfloat16:
      return "bf16";
    case KvFormat::Kind::kAffine:
    case KvFormat::Kind::kSpread: {
      const std::string_view kind = format.kind == KvFormat::Kind::kSpread ? kSpreadName : kAffineName;
      return fmt::format("{}{}", kind, format.bits) + (format.group == 32 ? "" : fmt::format("g{}", format.group));
    }
    case KvFormat::Kind::kRotated:
      return fmt::format("turbo{}", format.bits);
  }
  return "unknown";
}

KvFormats KvChoice::of(int layer, bool sliding_layer) const {
  const auto exception = std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.index == layer; });
  if (exception != layers.end()) return exception->formats;
  return sliding_layer ? sliding : full;
}

void KvChoice::keep_recent(int positions) {
  full.recent = positions;
  for (Layer& layer : layers) layer.formats.recent = positions;
}

KvFormat parse_kv_format(std::string_view name) {
  if (const auto format = find_format(name)) return *format;
  fail(
      "\"{}\" is no format of keys and values; expected f32, f16, bf16, q8, q6, q5, q4, q3 or q2, or a q with its "
      "group, such as q8g64, or mlx8",
      name);
}

KvChoice parse_kv_choice(std::string_view name) {
  if (name == "turbo") name = "turbo:k8v3";
  constexpr std::string_view kTurbo = "turbo:";
  if (name.starts_with(kTurbo)) {
    const std::string_view widths = name.substr(kTurbo.size());
    if (widths.size() == 4 && widths[0] == 'k' && widths[2] == 'v') {
      const std::optional<int> k = digit(widths[1], kAffineBits);
      const std::optional<int> v = digit(widths[3], kRotatedBits);
      if (k && v) return {{KvFormat::spread(*k), KvFormat::rotated(*v)}, KvFormat::kF16};
    }
    fail(
        "\"{}\" is no format of keys and values; expected turbo:kAvB with A one of 2, 3, 4, 5, 6, 8 and B one of 2, 3, "
        "4, 5, 8, such as turbo:k8v3",
        name);
  }
  if (const auto format = find_format(name)) return *format;
  fail(
      "\"{}\" is no format of keys and values; expected f32, f16, bf16, q8, q4, another qB or qBgG (2-6 or 8 bits, "
      "groups of 16, 32 or 64), mlxB, or turbo:kAvB",
      name);
}

std::string kv_choice_name(const KvChoice& choice) {
  const auto pair = [](const KvFormats& f) {
    if (f.k == f.v) return kv_format_name(f.k);
    if (f.k.kind == KvFormat::Kind::kSpread && f.v.kind == KvFormat::Kind::kRotated) {
      return fmt::format("turbo:k{}v{}", f.k.bits, f.v.bits);
    }
    return fmt::format("k:{} v:{}", kv_format_name(f.k), kv_format_name(f.v));
  };
  std::string name = pair(choice.full);
  if (choice.full.recent > 0 && choice.full.is_coded()) {
    name += fmt::format(", the latest {} also f16", choice.full.recent);
  }
  const bool turbo = choice.full.v.kind == KvFormat::Kind::kRotated && pair(choice.sliding) == "f16";
  const bool same = choice.sliding.k == choice.full.k && choice.sliding.v == choice.full.v;
  if (!same && !turbo) name += fmt::format(", {} in sliding layers", pair(choice.sliding));
  if (!choice.layers.empty()) name += fmt::format(", {} layers by themselves", choice.layers.size());
  return name;
}

}  // namespace carat

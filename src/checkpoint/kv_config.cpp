#include "checkpoint/kv_config.h"

#include <algorithm>
#include <climits>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/side_files.h"

namespace carat {
namespace {

constexpr int64_t kDefaultGroup = 64;

/// A whole number of an entry; `otherwise` where the field is missing, unless that is negative.
int64_t whole_number(simdjson::dom::object entry, std::string_view field, int64_t otherwise, std::string_view where) {
  const auto value = entry[field];
  if (value.error() != simdjson::SUCCESS) {
    if (otherwise >= 0) return otherwise;
    fail("{} has no \"{}\"", where, field);
  }
  const auto number = value.get_int64();
  if (number.error() != simdjson::SUCCESS) {
    fail("{}: \"{}\" is {}; expected a whole number", where, field, describe(value.value_unsafe()));
  }
  return number.value_unsafe();
}

KvFormat format_of(int64_t bits, int64_t group, std::string_view where) {
  if (bits == 16) return KvFormat::kF16;
  if (bits < 2 || bits > 8 || bits == 7) fail("{}: \"bits\" is {}; expected 2, 3, 4, 5, 6, 8 or 16", where, bits);
  if (group != 32 && group != 64) fail("{}: \"group_size\" is {}; expected 32 or 64", where, group);
  return KvFormat::spread(static_cast<int>(bits), static_cast<int>(group));
}

}  // namespace

KvChoice parse_kv_config(std::string_view text, std::string_view origin) {
  simdjson::dom::parser parser;
  const simdjson::padded_string padded(text);
  const auto document = parser.parse(padded);
  if (document.error() != simdjson::SUCCESS) {
    fail("{} is not valid JSON: {}", origin, simdjson::error_message(document.error()));
  }
  const auto entries = document.get_array();
  if (entries.error() != simdjson::SUCCESS) {
    fail("{} is {}; expected an array of layers", origin, describe(document.value_unsafe()));
  }
  KvChoice choice = KvFormat::kF16;
  size_t number = 0;
  for (const simdjson::dom::element element : entries.value_unsafe()) {
    const std::string where = fmt::format("entry {} of {}", number++, origin);
    const auto entry = element.get_object();
    if (entry.error() != simdjson::SUCCESS) fail("{} is {}; expected an object", where, describe(element));
    const int64_t index = whole_number(entry.value_unsafe(), "layer_idx", -1, where);
    if (index < 0 || index > INT_MAX) fail("{}: \"layer_idx\" is {}; expected the number of a layer", where, index);
    const int64_t bits = whole_number(entry.value_unsafe(), "bits", -1, where);
    const int64_t group = whole_number(entry.value_unsafe(), "group_size", kDefaultGroup, where);
    const int64_t recent = whole_number(entry.value_unsafe(), "recent", 0, where);
    if (recent < 0 || recent > kMostRecentKv) {
      fail("{}: \"recent\" is {}; expected 0 to {} positions", where, recent, kMostRecentKv);
    }
    const KvFormat format = format_of(bits, group, where);
    choice.layers.push_back({static_cast<int>(index), {format, format, static_cast<int>(recent)}});
  }
  std::sort(choice.layers.begin(), choice.layers.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  const auto twice = std::adjacent_find(choice.layers.begin(), choice.layers.end(),
                                        [](const auto& a, const auto& b) { return a.index == b.index; });
  if (twice != choice.layers.end()) fail("{} names layer {} twice", origin, twice->index);
  return choice;
}

KvChoice read_kv_config(const std::filesystem::path& file) {
  return parse_kv_config(read_small_file(file), file.string());
}

std::string kv_config_text(const KvChoice& choice) {
  const auto is_f16 = [](const KvFormats& f) { return f.k == KvFormat::kF16 && f.v == KvFormat::kF16; };
  if (!is_f16(choice.full) || !is_f16(choice.sliding)) {
    fail("a kv_config.json stores f16 where it names no layer; the choice is {}", kv_choice_name(choice));
  }
  std::string text = "[";
  for (const KvChoice::Layer& layer : choice.layers) {
    const KvFormat format = layer.formats.k;
    if (format != layer.formats.v || (format != KvFormat::kF16 && format.kind != KvFormat::Kind::kSpread)) {
      fail("a kv_config.json cannot say that layer {} stores keys as {} and values as {}", layer.index,
           kv_format_name(format), kv_format_name(layer.formats.v));
    }
    const int recent = layer.formats.recent;
    text += fmt::format("{}\n  {{\"layer_idx\": {}, \"bits\": {}, \"group_size\": {}{}}}", text.size() > 1 ? "," : "",
                        layer.index, format.bits, format.is_coded() ? int64_t{format.group} : kDefaultGroup,
                        recent > 0 ? fmt::format(", \"recent\": {}", recent) : "");
  }
  return text + "\n]\n";
}

}  // namespace carat

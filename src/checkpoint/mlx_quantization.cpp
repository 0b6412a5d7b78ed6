#include "checkpoint/mlx_quantization.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "checkpoint/tensor_names.h"

namespace carat {

namespace {

WeightFormat read_mode(const JsonObject& fields) {
  const std::string_view mode = fields.maybe_string("mode").value_or("affine");
  if (mode == "affine") return WeightFormat::kAffine;
  if (mode == "mxfp4") return WeightFormat::kMxFp4;
  if (mode == "mxfp8") return WeightFormat::kMxFp8;
  if (mode == "nvfp4") return WeightFormat::kNvFp4;
  fail("{} is '{}', supported are affine, mxfp4, mxfp8 and nvfp4", fields.where("mode"), mode);
}

/// An entry inherits the sizes that it does not state; a mode is never inherited: without one it is affine.
MlxPacking read_packing(const JsonObject& fields, const MlxPacking* inherited) {
  MlxPacking packing;
  packing.format = read_mode(fields);
  const auto size = [&](std::string_view key, int most, int otherwise) {
    if (otherwise == 0) return static_cast<int>(fields.integer(key, 1, most));
    return static_cast<int>(fields.maybe_integer(key, 1, most).value_or(otherwise));
  };
  packing.bits = size("bits", 8, inherited != nullptr ? inherited->bits : 0);
  packing.group = size("group_size", 1024, inherited != nullptr ? inherited->group : 0);
  if (!is_valid(packing)) {
    fail("{}: {} is not something that MLX writes", fields.where("bits"), describe(packing));
  }
  return packing;
}

}  // namespace

std::string describe(const MlxPacking& packing) {
  return fmt::format("{} {}-bit g{}", format_name(packing.format), packing.bits, packing.group);
}

bool is_valid(const MlxPacking& packing) {
  const auto among = [](int value, std::initializer_list<int> values) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  switch (packing.format) {
    case WeightFormat::kAffine:
      return among(packing.bits, {2, 3, 4, 5, 6, 8}) && among(packing.group, {32, 64, 128});
    case WeightFormat::kMxFp4:
      return packing.bits == 4 && packing.group == 32;
    case WeightFormat::kMxFp8:
      return packing.bits == 8 && packing.group == 32;
    case WeightFormat::kNvFp4:
      return packing.bits == 4 && packing.group == 16;
    default:
      return false;
  }
}

MlxQuantization::MlxQuantization(const JsonObject& config) {
  auto block = config.maybe_object("quantization");
  if (!block) {
    block = config.maybe_object("quantization_config");
    if (!block) return;
    // transformers keeps the settings of its own quantisers under the same name.
    if (const auto method = block->maybe_string("quant_method")) {
      fail("{} is '{}': of quantised safetensors only those of MLX (affine, mxfp4, mxfp8, nvfp4) are supported",
           block->where("quant_method"), *method);
    }
  }
  standard_ = read_packing(*block, nullptr);
  for (const auto field : block->fields()) {
    Entry entry;
    bool on = true;
    if (field.value.is_object()) {
      entry.packing = read_packing(block->child(field.value, field.key), &*standard_);
    } else if (field.value.get(on) == simdjson::SUCCESS && !on) {
      entry.packed = false;
    } else {
      continue;  // bits, group_size, mode; anything else leaves the module to the standard
    }
    by_path_.emplace(field.key, entry);
    by_canonical_.emplace(canonical_module(field.key), entry);
  }
}

std::optional<MlxQuantization::Entry> MlxQuantization::entry(const std::string& path,
                                                             const std::string& canonical) const {
  if (const auto found = by_path_.find(path); found != by_path_.end()) return found->second;
  if (const auto found = by_canonical_.find(canonical); found != by_canonical_.end()) return found->second;
  return std::nullopt;
}

}  // namespace carat

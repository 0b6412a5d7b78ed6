#include "checkpoint/loaded_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/half.h"

namespace carat {

namespace {

template <typename Table>
auto lookup(const Table& table, std::string_view name) -> std::optional<typename Table::mapped_type> {
  const auto found = table.find(name);
  if (found == table.end()) return std::nullopt;
  return found->second;
}

}  // namespace

LoadedCheckpoint::LoadedCheckpoint(CheckpointContents contents) : contents_(std::move(contents)) {
  auto& ids = contents_.stop_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

std::optional<Matrix> LoadedCheckpoint::matrix(std::string_view name) const {
  return lookup(contents_.matrices, name);
}

std::optional<MatrixStack> LoadedCheckpoint::stack(std::string_view name) const {
  return lookup(contents_.stacks, name);
}

std::optional<std::vector<float>> LoadedCheckpoint::vector(std::string_view name) const {
  const auto stored = lookup(contents_.vectors, name);
  if (!stored) return std::nullopt;
  std::vector<float> out(static_cast<size_t>(stored->count));
  if (stored->format == WeightFormat::kF32) {
    if (!out.empty()) std::memcpy(out.data(), stored->data, out.size() * sizeof(float));
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, stored->data + i * sizeof(bits), sizeof(bits));
    out[i] = stored->format == WeightFormat::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return out;
}

void add_gate_up(CheckpointContents& contents, const MatrixStack& fused, const std::string& layer_prefix,
                 std::string_view origin, std::string_view name) {
  if (fused.stride % 2 != 0) {
    fail("{}: tensor '{}' has {} rows an expert, expected as many for the gate as for the up projection", origin, name,
         fused.stride);
  }
  MatrixStack gate = fused;
  gate.rows = fused.stride / 2;
  MatrixStack up = gate;
  up.offset = gate.rows;
  const bool added = contents.stacks.emplace(layer_prefix + "experts.gate_proj", gate).second &&
                     contents.stacks.emplace(layer_prefix + "experts.up_proj", up).second;
  if (!added) fail("{}: tensor '{}' repeats what a gate_proj or up_proj tensor holds", origin, name);
}

}  // namespace carat

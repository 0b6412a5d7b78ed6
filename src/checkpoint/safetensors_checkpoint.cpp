#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "checkpoint/config_json.h"
#include "checkpoint/json.h"
#include "checkpoint/loaded_checkpoint.h"
#include "checkpoint/mlx_quantization.h"
#include "checkpoint/safetensors_set.h"
#include "checkpoint/side_files.h"
#include "checkpoint/tensor_names.h"

namespace carat {

namespace {

/// The stored tensors of one module: packed weights come in two or three.
struct Module {
  std::string path;       // as the file spells it
  std::string canonical;  // canonical form
  KnownTensor known;
  const SafeTensor* weight = nullptr;
  const SafeTensor* scales = nullptr;
  const SafeTensor* biases = nullptr;
  const SafetensorsFile* file = nullptr;  // of the weight, for messages
  size_t listed = 0;                      // its place in the list of tensors
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<WeightFormat> float_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return WeightFormat::kF32;
    case Dtype::kF16:
      return WeightFormat::kF16;
    case Dtype::kBF16:
      return WeightFormat::kBF16;
    default:
      return std::nullopt;
  }
}

/// Names the module's weight in messages.
std::string where(const Module& module) {
  return fmt::format("{}: tensor '{}'", module.file->origin(), module.weight->name);
}

size_t dimensions(TensorKind kind) {
  return kind == TensorKind::kVector ? 1 : kind == TensorKind::kMatrix ? 2 : 3;
}

void check_dimensions(const Module& module) {
  const auto& shape = module.weight->shape;
  const size_t expected = dimensions(module.known.kind);
  if (shape.size() != expected) {
    fail("{} has the shape {}, expected {} dimensions", where(module), shape_text(shape), expected);
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    fail("{} is empty: its shape is {}", where(module), shape_text(shape));
  }
}

/// The mode that fits scales of that type and those sizes.
MlxPacking packing_from(int bits, int group, Dtype scales) {
  MlxPacking packing{WeightFormat::kAffine, bits, group};
  if (scales == Dtype::kU8) {
    packing.format = group == 16 ? WeightFormat::kNvFp4 : bits == 8 ? WeightFormat::kMxFp8 : WeightFormat::kMxFp4;
  }
  return packing;
}

/// True when weights and scales of those widths, packed that way, hold `cols` columns.
bool fits(const MlxPacking& packing, int64_t weight_cols, int64_t scale_cols, int64_t cols, Dtype scales) {
  return weight_cols * 32 == cols * packing.bits && scale_cols * packing.group == cols &&
         (packing.format == WeightFormat::kAffine) == (scales != Dtype::kU8);
}

/// Which packing a module has: what the config says of it in particular; else the config's standard, if the tensors
/// have its shape; else what the shapes themselves say, given the width that the model needs (mixed-bit files keyed in
/// some unforeseen way still load, and nothing is decoded with the wrong width).
MlxPacking find_packing(const Module& module, const MlxQuantization& quantization) {
  const int64_t weight_cols = module.weight->shape.back();
  const int64_t scale_cols = module.scales->shape.back();
  const int64_t cols = module.known.cols;
  const Dtype scales = module.scales->dtype;
  const auto shapes = [&] {
    return fmt::format("weights of {} words and scales of {} columns for {} inputs", weight_cols, scale_cols, cols);
  };
  if (const auto entry = quantization.entry(module.path, module.canonical)) {
    if (!entry->packed) fail("{} is packed, but the config says that it is not", where(module));
    if (!fits(entry->packing, weight_cols, scale_cols, cols, scales)) {
      fail("{} has {}, which does not fit the {} of the config", where(module), shapes(), describe(entry->packing));
    }
    return entry->packing;
  }
  const auto& standard = quantization.standard();
  if (standard && fits(*standard, weight_cols, scale_cols, cols, scales)) return *standard;
  if (weight_cols * 32 % cols == 0 && cols % scale_cols == 0 && weight_cols * 32 / cols <= 8 &&
      cols / scale_cols <= 128) {
    const MlxPacking derived =
        packing_from(static_cast<int>(weight_cols * 32 / cols), static_cast<int>(cols / scale_cols), scales);
    if (is_valid(derived)) return derived;
  }
  fail("{} has {}, which no packing of MLX explains", where(module), shapes());
}

ScaleType scale_type(const Module& module, const MlxPacking& packing) {
  switch (module.scales->dtype) {
    case Dtype::kF32:
      return ScaleType::kF32;
    case Dtype::kF16:
      return ScaleType::kF16;
    case Dtype::kBF16:
      return ScaleType::kBF16;
    case Dtype::kU8:
      return packing.format == WeightFormat::kNvFp4 ? ScaleType::kE4M3 : ScaleType::kE8M0;
    default:
      fail("{} has scales of dtype {}, expected F32, F16, BF16 or U8", where(module), name_of(module.scales->dtype));
  }
}

/// Scales (or biases) of a packed module must have its shape but for the last dimension, which is shared by them.
void check_companion(const Module& module, const SafeTensor& companion) {
  const auto& shape = module.weight->shape;
  const auto& other = companion.shape;
  if (other.size() != shape.size() || !std::equal(shape.begin(), shape.end() - 1, other.begin()) || other.back() == 0) {
    fail("{} has the shape {}, but tensor '{}' has {}", where(module), shape_text(shape), companion.name,
         shape_text(other));
  }
}

/// The whole tensor as rows, whether it is a matrix or a stack of them.
Matrix packed_matrix(const Module& module, const MlxQuantization& quantization) {
  if (module.weight->dtype != Dtype::kU32) {
    fail("{} has scales, but is of dtype {}, expected U32", where(module), name_of(module.weight->dtype));
  }
  check_companion(module, *module.scales);
  const MlxPacking packing = find_packing(module, quantization);
  Matrix matrix;
  matrix.format = packing.format;
  matrix.bits = static_cast<uint8_t>(packing.bits);
  matrix.group = static_cast<uint16_t>(packing.group);
  matrix.scale_type = scale_type(module, packing);
  matrix.cols = module.known.cols;
  matrix.rows = 1;
  for (size_t i = 0; i + 1 < module.weight->shape.size(); ++i) matrix.rows *= module.weight->shape[i];
  matrix.data = module.weight->bytes.data();
  matrix.scales = module.scales->bytes.data();
  matrix.row_bytes = module.weight->bytes.size() / static_cast<size_t>(matrix.rows);
  matrix.scale_row_bytes = module.scales->bytes.size() / static_cast<size_t>(matrix.rows);
  const bool affine = packing.format == WeightFormat::kAffine;
  if (affine != (module.biases != nullptr)) {
    fail("{} is packed as {} and has {}", where(module), describe(packing), affine ? "no biases" : "biases");
  }
  if (affine) {
    check_companion(module, *module.biases);
    if (module.biases->shape != module.scales->shape || module.biases->dtype != module.scales->dtype) {
      fail("{} has scales of shape {} and {}, but biases of shape {} and {}", where(module),
           shape_text(module.scales->shape), name_of(module.scales->dtype), shape_text(module.biases->shape),
           name_of(module.biases->dtype));
    }
    matrix.biases = module.biases->bytes.data();
  }
  return matrix;
}

Matrix float_matrix(const Module& module, const MlxQuantization& quantization) {
  const auto format = float_format(module.weight->dtype);
  if (!format) {
    fail("{} is of dtype {} and has no scales, expected F32, F16 or BF16", where(module),
         name_of(module.weight->dtype));
  }
  if (module.biases != nullptr) fail("{} has biases but no scales", where(module));
  // A config entry that promises packed weights, and a file that does not have them: one of the two is wrong.
  if (const auto entry = quantization.entry(module.path, module.canonical); entry && entry->packed) {
    fail("{} is of dtype {}, but the config says that it is packed as {}", where(module), name_of(module.weight->dtype),
         describe(entry->packing));
  }
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < module.weight->shape.size(); ++i) rows *= module.weight->shape[i];
  return make_matrix(*format, rows, module.weight->shape.back(), module.weight->bytes.data());
}

void add_vector(CheckpointContents& contents, const Module& module) {
  const auto format = float_format(module.weight->dtype);
  if (!format || module.scales != nullptr || module.biases != nullptr) {
    fail("{} is of dtype {}, expected plain F32, F16 or BF16", where(module), name_of(module.weight->dtype));
  }
  contents.vectors[module.canonical] = {*format, module.weight->shape[0], module.weight->bytes.data()};
}

/// "layers.3." of "layers.3.experts.gate_up_proj".
std::string layer_prefix(const Module& module) {
  return fmt::format("layers.{}.", module.known.layer);
}

void add_stack(CheckpointContents& contents, const Module& module, const Matrix& all) {
  MatrixStack stack;
  stack.all = all;
  stack.experts = module.weight->shape[0];
  stack.stride = module.weight->shape[1];
  stack.rows = stack.stride;
  if (module.canonical.ends_with(".gate_up_proj")) {
    add_gate_up(contents, stack, layer_prefix(module), module.file->origin(), module.weight->name);
  } else if (!contents.stacks.emplace(module.canonical, stack).second) {
    fail("{} repeats what another tensor holds", where(module));
  }
}

/// Hands the module to the table of its kind and describes it.
void add_module(CheckpointContents& contents, const Module& module, const MlxQuantization& quantization) {
  TensorInfo info{module.weight->name, module.canonical, module.weight->shape, {}, module.weight->bytes.size()};
  check_dimensions(module);
  if (module.known.kind == TensorKind::kVector) {
    add_vector(contents, module);
    info.format = name_of(module.weight->dtype);
  } else {
    const Matrix all =
        module.scales != nullptr ? packed_matrix(module, quantization) : float_matrix(module, quantization);
    if (module.known.kind == TensorKind::kMatrix) {
      contents.matrices[module.canonical] = all;
    } else {
      add_stack(contents, module, all);
    }
    info.format = format_name(all);
    info.shape.back() = all.cols;
    if (module.scales != nullptr) info.bytes += module.scales->bytes.size();
    if (module.biases != nullptr) info.bytes += module.biases->bytes.size();
  }
  contents.tensors[module.listed] = std::move(info);
}

void add_unused(CheckpointContents& contents, const SafeTensor& tensor) {
  contents.tensors.push_back({tensor.name, "", tensor.shape, std::string(name_of(tensor.dtype)), tensor.bytes.size()});
}

/// What to do with a stored tensor that the text model's own tables do not use.
bool is_unused(const ModelConfig& config, const StoredName& name, std::string_view stored) {
  return is_foreign_tensor(stored) || is_redundant_kv(config, name.canonical) ||
         (config.tied_head && (name.canonical == "lm_head" || name.canonical.starts_with("lm_head.")));
}

/// Sorts the stored tensors into modules, in the order of the files. Tensors that the text model does not use are
/// listed and left alone; one that is clearly of a layer or of a known module and yet unknown is an error, since
/// ignoring it would change the results.
std::vector<Module> collect(CheckpointContents& contents, const SafetensorsSet& set) {
  std::vector<Module> modules;
  std::unordered_map<std::string, size_t> index;
  for (const auto& [tensor, file] : set.tensors) {
    const StoredName name = parse_stored_name(tensor->name);
    if (is_unused(contents.config, name, tensor->name)) {
      add_unused(contents, *tensor);
      continue;
    }
    Module module{name.path, name.canonical, {}, nullptr, nullptr, nullptr, file, contents.tensors.size()};
    if (!find_known_tensor(contents.config, name.canonical, module.known)) {
      if (name.canonical.ends_with(".global_scale")) {
        fail("{}: tensor '{}': packed weights with a global scale are not supported, only with scales of their groups",
             file->origin(), tensor->name);
      }
      if (name.canonical.starts_with("layers.") || is_part_of_top_module(name.canonical)) {
        fail("{}: tensor '{}' is not part of a {} model with this config", file->origin(), tensor->name,
             contents.config.model_type);
      }
      add_unused(contents, *tensor);
      continue;
    }
    const auto [at, added] = index.emplace(name.canonical, modules.size());
    if (added) {
      modules.push_back(std::move(module));
      contents.tensors.emplace_back();  // filled by add_module, which knows all parts
    }
    Module& target = modules[at->second];
    if (target.path != name.path) {
      fail("{}: tensor '{}' means the same as '{}'", file->origin(), tensor->name, target.path);
    }
    const SafeTensor*& part = name.part == ModulePart::kWeight   ? target.weight
                              : name.part == ModulePart::kScales ? target.scales
                                                                 : target.biases;
    if (part != nullptr) fail("{}: tensor '{}' means the same as '{}'", file->origin(), tensor->name, part->name);
    part = tensor;
    if (name.part == ModulePart::kWeight) target.file = file;
  }
  return modules;
}

}  // namespace

std::shared_ptr<const Checkpoint> open_safetensors_checkpoint(const std::filesystem::path& directory) {
  const auto config_path = directory / "config.json";
  if (!std::filesystem::exists(config_path)) {
    fail("{} holds no config.json: expected a checkpoint directory or a .gguf file", directory.string());
  }
  const JsonDocument document(read_small_file(config_path), config_path.string());
  const MlxQuantization quantization(document.root());
  CheckpointContents contents;
  contents.path = directory;
  contents.config = read_config(document.root());

  SafetensorsSet set = open_safetensors_set(directory);
  for (const Module& module : collect(contents, set)) {
    if (module.weight == nullptr) {
      fail("{}: '{}' has scales or biases but no weight", module.file->origin(), module.path);
    }
    add_module(contents, module, quantization);
  }
  if (!contents.config.tied_head && !contents.matrices.contains("lm_head")) {
    fail("{}: the config says that the head is not tied to the embeddings, but there is no lm_head.weight",
         directory.string());
  }
  contents.stop_ids = contents.config.eos_ids;
  read_side_files(directory, contents.stop_ids, contents.sampling_defaults);
  for (auto& file : set.files) {
    contents.bytes_on_disk += file->size();
    contents.files.push_back(std::move(file));
  }
  return std::make_shared<LoadedCheckpoint>(std::move(contents));
}

}  // namespace carat

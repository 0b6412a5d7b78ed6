#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "checkpoint/ggml_types.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/loaded_checkpoint.h"
#include "checkpoint/tensor_names.h"

namespace carat {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostParts = 10000;  // five digits in the names

struct Rename {
  std::string_view gguf;
  std::string_view canonical;
};

constexpr Rename kTop[] = {
    {"token_embd.weight", "embed_tokens"},
    {"output_norm.weight", "norm"},
    {"output.weight", "lm_head"},
    {"per_layer_token_embd.weight", "embed_tokens_per_layer"},
    {"per_layer_model_proj.weight", "per_layer_model_projection"},
    {"per_layer_proj_norm.weight", "per_layer_projection_norm"},
};

constexpr Rename kPerLayer[] = {
    {"attn_norm.weight", "input_layernorm"},
    {"post_attention_norm.weight", "post_attention_layernorm"},
    {"ffn_norm.weight", "pre_feedforward_layernorm"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"attn_q.weight", "self_attn.q_proj"},
    {"attn_k.weight", "self_attn.k_proj"},
    {"attn_v.weight", "self_attn.v_proj"},
    {"attn_output.weight", "self_attn.o_proj"},
    {"attn_q_norm.weight", "self_attn.q_norm"},
    {"attn_k_norm.weight", "self_attn.k_norm"},
    {"ffn_gate.weight", "mlp.gate_proj"},
    {"ffn_up.weight", "mlp.up_proj"},
    {"ffn_down.weight", "mlp.down_proj"},
    {"inp_gate.weight", "per_layer_input_gate"},
    {"proj.weight", "per_layer_projection"},
    {"post_norm.weight", "post_per_layer_input_norm"},
    {"ffn_gate_inp.weight", "router.proj"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2"},
    {"ffn_gate_exps.weight", "experts.gate_proj"},
    {"ffn_up_exps.weight", "experts.up_proj"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_down_exps.weight", "experts.down_proj"},
};

constexpr std::string_view kBlock = "blk.";
constexpr std::string_view kFusedQkv = "attn_qkv.weight";

template <size_t N>
std::string_view find_name(const Rename (&table)[N], std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(table), std::end(table), [&](const Rename& entry) { return entry.gguf == name; });
  return found == std::end(table) ? std::string_view() : found->canonical;
}

/// "output.bias", "token_embd.scale": something beside a weight that the model has.
bool is_beside_a_top_weight(std::string_view name) {
  return std::any_of(std::begin(kTop), std::end(kTop), [&](const Rename& entry) {
    const std::string_view module = entry.gguf.substr(0, entry.gguf.rfind('.') + 1);
    return name.starts_with(module) && name != entry.gguf;
  });
}

/// Splits "blk.12.attn_q.weight" into 12 and "attn_q.weight"; false for other names.
bool split_block(std::string_view name, int& layer, std::string_view& rest) {
  if (!name.starts_with(kBlock)) return false;
  name.remove_prefix(kBlock.size());
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<size_t>(parsed.ptr - name.data());
  if (parsed.ec != std::errc() || layer < 0 || digits >= name.size() || name[digits] != '.') return false;
  rest = name.substr(digits + 1);
  return true;
}

/// Empty for a name that Gemma models do not have.
std::string canonical_name(std::string_view name) {
  int layer = -1;
  std::string_view rest;
  if (!split_block(name, layer, rest)) return std::string(find_name(kTop, name));
  const std::string_view found = find_name(kPerLayer, rest);
  return found.empty() ? std::string() : fmt::format("layers.{}.{}", layer, found);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// The tensor as rows, whether it is a vector, a matrix or a stack.
Matrix to_matrix(const GgufTensor& tensor, const std::string& origin) {
  const GgmlType* type = find_ggml_type(tensor.type);  // never null: checked when the file was parsed
  if (!type->format) {
    fail("{}: tensor '{}' is of type {}, which is not supported", origin, tensor.name, type->name);
  }
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return make_matrix(*type->format, rows, tensor.shape.back(), tensor.bytes.data());
}

/// Fills the tables from the tensors of one part.
class Filler {
 public:
  Filler(CheckpointContents& contents, const GgufFile& file) : contents_(contents), origin_(file.origin()) {}

  void add(const GgufTensor& tensor) {
    int layer = -1;
    std::string_view rest;
    const bool of_layer = split_block(tensor.name, layer, rest);
    const std::string name = canonical_name(tensor.name);
    if (of_layer && rest == kFusedQkv) {
      add_fused_qkv(tensor, layer);
      return;
    }
    KnownTensor known;
    if (name.empty() || !find_known_tensor(contents_.config, name, known)) {
      if (of_layer || is_beside_a_top_weight(tensor.name)) {
        fail("{}: tensor '{}' is not part of a {} model with these metadata", origin_, tensor.name,
             contents_.config.model_type);
      }
      list(tensor, "");  // rope_freqs (part of the config by now), or image towers that some files carry
      return;
    }
    if (is_redundant_kv(contents_.config, name)) {
      list(tensor, "");
      return;
    }
    switch (known.kind) {
      case TensorKind::kVector:
        add_vector(tensor, name);
        break;
      case TensorKind::kMatrix:
        check(tensor, 2);
        store(contents_.matrices, name, to_matrix(tensor, origin_), tensor);
        break;
      case TensorKind::kStack:
        add_stack(tensor, name, layer);
        break;
    }
    list(tensor, name);
  }

 private:
  void check(const GgufTensor& tensor, size_t dimensions) const {
    if (tensor.shape.size() != dimensions) {
      fail("{}: tensor '{}' has the shape {}, expected {} dimensions", origin_, tensor.name, shape_text(tensor.shape),
           dimensions);
    }
  }

  template <typename Table, typename Value>
  void store(Table& table, const std::string& name, const Value& value, const GgufTensor& tensor) const {
    if (!table.emplace(name, value).second) {
      fail("{}: tensor '{}' repeats what another tensor holds", origin_, tensor.name);
    }
  }

  void add_vector(const GgufTensor& tensor, const std::string& name) {
    check(tensor, 1);
    const Matrix values = to_matrix(tensor, origin_);
    const bool plain = values.format == WeightFormat::kF32 || values.format == WeightFormat::kF16 ||
                       values.format == WeightFormat::kBF16;
    if (!plain) {
      fail("{}: tensor '{}' is of type {}, expected F32, F16 or BF16", origin_, tensor.name,
           format_name(values.format));
    }
    store(contents_.vectors, name, StoredVector{values.format, values.cols, values.data}, tensor);
  }

  void add_stack(const GgufTensor& tensor, const std::string& name, int layer) {
    check(tensor, 3);
    MatrixStack stack;
    stack.all = to_matrix(tensor, origin_);
    stack.experts = tensor.shape[0];
    stack.stride = tensor.shape[1];
    stack.rows = stack.stride;
    if (name.ends_with(".gate_up_proj")) {
      add_gate_up(contents_, stack, fmt::format("layers.{}.", layer), origin_, tensor.name);
    } else {
      store(contents_.stacks, name, stack, tensor);
    }
  }

  /// Some converters put q, k and v into one tensor: rows of q, then k, then v.
  void add_fused_qkv(const GgufTensor& tensor, int layer) {
    const ModelConfig& config = contents_.config;
    check(tensor, 2);
    if (layer >= config.layer_count()) {
      fail("{}: tensor '{}' is of layer {}, but the model has {}", origin_, tensor.name, layer, config.layer_count());
    }
    const AttentionConfig& attention = config.layers[layer];
    const int64_t q = int64_t{config.heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.kv_heads} * attention.head_dim;
    const Matrix all = to_matrix(tensor, origin_);
    if (all.rows != q + 2 * kv) {
      fail("{}: tensor '{}' has {} rows, expected {}", origin_, tensor.name, all.rows, q + 2 * kv);
    }
    const std::string prefix = fmt::format("layers.{}.self_attn.", layer);
    store(contents_.matrices, prefix + "q_proj", all.slice(0, q), tensor);
    if (!is_redundant_kv(config, prefix + "k_proj")) {
      store(contents_.matrices, prefix + "k_proj", all.slice(q, kv), tensor);
      store(contents_.matrices, prefix + "v_proj", all.slice(q + kv, kv), tensor);
    }
    list(tensor, prefix + "qkv_proj");
  }

  void list(const GgufTensor& tensor, std::string canonical) {
    contents_.tensors.push_back({std::string(tensor.name), std::move(canonical), tensor.shape,
                                 std::string(find_ggml_type(tensor.type)->name), tensor.bytes.size()});
  }

  CheckpointContents& contents_;
  const std::string& origin_;
};

/// Parts beyond the first of a split set, named "x-0000I-of-0000N.gguf".
std::vector<fs::path> other_parts(const fs::path& first, const GgufFile& file) {
  const int64_t count = file.integer("split.count").value_or(1);
  if (count <= 1) return {};
  if (count > kMostParts) fail("{}: split.count is {}, expected at most {}", file.origin(), count, kMostParts);
  const std::string name = first.filename().string();
  const int64_t number = file.integer("split.no").value_or(0);
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
  if (number < 0 || number >= count || !name.ends_with(suffix)) {
    fail("{}: the metadata say that this is part {} of {}, expected a name that ends in {}", file.origin(), number + 1,
         count, suffix);
  }
  const std::string stem = name.substr(0, name.size() - suffix.size());
  const auto part = [&](int64_t i) {
    return first.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count);
  };
  if (number != 0)
    fail("{} is part {} of a split model, expected the first: {}", file.origin(), number + 1, part(0).string());
  std::vector<fs::path> parts;
  for (int64_t i = 1; i < count; ++i) {
    parts.push_back(part(i));
    if (!fs::exists(parts.back())) fail("{} is missing: the model has {} parts", parts.back().string(), count);
  }
  return parts;
}

/// All parts of the model, the first with the metadata.
std::vector<std::shared_ptr<const GgufFile>> open_parts(const fs::path& path) {
  std::vector<std::shared_ptr<const GgufFile>> files{GgufFile::open(path)};
  int64_t number = 0;
  for (const fs::path& part : other_parts(path, *files[0])) {
    const auto& file = files.emplace_back(GgufFile::open(part));
    if (file->integer("split.no") != ++number || file->integer("split.count") != files[0]->integer("split.count")) {
      fail("{}: its split.no and split.count do not make it part {} of {}", file->origin(), number + 1,
           files[0]->origin());
    }
  }
  size_t tensors = 0;
  for (const auto& file : files) tensors += file->tensors().size();
  const auto expected = files[0]->integer("split.tensors.count");
  if (files.size() > 1 && expected && *expected != static_cast<int64_t>(tensors)) {
    fail("{}: its parts hold {} tensors together, expected {}", files[0]->origin(), tensors, *expected);
  }
  return files;
}

}  // namespace

std::shared_ptr<const Checkpoint> open_gguf_checkpoint(const fs::path& path) {
  const auto files = open_parts(path);
  GgufTensors tensors;
  for (const auto& file : files) {
    for (const GgufTensor& tensor : file->tensors()) {
      if (!tensors.emplace(tensor.name, &tensor).second) {
        fail("{}: tensor '{}' is in another part too", file->origin(), tensor.name);
      }
    }
  }
  CheckpointContents contents;
  contents.path = path;
  contents.config = read_gguf_config(*files[0], tensors);
  for (const auto& file : files) {
    Filler filler(contents, *file);
    for (const GgufTensor& tensor : file->tensors()) filler.add(tensor);
    contents.bytes_on_disk += fs::file_size(file->origin());
    contents.files.push_back(file);
  }
  contents.stop_ids = gguf_stop_ids(*files[0]);
  contents.gguf = files[0];
  return std::make_shared<LoadedCheckpoint>(std::move(contents));
}

}  // namespace carat

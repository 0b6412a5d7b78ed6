#include "checkpoint/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "checkpoint/side_files.h"
#include "checkpoint/tensor_names.h"
#include "quant/matrix.h"

namespace carat {
namespace {

constexpr std::string_view kConfigName = "adapter_config.json";
constexpr std::string_view kMlxName = "adapters.safetensors";
constexpr std::string_view kPeftName = "adapter_model.safetensors";

enum class Half : uint8_t { kA, kB };

/// The stored name of one half of a pair, taken apart.
struct Name {
  std::string_view path;  // of the module, without PEFT's wrapping
  Half half = Half::kA;
};

std::optional<Name> parse_name(std::string_view name, AdapterConfig::Layout layout) {
  struct Suffix {
    std::string_view text;
    Half half;
  };
  constexpr Suffix kMlx[] = {{".lora_a", Half::kA}, {".lora_b", Half::kB}};
  constexpr Suffix kPeft[] = {{".lora_A.weight", Half::kA},
                              {".lora_B.weight", Half::kB},
                              {".lora_A.default.weight", Half::kA},
                              {".lora_B.default.weight", Half::kB}};
  const bool peft = layout == AdapterConfig::Layout::kPeft;
  for (const auto& [text, half] : peft ? std::span<const Suffix>(kPeft) : std::span<const Suffix>(kMlx)) {
    if (!name.ends_with(text)) continue;
    name.remove_suffix(text.size());
    constexpr std::string_view kWrapping = "base_model.model.";
    if (peft && name.starts_with(kWrapping)) name.remove_prefix(kWrapping.size());
    return Name{name, half};
  }
  return std::nullopt;
}

/// Projections of a layer that can be adapted, after "layers.I.".
constexpr std::string_view kAdaptable[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",     "self_attn.o_proj",     "mlp.gate_proj",
    "mlp.up_proj",      "mlp.down_proj",    "per_layer_input_gate", "per_layer_projection",
};

/// The projection that a canonical name of some layer ends with; empty when it is none of them.
std::string_view adaptable_projection(std::string_view canonical) {
  if (!canonical.starts_with("layers.")) return {};
  for (const std::string_view name : kAdaptable) {
    const auto dots = [](std::string_view text) { return std::count(text.begin(), text.end(), '.'); };
    if (canonical.ends_with(name) && dots(canonical) == 2 + dots(name)) return name;
  }
  return {};
}

/// One safetensors file of an adapter.
class Reader {
 public:
  Reader(const AdapterConfig& adapter, const SafetensorsFile& file, const ModelConfig& config)
      : adapter_(adapter), file_(file), config_(config) {}

  template <typename Take>
  AdapterFiles read(const Take& take) {
    AdapterFiles files;
    files.scale = adapter_.scale_of("");
    collect();
    for (const auto& [canonical, pair] : pairs_) {
      AdapterModule module = shape_of(canonical, pair);
      read_values(pair, module);
      take(std::move(module));
    }
    files.unused = static_cast<int>(unused_.size());
    return files;
  }

  AdapterSize size() {
    AdapterSize size;
    collect();
    for (const auto& [canonical, pair] : pairs_) {
      const AdapterModule module = shape_of(canonical, pair);
      size.bytes += static_cast<size_t>(module.rank * (module.in + module.out)) * sizeof(float);
      size.rank = std::max(size.rank, module.rank);
    }
    return size;
  }

 private:
  struct Pair {
    std::string path;
    int layer = 0;
    int64_t cols = 0;
    const SafeTensor* a = nullptr;
    const SafeTensor* b = nullptr;
  };

  std::string where(const SafeTensor& tensor) const {
    return fmt::format("{}: tensor '{}'", file_.origin(), tensor.name);
  }

  /// Says why a tensor is none of those that are read.
  [[noreturn]] void refuse(const SafeTensor& tensor, std::string_view canonical) const {
    const std::string_view name = tensor.name;
    if (name.find("lora_magnitude_vector") != std::string_view::npos || name.ends_with(".m")) {
      fail("{} is of a DoRA adapter, which is not supported, only plain LoRA", where(tensor));
    }
    if (name.find(".experts") != std::string_view::npos) {
      fail(
          "{} adapts experts, which is not supported, only the projections of attention, the dense MLP and the "
          "per-layer input",
          where(tensor));
    }
    KnownTensor known;
    if (find_known_tensor(config_, canonical, known)) {
      fail(
          "{} adapts a module that cannot be adapted; of each layer the projections of attention, the dense MLP and "
          "the "
          "per-layer input can",
          where(tensor));
    }
    fail("{} matches no projection of a {} model with {} layers", where(tensor), config_.model_type,
         config_.layer_count());
  }

  void collect() {
    for (const SafeTensor& tensor : file_.tensors()) collect(tensor);
    if (pairs_.empty()) fail("{} holds no adapters of the layers of a text model", file_.origin());
  }

  void collect(const SafeTensor& tensor) {
    const auto name = parse_name(tensor.name, adapter_.layout);
    if (!name) refuse(tensor, parse_stored_name(tensor.name).canonical);
    const std::string canonical = canonical_module(name->path);
    if (is_foreign_tensor(name->path) || is_redundant_kv(config_, canonical)) {
      unused_.insert(canonical);
      return;
    }
    KnownTensor known;
    if (adaptable_projection(canonical).empty() || !find_known_tensor(config_, canonical, known))
      refuse(tensor, canonical);
    if (config_.layers[static_cast<size_t>(known.layer)].k_eq_v && canonical.ends_with(".v_proj")) {
      fail("{} adapts the values of layer {}, which takes its keys for values: it has no such projection",
           where(tensor), known.layer);
    }
    Pair& pair = pairs_[canonical];
    if (!pair.path.empty() && pair.path != name->path) {
      fail("{} means the same module as '{}'", where(tensor), pair.path);
    }
    pair.path = name->path;
    pair.layer = known.layer;
    pair.cols = known.cols;
    const SafeTensor*& half = name->half == Half::kA ? pair.a : pair.b;
    if (half != nullptr) fail("{} means the same as '{}'", where(tensor), half->name);
    half = &tensor;
  }

  /// The values as float32, [rows, cols] as stored, times `factor`.
  std::vector<float> values(const SafeTensor& tensor, double factor) const {
    WeightFormat format;
    switch (tensor.dtype) {
      case Dtype::kF32:
        format = WeightFormat::kF32;
        break;
      case Dtype::kF16:
        format = WeightFormat::kF16;
        break;
      case Dtype::kBF16:
        format = WeightFormat::kBF16;
        break;
      default:
        fail("{} is of dtype {}, expected F32, F16 or BF16", where(tensor), name_of(tensor.dtype));
    }
    const Matrix matrix = make_matrix(format, tensor.shape[0], tensor.shape[1], tensor.bytes.data());
    std::vector<float> out(static_cast<size_t>(matrix.rows * matrix.cols));
    for (int64_t r = 0; r < matrix.rows; ++r) decode_row(matrix, r, out.data() + r * matrix.cols);
    for (float& value : out) {
      value = static_cast<float>(value * factor);
      if (!std::isfinite(value)) fail("{} holds values that are not finite", where(tensor));
    }
    return out;
  }

  static std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
    std::vector<float> out(x.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
    }
    return out;
  }

  void check_shape(const SafeTensor& tensor) const {
    if (tensor.shape.size() != 2) {
      fail("{} has {} dimensions, expected 2{}", where(tensor), tensor.shape.size(),
           tensor.shape.size() == 3 ? ": adapters of experts are not supported" : "");
    }
    if (tensor.shape[0] < 1 || tensor.shape[1] < 1) {
      fail("{} has the shape [{}, {}]: it is empty", where(tensor), tensor.shape[0], tensor.shape[1]);
    }
  }

  /// All but the values.
  AdapterModule shape_of(const std::string& canonical, const Pair& pair) const {
    if (pair.a == nullptr || pair.b == nullptr) {
      const SafeTensor& there = *(pair.a != nullptr ? pair.a : pair.b);
      fail("{} has no partner: the other half of the pair is missing", where(there));
    }
    check_shape(*pair.a);
    check_shape(*pair.b);
    const bool mlx = adapter_.layout == AdapterConfig::Layout::kMlx;
    // mlx-lm stores a [in, rank] and b [rank, out]; PEFT a [rank, in] and b [out, rank].
    const auto [a_rank, in] =
        mlx ? std::pair(pair.a->shape[1], pair.a->shape[0]) : std::pair(pair.a->shape[0], pair.a->shape[1]);
    const auto [b_rank, out] =
        mlx ? std::pair(pair.b->shape[0], pair.b->shape[1]) : std::pair(pair.b->shape[1], pair.b->shape[0]);
    if (a_rank != b_rank) {
      fail("{} has rank {}, but its partner '{}' has {}", where(*pair.a), a_rank, pair.b->name, b_rank);
    }
    if (const int rank = adapter_.rank_of(pair.path); rank != a_rank) {
      fail("{} has rank {}, but the configuration says {}", where(*pair.a), a_rank, rank);
    }
    if (in != pair.cols) {
      fail("{} takes {} inputs; the model's {} has {}", where(*pair.a), in, canonical, pair.cols);
    }
    if (!adapter_.names(pair.path)) {
      fail("{} adapts a module that {} does not name", where(*pair.a),
           mlx ? "the configuration's 'keys'" : "the configuration's 'target_modules'");
    }
    if (adapter_.last_layers > 0 && pair.layer < config_.layer_count() - adapter_.last_layers) {
      fail("{} adapts layer {}, but the configuration adapts the last {} of {} layers only", where(*pair.a), pair.layer,
           adapter_.last_layers, config_.layer_count());
    }
    AdapterModule module;
    module.path = pair.path;
    module.canonical = canonical;
    module.layer = pair.layer;
    module.projection = adaptable_projection(canonical);
    module.rank = static_cast<int>(a_rank);
    module.in = in;
    module.out = out;
    return module;
  }

  void read_values(const Pair& pair, AdapterModule& module) const {
    module.a = values(*pair.a, 1.0);
    module.b = values(*pair.b, adapter_.scale_of(pair.path));
    if (adapter_.layout == AdapterConfig::Layout::kMlx) {
      module.a = transposed(module.a, module.in, module.rank);
    } else {
      module.b = transposed(module.b, module.out, module.rank);
    }
  }

  const AdapterConfig& adapter_;
  const SafetensorsFile& file_;
  const ModelConfig& config_;
  std::map<std::string, Pair> pairs_;  // by canonical name
  std::set<std::string> unused_;       // modules
};

std::filesystem::path file_in(const std::filesystem::path& directory) {
  const auto mlx = directory / kMlxName;
  const auto peft = directory / kPeftName;
  const bool has_mlx = std::filesystem::exists(mlx);
  const bool has_peft = std::filesystem::exists(peft);
  if (has_mlx && has_peft) {
    fail("{} holds both {} and {}: name the one that is meant", directory.string(), kMlxName, kPeftName);
  }
  if (!has_mlx && !has_peft) {
    fail("{} holds neither {} (mlx-lm) nor {} (PEFT)", directory.string(), kMlxName, kPeftName);
  }
  return has_mlx ? mlx : peft;
}

struct Opened {
  AdapterConfig config;
  std::shared_ptr<const SafetensorsFile> file;
};

Opened open_adapter(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) fail("the adapter {} does not exist", path.string());
  const auto file = std::filesystem::is_directory(path) ? file_in(path) : path;
  const auto config_file = file.parent_path() / kConfigName;
  if (!std::filesystem::exists(config_file)) {
    fail("{} has no {} beside it, which says its rank and scale", file.string(), kConfigName);
  }
  return {parse_adapter_config(read_small_file(config_file), config_file.string()), SafetensorsFile::open(file)};
}

}  // namespace

AdapterFiles read_adapter(const AdapterConfig& adapter, const SafetensorsFile& file, const ModelConfig& config) {
  std::vector<AdapterModule> modules;
  AdapterFiles files =
      Reader(adapter, file, config).read([&](AdapterModule module) { modules.push_back(std::move(module)); });
  files.modules = std::move(modules);
  return files;
}

AdapterFiles read_adapter(const std::filesystem::path& path, const ModelConfig& config) {
  const Opened opened = open_adapter(path);
  return read_adapter(opened.config, *opened.file, config);
}

AdapterFiles read_adapter(const std::filesystem::path& path, const ModelConfig& config,
                          const std::function<void(const AdapterModule&)>& take) {
  const Opened opened = open_adapter(path);
  return Reader(opened.config, *opened.file, config).read(take);
}

AdapterSize adapter_size(const std::filesystem::path& path, const ModelConfig& config) {
  const Opened opened = open_adapter(path);
  return Reader(opened.config, *opened.file, config).size();
}

}  // namespace carat

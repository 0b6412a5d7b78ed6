#include "model/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/digest.h"
#include "model/model.h"

namespace carat {
namespace {

constexpr std::array<std::string_view, kLoraModules> kNames = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",     "self_attn.o_proj",     "mlp.gate_proj",
    "mlp.up_proj",      "mlp.down_proj",    "per_layer_input_gate", "per_layer_projection",
};

struct Shape {
  int64_t out = 0;  // 0: the layer has no such projection
  int64_t in = 0;
  friend bool operator==(const Shape&, const Shape&) = default;
};
using LayerShapes = std::array<Shape, kLoraModules>;

LayerShapes shapes_of(const LayerWeights& w) {
  const std::array<const Matrix*, kLoraModules> matrices = {
      &w.q, &w.k, &w.v, &w.o, &w.mlp.gate.matrix, &w.mlp.up.matrix, &w.mlp.down.matrix, &w.pli_gate, &w.pli_projection};
  LayerShapes shapes;
  for (size_t m = 0; m < kLoraModules; ++m) {
    if (*matrices[m]) shapes[m] = {matrices[m]->rows, matrices[m]->cols};
  }
  return shapes;
}

/// One module's correction in device memory.
struct Correction {
  int rank = 0;
  DeviceArray<float> a;  // [rank, in]
  DeviceArray<float> b;  // [rank, out]
};

void add_to(Digest& digest, const AdapterModule& module) {
  const std::string text = fmt::format("{} {} {} {}\n", module.canonical, module.rank, module.in, module.out);
  digest.update(std::as_bytes(std::span(text)));
  digest.update(std::as_bytes(std::span(module.a)));
  digest.update(std::as_bytes(std::span(module.b)));
}

}  // namespace

struct Adapter::Impl {
  Device* device = nullptr;
  std::vector<LayerShapes> shapes;
  std::vector<std::array<Correction, kLoraModules>> layers;
  std::string fingerprint;
  double scale = 1.0;
  int unused = 0;

  void allocate(Correction& c, int rank, const Shape& shape) const {
    c.rank = rank;
    c.a = DeviceArray<float>(*device, static_cast<size_t>(rank * shape.in));
    c.b = DeviceArray<float>(*device, static_cast<size_t>(rank * shape.out));
  }

  template <typename Body>
  void for_each(const Body& body) const {
    for (const auto& layer : layers) {
      for (const Correction& c : layer) {
        if (c.rank > 0) body(c);
      }
    }
  }
};

Adapter::Adapter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Adapter::~Adapter() = default;

std::shared_ptr<const Adapter> Adapter::load(const std::filesystem::path& path, const Model& model) {
  auto impl = std::make_unique<Impl>();
  impl->device = &model.device();
  impl->layers.resize(model.weights().layers.size());
  for (const LayerWeights& layer : model.weights().layers) impl->shapes.push_back(shapes_of(layer));
  Digest digest = Digest::sha256();
  // One at a time, so that no second copy of the whole is ever in memory.
  const AdapterFiles files = read_adapter(path, model.config(), [&](const AdapterModule& module) {
    const auto layer = static_cast<size_t>(module.layer);
    const auto m = static_cast<size_t>(std::find(kNames.begin(), kNames.end(), module.projection) - kNames.begin());
    const Shape shape = m < kLoraModules && layer < impl->shapes.size() ? impl->shapes[layer][m] : Shape();
    if (shape.in != module.in || shape.out != module.out) {
      fail("{}: the adapter of '{}' is for a projection of {} inputs and {} outputs; the model's has {} and {}",
           path.string(), module.path, module.in, module.out, shape.in, shape.out);
    }
    Correction& c = impl->layers[layer][m];
    impl->allocate(c, module.rank, shape);
    impl->device->upload(c.a.data(), module.a.data(), module.a.size() * sizeof(float));
    impl->device->upload(c.b.data(), module.b.data(), module.b.size() * sizeof(float));
    add_to(digest, module);
  });
  impl->scale = files.scale;
  impl->unused = files.unused;
  impl->fingerprint = digest.finish();
  return std::shared_ptr<const Adapter>(new Adapter(std::move(impl)));
}

std::shared_ptr<const Adapter> Adapter::stack(std::span<const std::shared_ptr<const Adapter>> adapters) {
  if (adapters.empty()) fail("a stack of adapters needs at least one");
  const Impl& first = *adapters.front()->impl_;
  auto impl = std::make_unique<Impl>();
  impl->device = first.device;
  impl->shapes = first.shapes;
  impl->scale = first.scale;
  impl->layers.resize(first.layers.size());
  Digest digest = Digest::sha256();
  for (const auto& adapter : adapters) {
    const Impl& other = *adapter->impl_;
    if (other.device != first.device || other.shapes != first.shapes) {
      fail("adapters of different models cannot be stacked");
    }
    impl->unused += other.unused;
    digest.update(std::as_bytes(std::span(other.fingerprint)));
  }
  impl->fingerprint = adapters.size() == 1 ? first.fingerprint : digest.finish();

  for (size_t layer = 0; layer < impl->layers.size(); ++layer) {
    for (size_t m = 0; m < kLoraModules; ++m) {
      int rank = 0;
      for (const auto& adapter : adapters) rank += adapter->impl_->layers[layer][m].rank;
      if (rank == 0) continue;
      const Shape& shape = impl->shapes[layer][m];
      Correction& c = impl->layers[layer][m];
      impl->allocate(c, rank, shape);
      int64_t at = 0;
      for (const auto& adapter : adapters) {
        const Correction& part = adapter->impl_->layers[layer][m];
        if (part.rank == 0) continue;
        impl->device->copy(c.a.data() + at * shape.in, part.a.data(), part.a.size() * sizeof(float));
        impl->device->copy(c.b.data() + at * shape.out, part.b.data(), part.b.size() * sizeof(float));
        at += part.rank;
      }
    }
  }
  return std::shared_ptr<const Adapter>(new Adapter(std::move(impl)));
}

const std::string& Adapter::fingerprint() const {
  return impl_->fingerprint;
}

int Adapter::rank() const {
  int most = 0;
  impl_->for_each([&](const Correction& c) { most = std::max(most, c.rank); });
  return most;
}

double Adapter::scale() const {
  return impl_->scale;
}

size_t Adapter::bytes() const {
  size_t bytes = 0;
  impl_->for_each([&](const Correction& c) { bytes += (c.a.size() + c.b.size()) * sizeof(float); });
  return bytes;
}

int Adapter::modules() const {
  int count = 0;
  impl_->for_each([&](const Correction&) { ++count; });
  return count;
}

int Adapter::unused() const {
  return impl_->unused;
}

LoraPair Adapter::pair(int layer, LoraModule module) const {
  const Correction& c = impl_->layers[static_cast<size_t>(layer)][static_cast<size_t>(module)];
  return {c.rank, c.a.data(), c.b.data()};
}

bool Adapter::fits(const Model& model) const {
  const auto same = [](const LayerShapes& shapes, const LayerWeights& layer) { return shapes == shapes_of(layer); };
  const auto& layers = model.weights().layers;
  return impl_->device == &model.device() &&
         std::equal(impl_->shapes.begin(), impl_->shapes.end(), layers.begin(), layers.end(), same);
}

std::shared_ptr<const Adapter> load_adapters(std::span<const std::filesystem::path> paths, const Model& model) {
  std::vector<std::shared_ptr<const Adapter>> adapters;
  for (const auto& path : paths) adapters.push_back(Adapter::load(path, model));
  if (adapters.empty()) return nullptr;
  return adapters.size() == 1 ? adapters.front() : Adapter::stack(adapters);
}

}  // namespace carat

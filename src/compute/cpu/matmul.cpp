#include "compute/cpu/matmul.h"

#include <unistd.h>

#include <algorithm>

namespace carat {
namespace {

// From this many tokens on, decoding weights into panels pays for itself.
constexpr int64_t kPanelTokens = 6;
// Weight bytes of a decode task. A thread's tasks follow each other in memory, so that it reads one stream; at the end
// the threads take single tasks from each other, to finish together.
constexpr int64_t kMostTaskBytes = 256 * 1024;
constexpr int64_t kLeastTaskBytes = 16 * 1024;
constexpr int64_t kTasksPerThread = 8;
// Panels of a strip, where kernels take strips: more than these save little of the tokens' way from the L3 cache. And
// tokens that a task should have at least for its rows to be worth decoding.
constexpr int64_t kStripPanels = 8;
constexpr int64_t kStripTokens = 128;
/// Bytes of decoded panels of a prefill task: they stay within a core's L2 cache beside the tiles that pass by, and the
/// more of them there are, the less often the tiles must come from further away.
int64_t panel_budget() {
  static const int64_t bytes = [] {
    long l2 = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    constexpr int64_t kLeast = 128 * 1024;
    return l2 <= 0 ? 320 * 1024 : std::max<int64_t>(kLeast, l2 / 16 * 5);
  }();
  return bytes;
}

/// Up to this many tokens, converting rows of narrow floats anew for each costs less than a float32 copy of them.
int64_t narrow_tokens(WeightFormat format) {
  if (format == WeightFormat::kF16 || format == WeightFormat::kBF16) return 4;
  return format == WeightFormat::kMxFp8 ? 1 : 0;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Bytes of weights that make one output.
int64_t bytes_of_row(const Product& p) {
  return static_cast<int64_t>(p.w.row_bytes + p.w.scale_row_bytes) * (p.gate ? 2 : 1);
}

}  // namespace

Matmul::Matmul(ThreadPool& pool, const Kernels& kernels, Precision precision)
    : pool_(pool),
      kernels_(kernels),
      precision_(precision),
      lora_(pool, kernels),
      scratch_(static_cast<size_t>(pool.threads())) {}

std::span<const int64_t> Matmul::all_tokens(int64_t count) {
  for (auto i = static_cast<int64_t>(all_tokens_.size()); i < count; ++i) all_tokens_.push_back(i);
  return std::span(all_tokens_).first(static_cast<size_t>(count));
}

void Matmul::set_input(Activations& x, const float* values, int64_t rows, int64_t cols) {
  x.values_ = values;
  x.rows_ = rows;
  x.cols_ = cols;
  x.quantized_ = false;
  for (Activations::Ordered& copy : x.ordered_) copy.ready = false;
}

bool Matmul::on_integers(const Product& product) const {
  return precision_ == Precision::kFast && !product.exact && has_integer_kernel(product.w);
}

bool Matmul::on_panels(const Product& product) const {
  return kernels_.pack_weights != nullptr && on_integers(product) &&
         static_cast<int64_t>(product.tokens.size()) >= kPanelTokens;
}

void Matmul::lay_out(Activations& x) {
  QuantizedRows& q = x.q_;
  q.rows = x.rows_;
  q.groups = ceil_div(x.cols_, kGroup);
  q.padded_groups = ceil_div(q.groups, kChains) * kChains;
  const auto groups = static_cast<size_t>(q.rows * q.padded_groups);
  x.hi_.resize(groups * kGroup);
  x.lo_.resize(groups * kGroup);
  if (kernels_.reads_whole) x.whole_.resize(groups * kGroup);
  x.scale_.resize(static_cast<size_t>(q.rows));
  x.sum0_.resize(groups);
  x.sum1_.resize(groups);
  q.hi = x.hi_.data();
  q.lo = x.lo_.data();
  q.q = kernels_.reads_whole ? x.whole_.data() : nullptr;
  q.scale = x.scale_.data();
  q.sum0 = x.sum0_.data();
  q.sum1 = x.sum1_.data();
}

void Matmul::quantize(Activations& x) {
  pool_.run(x.rows_, [&](int64_t row, int) { kernels_.quantize(x.values_ + row * x.cols_, x.cols_, x.q_, row); });
  x.quantized_ = true;
}

void Matmul::order(Activations& x, const Product& product) {
  for (const Matrix* w : {&product.w, &product.gate}) {
    if (!*w || kernels_.order == nullptr) continue;
    const Order order = kernels_.order(*w);
    Activations::Ordered& copy = x.ordered_[static_cast<size_t>(order)];
    if (order == Order::kPlain || copy.ready) continue;
    copy.hi.resize(x.hi_.size());
    copy.lo.resize(x.lo_.size());
    copy.ready = true;
    const QuantizedRows rows = in_order(x, order);
    pool_.run(x.rows_, [&](int64_t row, int) { kernels_.reorder(rows, row); });
  }
}

QuantizedRows Matmul::in_order(Activations& x, Order order) {
  QuantizedRows rows = x.q_;
  rows.order = order;
  rows.ordered_hi = x.ordered_[static_cast<size_t>(order)].hi.data();
  rows.ordered_lo = x.ordered_[static_cast<size_t>(order)].lo.data();
  return rows;
}

size_t Matmul::tile_bytes_of(const Activations& x) const {
  return static_cast<size_t>(x.q_.groups) * kernels_.gemm.tile_group_bytes + kernels_.gemm.tile_tail_bytes;
}

void Matmul::pack_tiles(Activations& x, std::span<const Product> products) {
  // Products over the same tokens share their tiles.
  tile_offset_.assign(products.size(), 0);
  const int64_t width = kernels_.gemm.tile_tokens;
  const size_t tile_bytes = tile_bytes_of(x);
  size_t bytes = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    if (!on_panels(products[i])) continue;
    const auto same = [&](const Product& other) {
      return on_panels(other) && other.tokens.data() == products[i].tokens.data() &&
             other.tokens.size() == products[i].tokens.size();
    };
    const auto twin = std::find_if(products.begin(), products.begin() + static_cast<int64_t>(i), same);
    if (twin != products.begin() + static_cast<int64_t>(i)) {
      tile_offset_[i] = tile_offset_[static_cast<size_t>(twin - products.begin())];
      continue;
    }
    tile_offset_[i] = bytes;
    bytes += static_cast<size_t>(ceil_div(static_cast<int64_t>(products[i].tokens.size()), width)) * tile_bytes;
  }
  tiles_.resize(bytes);
  size_t packed = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    if (!on_panels(products[i]) || tile_offset_[i] != packed) continue;
    const std::span<const int64_t> tokens = products[i].tokens;
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t tiles = ceil_div(count, width);
    // A tile of rows that are still in the cache is cheaper to pack than one that other cores have written.
    const bool together =
        !x.quantized_ && tokens.data() == all_tokens_.data() && count == x.rows_ && tiles >= pool_.threads();
    if (!together && !x.quantized_) quantize(x);
    pool_.run(tiles, [&](int64_t tile, int) {
      const int64_t first = tile * width;
      const int64_t some = std::min(width, count - first);
      if (together) {
        for (int64_t row = first; row < first + some; ++row) {
          kernels_.quantize(x.values_ + row * x.cols_, x.cols_, x.q_, row);
        }
      }
      kernels_.pack_tokens(x.q_, tokens.data() + first, some,
                           tiles_.data() + tile_offset_[i] + static_cast<size_t>(tile) * tile_bytes);
    });
    x.quantized_ = true;
    packed += static_cast<size_t>(tiles) * tile_bytes;
  }
}

void Matmul::reduce_for_adapters(const Activations& x, std::span<const Product> products) {
  lora_targets_.clear();
  for (const Product& p : products) {
    lora_targets_.push_back({&p.lora, p.tokens});
    lora_targets_.push_back({&p.gate_lora, p.tokens});
  }
  lora_.reduce(x.values_, x.cols_, lora_targets_);
}

void Matmul::run(Activations& x, std::span<const Product> products) {
  const auto any = [&](auto test) { return std::any_of(products.begin(), products.end(), test); };
  if (any([&](const Product& p) { return on_integers(p); })) {
    if (!x.quantized_) lay_out(x);
    if (any([&](const Product& p) { return on_panels(p); })) pack_tiles(x, products);
    if (!x.quantized_) quantize(x);
  }
  for (const Product& p : products) {
    if (on_integers(p) && !on_panels(p)) order(x, p);
  }

  if (any([](const Product& p) { return !p.lora.pairs.empty() || !p.gate_lora.pairs.empty(); }))
    reduce_for_adapters(x, products);

  tasks_.clear();
  int64_t dot_bytes = 0;  // of the weights that are read row by row
  for (const Product& p : products) {
    if (!p.tokens.empty() && !on_panels(p)) dot_bytes += p.w.rows * bytes_of_row(p);
  }
  const int64_t task_bytes =
      std::clamp(dot_bytes / (kTasksPerThread * pool_.threads()), kLeastTaskBytes, kMostTaskBytes);
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    if (p.tokens.empty()) continue;
    if (on_panels(p)) {
      add_panel_tasks(x, p, static_cast<int>(i));
      continue;
    }
    const int64_t count = std::max<int64_t>(ceil_div(task_bytes, 4 * std::max<int64_t>(bytes_of_row(p), 1)) * 4, 4);
    for (int64_t first = 0; first < p.w.rows; first += count) {
      tasks_.push_back(
          {static_cast<int>(i), first, std::min(count, p.w.rows - first), 0, static_cast<int64_t>(p.tokens.size())});
    }
  }
  pool_.run(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int thread) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    run_task(x, products[static_cast<size_t>(task.product)], task, scratch_[static_cast<size_t>(thread)]);
  });
}

void Matmul::add_panel_tasks(const Activations& x, const Product& product, int index) {
  const GemmShape& shape = kernels_.gemm;
  const auto tokens = static_cast<int64_t>(product.tokens.size());
  const auto panel_bytes = static_cast<int64_t>(shape.panel_group_bytes) * x.q_.groups;
  const int64_t most = std::max<int64_t>(panel_budget() / panel_bytes, 1);
  const int64_t all = ceil_div(product.w.rows, shape.panel_rows);
  const int64_t fair = ceil_div(all, 6 * pool_.threads());  // at least 6 tasks a thread
  int64_t panels = std::clamp<int64_t>(fair, 1, most);
  int64_t some = tokens;
  if (kernels_.gemm_strip != nullptr && product.lora.pairs.empty() && product.gate_lora.pairs.empty()) {
    // Where rows are too few for strips that are worth their tokens' way, tokens are divided as well.
    const int64_t wide = std::min({all, most, kStripPanels});
    for (; panels < wide && some > kStripTokens; panels *= 2) some = ceil_div(some, 2);
    panels = std::min(panels, wide);
    some = ceil_div(some, shape.tile_tokens) * shape.tile_tokens;
  }
  const int64_t count = panels * shape.panel_rows;
  for (int64_t first = 0; first < product.w.rows; first += count) {
    for (int64_t token = 0; token < tokens; token += some) {
      tasks_.push_back({index, first, std::min(count, product.w.rows - first), token, std::min(some, tokens - token)});
    }
  }
}

void Matmul::run_task(Activations& x, const Product& product, const Task& task, Scratch& scratch) {
  const auto index = static_cast<size_t>(task.product);
  float* const y = product.out + task.first_token * product.stride + task.first;
  const std::byte* gate_rows = nullptr;
  if (product.gate) gate_rows = product.gate.data + static_cast<size_t>(task.first) * product.gate.row_bytes;
  multiply(x, product, product.w, task, gate_rows, y, product.stride, scratch);
  if (!product.lora.pairs.empty()) {
    lora_.add(2 * index, product.w.rows, task.first, task.count, product.out + task.first, product.stride);
  }
  if (!product.gate) return;
  scratch.gate.resize(static_cast<size_t>(task.tokens * task.count));
  const std::byte* const next_rows =
      product.w.data + static_cast<size_t>(task.first + task.count) * product.w.row_bytes;
  multiply(x, product, product.gate, task, next_rows, scratch.gate.data(), task.count, scratch);
  if (!product.gate_lora.pairs.empty()) {
    lora_.add(2 * index + 1, product.w.rows, task.first, task.count, scratch.gate.data(), task.count);
  }
  for (int64_t t = 0; t < task.tokens; ++t) {
    float* out = y + t * product.stride;
    kernels_.gelu_mul(scratch.gate.data() + t * task.count, out, task.count, out);
  }
}

void Matmul::multiply_panels(const Activations& x, const Matrix& w, const Task& task, float* out, int64_t stride,
                             Scratch& scratch) {
  const GemmShape& shape = kernels_.gemm;
  const size_t panel_bytes = static_cast<size_t>(x.q_.groups) * shape.panel_group_bytes;
  const size_t tile_bytes = tile_bytes_of(x);
  scratch.panel.resize(static_cast<size_t>(ceil_div(task.count, shape.panel_rows)) * panel_bytes);
  for (int64_t r = 0; r < task.count; r += shape.panel_rows) {
    kernels_.pack_weights(w, task.first + r, std::min(shape.panel_rows, task.count - r),
                          scratch.panel.data() + static_cast<size_t>(r / shape.panel_rows) * panel_bytes);
  }
  const std::byte* const first_tile = tiles_.data() + tile_offset_[static_cast<size_t>(task.product)] +
                                      static_cast<size_t>(task.first_token / shape.tile_tokens) * tile_bytes;
  for (int64_t t = 0; t < task.tokens; t += shape.tile_tokens) {
    const std::byte* tile = first_tile + static_cast<size_t>(t / shape.tile_tokens) * tile_bytes;
    const int64_t tokens = std::min(shape.tile_tokens, task.tokens - t);
    if (kernels_.gemm_strip != nullptr) {
      const std::byte* next = t + shape.tile_tokens < task.tokens ? tile + tile_bytes : first_tile;
      kernels_.gemm_strip(w, scratch.panel.data(), tile, next, x.q_.groups, task.count, tokens, out + t * stride,
                          stride);
      continue;
    }
    for (int64_t r = 0; r < task.count; r += shape.panel_rows) {
      kernels_.gemm_tile(w, scratch.panel.data() + static_cast<size_t>(r / shape.panel_rows) * panel_bytes, tile,
                         x.q_.groups, std::min(shape.panel_rows, task.count - r), tokens, out + t * stride + r, stride);
    }
  }
}

void Matmul::multiply(Activations& x, const Product& product, const Matrix& w, const Task& task, const std::byte* next,
                      float* out, int64_t stride, Scratch& scratch) {
  if (on_panels(product)) return multiply_panels(x, w, task, out, stride, scratch);
  const int64_t first = task.first;
  const int64_t count = task.count;
  const int64_t tokens = task.tokens;
  // Calls body(first token in the activations, index in `out`, count) for runs of consecutive tokens.
  const auto for_runs = [&](const auto& body) {
    for (int64_t t = 0; t < tokens;) {
      int64_t end = t + 1;
      while (end < tokens &&
             product.tokens[static_cast<size_t>(end)] == product.tokens[static_cast<size_t>(t)] + end - t) {
        ++end;
      }
      body(product.tokens[static_cast<size_t>(t)], t, end - t);
      t = end;
    }
  };

  if (on_integers(product)) {
    const QuantizedRows rows = kernels_.order == nullptr ? x.q_ : in_order(x, kernels_.order(w));
    for_runs([&](int64_t token, int64_t at, int64_t run) {
      kernels_.integer_dot(w, first, count, rows, token, run, out + at * stride, stride, next);
    });
  } else {
    const int64_t cols = w.cols;
    const float* weights = nullptr;
    int64_t weight_stride = cols;
    constexpr int64_t kRows = 8;  // decoded at a time, so that they stay in the L1 or L2 cache
    for (int64_t r = 0; r < count; r += kRows) {
      const int64_t rows = std::min(kRows, count - r);
      const std::byte* data = w.data + static_cast<size_t>(first + r) * w.row_bytes;
      if (tokens <= narrow_tokens(w.format)) {
        for_runs([&](int64_t token, int64_t at, int64_t run) {
          kernels_.narrow_dot(w, first + r, rows, x.values_ + token * x.cols_, x.cols_, run, out + at * stride + r,
                              stride);
        });
        continue;
      }
      if (w.format == WeightFormat::kF32 && reinterpret_cast<uintptr_t>(data) % 4 == 0 && w.row_bytes % 4 == 0) {
        weights = reinterpret_cast<const float*>(data);
        weight_stride = static_cast<int64_t>(w.row_bytes / 4);
      } else {
        scratch.rows.resize(static_cast<size_t>(kRows * cols));
        kernels_.decode_rows(w, first + r, rows, scratch.rows.data(), cols);
        weights = scratch.rows.data();
      }
      for_runs([&](int64_t token, int64_t at, int64_t run) {
        kernels_.float_dot(weights, weight_stride, rows, x.values_ + token * x.cols_, x.cols_, run, cols,
                           out + at * stride + r, stride);
      });
    }
  }
}

}  // namespace carat

#include "model/kv_budget.h"

#include <algorithm>

#include "base/error.h"

namespace carat {

KvChoice choose_kv_formats(const std::vector<KvLayerOptions>& layers, size_t budget) {
  std::vector<size_t> chosen(layers.size(), 0);
  size_t bytes = 0;
  size_t least = 0;
  for (const KvLayerOptions& layer : layers) {
    bytes += layer.options.front().bytes;
    least += std::min_element(layer.options.begin(), layer.options.end(), [](const KvOption& a, const KvOption& b) {
               return a.bytes < b.bytes;
             })->bytes;
  }
  if (least > budget) fail("keys and values take at least {} bytes a token; the budget is {}", least, budget);
  while (bytes > budget) {
    size_t best_layer = layers.size();
    size_t best_option = 0;
    double best_price = 0.0;
    for (size_t l = 0; l < layers.size(); ++l) {
      const KvOption& now = layers[l].options[chosen[l]];
      for (size_t o = 0; o < layers[l].options.size(); ++o) {
        const KvOption& next = layers[l].options[o];
        if (next.bytes >= now.bytes) continue;
        const double price = (next.divergence - now.divergence) / static_cast<double>(now.bytes - next.bytes);
        if (best_layer < layers.size() && price >= best_price) continue;
        best_layer = l;
        best_option = o;
        best_price = price;
      }
    }
    bytes -= layers[best_layer].options[chosen[best_layer]].bytes - layers[best_layer].options[best_option].bytes;
    chosen[best_layer] = best_option;
  }
  KvChoice choice = KvFormat::kF16;
  for (size_t l = 0; l < layers.size(); ++l) {
    choice.layers.push_back({layers[l].layer, layers[l].options[chosen[l]].format});
  }
  return choice;
}

}  // namespace carat

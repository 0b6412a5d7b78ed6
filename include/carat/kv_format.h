// Number formats of cached keys and values, and which layers use which.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

/// How the keys, or the values, of one layer are stored (docs/kv-cache.md).
struct KvFormat {
  enum class Kind : uint8_t {
    kFloat32,
    kFloat16,
    kBfloat16,
    kAffine,   // codes of `bits` bits with a scale and a bias for each `group` of numbers, as MLX has them
    kSpread,   // the same of numbers that were spread over their group
    kRotated,  // values only: the head rotated, then codes of a codebook with a scale for each `group`
  };
  Kind kind = Kind::kFloat16;
  uint8_t bits = 16;  // of a code
  uint8_t group = 0;  // numbers that share a scale; 0 in the float formats

  static const KvFormat kF32, kF16, kBF16;
  /// bits 2, 3, 4, 5, 6 or 8; group 16, 32 or 64.
  static constexpr KvFormat affine(int bits, int group = 32) {
    return {Kind::kAffine, static_cast<uint8_t>(bits), static_cast<uint8_t>(group)};
  }
  static constexpr KvFormat spread(int bits, int group = 32) {
    return {Kind::kSpread, static_cast<uint8_t>(bits), static_cast<uint8_t>(group)};
  }
  /// bits 2, 3, 4, 5 or 8.
  static constexpr KvFormat rotated(int bits, int group = 32) {
    return {Kind::kRotated, static_cast<uint8_t>(bits), static_cast<uint8_t>(group)};
  }

  constexpr bool is_coded() const { return group != 0; }

  friend constexpr bool operator==(const KvFormat&, const KvFormat&) = default;
};
inline constexpr KvFormat KvFormat::kF32{Kind::kFloat32, 32, 0};
inline constexpr KvFormat KvFormat::kF16{Kind::kFloat16, 16, 0};
inline constexpr KvFormat KvFormat::kBF16{Kind::kBfloat16, 16, 0};

/// "f16", "q8", "q4g64" (spread, of a group other than 32), "mlx8" (affine), "turbo3".
std::string kv_format_name(KvFormat format);

/// Most positions that can be kept beside their codes.
constexpr int kMostRecentKv = 1 << 20;

/// The formats of one layer.
struct KvFormats {
  KvFormat k, v;
  /// At least so many of the latest positions are read as f16 instead of their codes; 0 to kMostRecentKv. Only layers
  /// without a window whose keys or values are coded heed it.
  int recent = 0;

  KvFormats() = default;
  KvFormats(KvFormat both) : k(both), v(both) {}
  KvFormats(KvFormat k, KvFormat v, int recent = 0) : k(k), v(v), recent(recent) {}
  constexpr bool is_coded() const { return k.is_coded() || v.is_coded(); }
  friend constexpr bool operator==(const KvFormats&, const KvFormats&) = default;
};

/// The formats of all layers that own keys and values.
struct KvChoice {
  KvFormats full;     // layers without a window
  KvFormats sliding;  // layers with one
  struct Layer {
    int index = 0;  // of the layer in the model
    KvFormats formats;
    friend bool operator==(const Layer&, const Layer&) = default;
  };
  std::vector<Layer> layers;  // exceptions

  KvChoice() = default;
  KvChoice(KvFormat everywhere) : full(everywhere), sliding(everywhere) {}
  KvChoice(KvFormats everywhere) : full(everywhere), sliding(everywhere) {}
  KvChoice(KvFormats full, KvFormats sliding) : full(full), sliding(sliding) {}

  KvFormats of(int layer, bool sliding_layer) const;
  /// Sets KvFormats::recent of every layer that heeds it.
  void keep_recent(int positions);
  friend bool operator==(const KvChoice&, const KvChoice&) = default;
};

/// f32, f16, bf16, or qB or qBgG: spread codes of B (2-6, 8) bits in groups of G (16, 64, or 32, the default); mlxB or
/// mlxBgG: affine ones. Throws Error.
KvFormat parse_kv_format(std::string_view name);

/// The same for all layers, or turbo:kAvB (turbo alone: k8v3), where layers without a window store spread keys of A
/// bits in groups of 32 and rotated values of B bits, and others f16. Throws Error.
KvChoice parse_kv_choice(std::string_view name);
/// "q8", "k:q8 v:q4", "turbo:k8v3", "q4, the latest 128 also f16": for people.
std::string kv_choice_name(const KvChoice& choice);

}  // namespace carat

// Random valid weights in every number format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "base/half.h"
#include "compute/device.h"
#include "quant/matrix.h"

namespace carat {

/// A reproducible source of numbers (splitmix64): the same on every standard library, and cheap to seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0xd1342543de82ef95u) {}
  uint32_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>(z >> 32);
  }
  int below(int end) { return static_cast<int>((uint64_t{bits()} * static_cast<uint64_t>(end)) >> 32); }
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(bits() >> 8) * 0x1p-24f); }
  /// About normal: mean 0, variance 1.
  float normal() {
    const float sum = uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1);
    return sum * 0.8660254f;
  }

 private:
  uint64_t state_;
};

inline std::vector<float> random_floats(size_t size, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = scale * random.normal();
  return values;
}

/// Like a residual stream: about normal, with a few columns thirty times larger than the rest.
inline std::vector<float> random_activations(int64_t rows, int64_t width, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(rows * width));
  for (float& value : values) value = random.normal() * (random.below(100) == 0 ? 30.0f : 1.0f);
  return values;
}

/// A number format with its free parameters.
struct WeightCase {
  WeightFormat format = WeightFormat::kF32;
  int bits = 0;   // kAffine
  int group = 0;  // MLX formats
  ScaleType scale_type = ScaleType::kNone;

  /// Widths of matrices in this format are multiples of this.
  int column_step() const { return group > 0 ? group : block_shape(format).cols; }
  /// The smallest allowed width that is not below `wish`; floats take any, also odd ones.
  int64_t width(int64_t wish) const { return (wish + column_step() - 1) / column_step() * column_step(); }
  bool is_float() const {
    return format == WeightFormat::kF32 || format == WeightFormat::kF16 || format == WeightFormat::kBF16;
  }
  std::string name() const {
    if (format != WeightFormat::kAffine) return std::string(format_name(format));
    const char* scale = scale_type == ScaleType::kF32 ? "f32" : scale_type == ScaleType::kF16 ? "f16" : "bf16";
    return "affine" + std::to_string(bits) + "_g" + std::to_string(group) + "_" + scale;
  }
};

inline void PrintTo(const WeightCase& weight, std::ostream* out) {
  *out << weight.name();
}

inline std::vector<WeightCase> all_weight_cases() {
  using enum WeightFormat;
  std::vector<WeightCase> cases = {{kF32}, {kF16}, {kBF16}};
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    cases.push_back({kAffine, bits, 32, ScaleType::kF16});
    cases.push_back({kAffine, bits, 64, ScaleType::kBF16});
    cases.push_back({kAffine, bits, 128, ScaleType::kF32});
  }
  cases.push_back({kMxFp4, 4, 32, ScaleType::kE8M0});
  cases.push_back({kMxFp8, 8, 32, ScaleType::kE8M0});
  cases.push_back({kNvFp4, 4, 16, ScaleType::kE4M3});
  for (const WeightFormat format :
       {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kGgufMxFp4}) {
    cases.push_back({format});
  }
  return cases;
}

/// One of each family: for tests whose subject is not the format.
inline std::vector<WeightCase> some_weight_cases() {
  using enum WeightFormat;
  return {{kF32},
          {kBF16},
          {kAffine, 3, 32, ScaleType::kF16},
          {kAffine, 4, 64, ScaleType::kBF16},
          {kMxFp8, 8, 32, ScaleType::kE8M0},
          {kNvFp4, 4, 16, ScaleType::kE4M3},
          {kQ8_0},
          {kQ4_K},
          {kQ6_K}};
}

/// A matrix and its bytes. The arrays end where the last row ends: reading past it is seen by the address sanitizer.
class TestMatrix {
 public:
  /// Random weights of magnitude up to about `largest`.
  TestMatrix(const WeightCase& weight, int64_t rows, int64_t cols, uint64_t seed, float largest = 0.1f)
      : largest_(largest), random_(seed) {
    if (weight.group > 0) {
      fill_groups(weight, rows, cols);
    } else {
      fill_blocks(weight.format, rows, cols);
    }
    matrix_.data = data_.data();
    if (!scales_.empty()) matrix_.scales = scales_.data();
    if (!biases_.empty()) matrix_.biases = biases_.data();
  }
  /// The given float32 values.
  TestMatrix(int64_t rows, int64_t cols, const std::vector<float>& values) : random_(0) {
    for (const float value : values) put(data_, value);
    matrix_ = make_matrix(WeightFormat::kF32, rows, cols, data_.data());
  }
  TestMatrix(TestMatrix&&) = default;  // moved vectors keep their memory
  TestMatrix& operator=(TestMatrix&&) = default;

  operator const Matrix&() const { return matrix_; }
  operator Linear() const { return matrix_; }
  const Matrix* operator->() const { return &matrix_; }

 private:
  template <typename T>
  static void put(std::vector<std::byte>& bytes, T value) {
    bytes.resize(bytes.size() + sizeof value);
    std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
  }
  void put_random(size_t count) {
    for (size_t i = 0; i < count; ++i) data_.push_back(static_cast<std::byte>(random_.bits() & 0xff));
  }
  void put_half(float value) { put(data_, f32_to_f16(value * random_.uniform(0.5f, 1.0f))); }

  static void put_scale(std::vector<std::byte>& bytes, ScaleType type, float value) {
    if (type == ScaleType::kF32) put(bytes, value);
    if (type == ScaleType::kF16) put(bytes, f32_to_f16(value));
    if (type == ScaleType::kBF16) put(bytes, f32_to_bf16(value));
  }
  uint8_t e8m0_near(float value) { return static_cast<uint8_t>(127 + std::ilogb(value) - random_.below(3)); }

  void fill_groups(const WeightCase& weight, int64_t rows, int64_t cols) {
    const int64_t groups = cols / weight.group;
    matrix_.format = weight.format;
    matrix_.bits = static_cast<uint8_t>(weight.bits);
    matrix_.group = static_cast<uint16_t>(weight.group);
    matrix_.scale_type = weight.scale_type;
    matrix_.rows = rows;
    matrix_.cols = cols;
    matrix_.row_bytes = static_cast<size_t>(cols * weight.bits / 8);
    put_random(static_cast<size_t>(rows) * matrix_.row_bytes);
    for (int64_t i = 0; i < rows * groups; ++i) {
      if (weight.format == WeightFormat::kAffine) {
        // Scales of either sign; codes around the middle are near zero, as encoders make them.
        const auto most = static_cast<float>((1 << weight.bits) - 1);
        const float scale = random_.uniform(1, 2) * largest_ / most * (random_.below(2) == 0 ? 1.0f : -1.0f);
        put_scale(scales_, weight.scale_type, scale);
        put_scale(biases_, weight.scale_type, -scale * most * random_.uniform(0.4f, 0.6f));
      } else if (weight.format == WeightFormat::kNvFp4) {
        put(scales_, static_cast<uint8_t>(1 + random_.below(15)));  // subnormal and small E4M3: up to 0.03
      } else {
        put(scales_, e8m0_near(largest_ / (weight.format == WeightFormat::kMxFp4 ? 6.0f : 448.0f)));
      }
    }
    if (weight.format == WeightFormat::kMxFp8) {
      for (std::byte& element : data_) {
        if ((element & std::byte{0x7f}) == std::byte{0x7f}) element &= std::byte{0xf0};  // not NaN
      }
    }
    matrix_.scale_row_bytes = scales_.size() / static_cast<size_t>(rows);
  }

  void fill_blocks(WeightFormat format, int64_t rows, int64_t cols) {
    matrix_ = make_matrix(format, rows, cols, nullptr);
    const int64_t blocks = rows * cols / block_shape(format).cols;
    data_.reserve(static_cast<size_t>(blocks * block_shape(format).bytes));
    for (int64_t i = 0; i < blocks; ++i) put_block(format);
  }

  void put_block(WeightFormat format) {
    using enum WeightFormat;
    switch (format) {
      case kF32:
        return put(data_, largest_ * random_.uniform(-1, 1));
      case kF16:
        return put(data_, f32_to_f16(largest_ * random_.uniform(-1, 1)));
      case kBF16:
        return put(data_, f32_to_bf16(largest_ * random_.uniform(-1, 1)));
      case kQ4_0:
        put_half(largest_ / 8);
        return put_random(16);
      case kQ4_1:
        put_half(largest_ / 8);
        put_half(-largest_);
        return put_random(16);
      case kQ5_0:
        put_half(-largest_ / 16);
        return put_random(20);
      case kQ5_1:
        put_half(largest_ / 16);
        put_half(-largest_);
        return put_random(20);
      case kQ8_0:
        put_half(largest_ / 127);
        return put_random(32);
      case kIQ4_NL:
        put_half(largest_ / 127);
        return put_random(16);
      case kGgufMxFp4:
        put(data_, e8m0_near(largest_ / 6));
        return put_random(16);
      case kQ2_K:
        put_random(16 + 64);
        put_half(2 * largest_ / (15 * 3));
        return put_half(largest_ / 15);
      case kQ3_K:
        put_random(32 + 64 + 12);
        return put_half(largest_ / (32 * 4));
      case kQ4_K:
        put_half(2 * largest_ / (63 * 15));
        put_half(largest_ / 63);
        return put_random(12 + 128);
      case kQ5_K:
        put_half(2 * largest_ / (63 * 31));
        put_half(largest_ / 63);
        return put_random(12 + 32 + 128);
      case kQ6_K:
        put_random(128 + 64 + 16);
        return put_half(largest_ / (128 * 32));
      case kIQ4_XS:
        put_half(largest_ / (32 * 127));
        return put_random(2 + 4 + 128);
      case kAffine:
      case kMxFp4:
      case kMxFp8:
      case kNvFp4:
        break;
    }
  }

  float largest_ = 1;
  Random random_;
  Matrix matrix_;
  std::vector<std::byte> data_, scales_, biases_;
};

}  // namespace carat

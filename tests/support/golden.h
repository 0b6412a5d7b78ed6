// Reference outputs stored as safetensors, and how logits are compared with them.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace carat::test {

inline std::filesystem::path data_directory() {
  return CARAT_TEST_DATA;
}

struct FloatTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// The tensors of a golden file: floats as they are, I32 as integers.
struct Golden {
  std::map<std::string, FloatTensor> floats;
  std::map<std::string, std::vector<int>> integers;
};

inline Golden read_golden(const std::filesystem::path& path) {
  Golden golden;
  const auto file = SafetensorsFile::open(path);
  for (const SafeTensor& tensor : file->tensors()) {
    const size_t count = tensor.bytes.size() / 4;
    if (tensor.dtype == Dtype::kF32) {
      FloatTensor& out = golden.floats[tensor.name];
      out.shape = tensor.shape;
      out.values.resize(count);
      std::memcpy(out.values.data(), tensor.bytes.data(), count * 4);
    } else {
      std::vector<int>& out = golden.integers[tensor.name];
      out.resize(count);
      std::memcpy(out.data(), tensor.bytes.data(), count * 4);
    }
  }
  return golden;
}

struct Difference {
  double max_abs = 0.0;
  double max_kl = 0.0;  // KL(reference || engine) of a row, in nats
  double mean_kl = 0.0;
  int top1_unequal = 0;
  int first_unequal = -1;
};

inline int argmax(const float* row, int64_t n) {
  int best = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (row[i] > row[best]) best = static_cast<int>(i);
  }
  return best;
}

/// Compares rows of logits [rows, vocab] in float64. A best token that the reference prefers by no more than `tie` may
/// differ.
inline Difference compare(const std::vector<float>& reference, const std::vector<float>& engine, int64_t vocab,
                          double tie = 0.0) {
  Difference d;
  const auto rows = static_cast<int64_t>(reference.size()) / vocab;
  const auto log_sum = [&](const float* row) {
    double largest = row[0];
    for (int64_t i = 1; i < vocab; ++i) largest = std::max(largest, static_cast<double>(row[i]));
    double sum = 0.0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - largest);
    return largest + std::log(sum);
  };
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = reference.data() + r * vocab;
    const float* b = engine.data() + r * vocab;
    const double la = log_sum(a);
    const double lb = log_sum(b);
    double kl = 0.0;
    for (int64_t i = 0; i < vocab; ++i) {
      d.max_abs = std::max(d.max_abs, std::abs(static_cast<double>(a[i]) - b[i]));
      const double log_p = a[i] - la;
      kl += std::exp(log_p) * (log_p - (b[i] - lb));
    }
    d.max_kl = std::max(d.max_kl, kl);
    d.mean_kl += kl / static_cast<double>(rows);
    if (a[argmax(a, vocab)] - a[argmax(b, vocab)] > tie) {
      ++d.top1_unequal;
      if (d.first_unequal < 0) d.first_unequal = static_cast<int>(r);
    }
  }
  return d;
}

}  // namespace carat::test

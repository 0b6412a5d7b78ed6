#include "compute/rope.h"

#include <cmath>

namespace carat {
namespace {

void append_rotations(const std::vector<double>& frequencies, int64_t position, std::vector<double>& table) {
  for (const double frequency : frequencies) table.push_back(std::cos(static_cast<double>(position) * frequency));
  for (const double frequency : frequencies) table.push_back(std::sin(static_cast<double>(position) * frequency));
}

}  // namespace

RopeTable::RopeTable(int head_dim, int pairs, double theta, double factor) : head_dim_(head_dim) {
  for (int i = 0; i < pairs; ++i) frequencies_.push_back(std::pow(theta, -2.0 * i / head_dim) / factor);
  for (int64_t position = 0; position < kFine; ++position) append_rotations(frequencies_, position, fine_);
  reserve(kFine);
}

void RopeTable::reserve(int64_t end) {
  if (frequencies_.empty()) return;
  const int64_t row = 2 * static_cast<int64_t>(frequencies_.size());
  for (int64_t block = static_cast<int64_t>(coarse_.size()) / row; block * kFine < end; ++block) {
    append_rotations(frequencies_, block * kFine, coarse_);
  }
}

void RopeTable::rotation(int64_t position, float* cos, float* sin) const {
  const size_t n = frequencies_.size();
  const double* a = coarse_.data() + static_cast<size_t>(position / kFine) * 2 * n;
  const double* b = fine_.data() + static_cast<size_t>(position % kFine) * 2 * n;
  for (size_t i = 0; i < n; ++i) {
    cos[i] = static_cast<float>(a[i] * b[i] - a[n + i] * b[n + i]);
    sin[i] = static_cast<float>(a[n + i] * b[i] + a[i] * b[n + i]);
  }
}

}  // namespace carat

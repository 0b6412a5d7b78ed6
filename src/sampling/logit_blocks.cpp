#include "sampling/logit_blocks.h"

#include <array>
#include <functional>

namespace carat {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kChains = 4;  // vectors in flight
constexpr size_t kStep = 4 * kChains;

struct BlockSummary {
  float greatest;
  double rough_sum;  // within 2e-6 of itself: 32 float additions in each lane
};

/// Of LogitBlocks::kSize logits.
template <bool kRough>
BlockSummary summarize(const float* logits) {
  std::array<Floats, kChains> greatest;
  std::array<Floats, kChains> sums{};
  greatest.fill(all_equal<Floats>(kNever));
  for (size_t i = 0; i < LogitBlocks::kSize; i += kStep) {
    for (size_t chain = 0; chain < kChains; ++chain) {
      const Floats four = load(logits + i + 4 * chain);
      greatest[chain] = four > greatest[chain] ? four : greatest[chain];  // of NaN the second
      if constexpr (kRough) sums[chain] += rough_exp(four);
    }
  }
  BlockSummary summary{kNever, 0.0};
  for (size_t chain = 0; chain < kChains; ++chain) {
    for (size_t lane = 0; lane < 4; ++lane) {
      summary.greatest = std::max(summary.greatest, greatest[chain][lane]);
      if constexpr (kRough) summary.rough_sum += static_cast<double>(sums[chain][lane]);
    }
  }
  return summary;
}

/// Of a block that may be shorter: the last one.
BlockSummary summarize(std::span<const float> logits, bool rough) {
  std::array<float, LogitBlocks::kSize> padded;
  const float* whole = logits.data();
  if (logits.size() < padded.size()) {
    std::fill(std::copy(logits.begin(), logits.end(), padded.begin()), padded.end(), kNever);
    whole = padded.data();
  }
  return rough ? summarize<true>(whole) : summarize<false>(whole);
}

/// Tokens without their bit get -infinity. For 64 tokens or less.
void forbid_others(std::span<float> logits, uint64_t allowed) {
  if (allowed == ~uint64_t{0}) return;
  if (logits.size() < 64) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if ((allowed >> i & 1) == 0) logits[i] = kNever;
    }
    return;
  }
  constexpr Ints kBits = {1, 2, 4, 8};
  for (size_t i = 0; i < 64; i += 4, allowed >>= 4) {
    const Ints here = (Ints{} + static_cast<int32_t>(allowed & 15)) & kBits;
    store(select(here != 0, load(&logits[i]), all_equal<Floats>(kNever)), &logits[i]);
  }
}

}  // namespace

void LogitBlocks::start(std::span<const float> logits, bool rough) {
  logits_ = logits;
  greatest_.clear();
  best_ = kNever;
  rough_ = rough;
  rough_total_ = 0.0;
}

void LogitBlocks::add(float greatest, double rough_sum) {
  greatest_.push_back(greatest);
  best_ = std::max(best_, greatest);
  rough_total_ += rough_sum;
}

void LogitBlocks::read(std::span<const float> logits, bool rough) {
  start(logits, rough);
  for (size_t i = 0; i < logits.size(); i += kSize) {
    const BlockSummary block = summarize(logits.subspan(i, std::min(kSize, logits.size() - i)), rough);
    add(block.greatest, block.rough_sum);
  }
}

void LogitBlocks::read(std::span<float> logits, std::span<const uint64_t> allowed, bool rough) {
  start(logits, rough);
  constexpr size_t kWords = kSize / 64;
  for (size_t i = 0; i < logits.size(); i += kSize) {
    const std::span<float> block = logits.subspan(i, std::min(kSize, logits.size() - i));
    std::array<uint64_t, kWords> words{};
    const size_t first = std::min(i / 64, allowed.size());
    std::copy_n(allowed.begin() + static_cast<std::ptrdiff_t>(first), std::min(kWords, allowed.size() - first),
                words.begin());
    if (std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; })) {
      add(kNever, 0.0);
      continue;
    }
    for (size_t word = 0; word * 64 < block.size(); ++word) {
      forbid_others(block.subspan(word * 64, std::min<size_t>(64, block.size() - word * 64)), words[word]);
    }
    const BlockSummary summary = summarize(block, rough);
    add(summary.greatest, summary.rough_sum);
  }
}

int LogitBlocks::best_id() const {
  const auto block = std::find(greatest_.begin(), greatest_.end(), best_) - greatest_.begin();
  const auto begin = logits_.begin() + block * static_cast<std::ptrdiff_t>(kSize);
  return static_cast<int>(std::find(begin, logits_.end(), best_) - logits_.begin());
}

std::optional<float> LogitBlocks::reached_by(size_t k) {
  if (k == 0 || k > greatest_.size()) return std::nullopt;
  order_.assign(greatest_.begin(), greatest_.end());
  const auto last = order_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(order_.begin(), last, order_.end(), std::greater<>());
  return *last > kNever ? std::optional(*last) : std::nullopt;
}

}  // namespace carat

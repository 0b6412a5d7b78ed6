#include "tokenizer/merges.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace carat {

void Merges::RankedBuilder::reserve(size_t merges) {
  merges_.reserve(merges);
}

bool Merges::RankedBuilder::add(std::string_view left, std::string_view right) {
  const uint32_t rank = rank_++;
  joined_.assign(left);
  joined_.append(right);
  // The ways to cut one piece usually stand together in the list.
  if (joined_ != previous_ || previous_result_ == Vocabulary::kNone) {
    previous_result_ = vocabulary_.find(joined_);
    std::swap(joined_, previous_);
  }
  if (previous_result_ == Vocabulary::kNone) return false;
  merges_.push_back({previous_result_, static_cast<uint32_t>(left.size()), rank});
  return true;
}

Merges Merges::RankedBuilder::build() {
  Merges result;
  const auto ids = static_cast<size_t>(vocabulary_.size());
  // A counting sort by result: ranks stay ascending within each.
  result.first_cut_.assign(ids + 1, 0);
  for (const Merge& merge : merges_) ++result.first_cut_[static_cast<size_t>(merge.result) + 1];
  for (size_t id = 0; id < ids; ++id) result.first_cut_[id + 1] += result.first_cut_[id];
  std::vector<uint32_t> next(result.first_cut_.begin(), result.first_cut_.end() - 1);
  result.cuts_.resize(merges_.size());
  for (const Merge& merge : merges_) {
    result.cuts_[next[static_cast<size_t>(merge.result)]++] = {merge.cut, merge.rank};
  }
  return result;
}

Merges Merges::scored(std::vector<float> scores) {
  Merges result;
  result.scores_ = std::move(scores);
  return result;
}

Merges::Priority Merges::priority(int result, Part left, Part right) const {
  const auto index = static_cast<size_t>(result);
  if (!scores_.empty()) {
    // A float's bits order like the float once the sign is folded in; adding zero unites the two zeros.
    const auto bits = std::bit_cast<uint32_t>(scores_[index] + 0.0f);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    const auto shortness = [](uint32_t characters) {
      return uint64_t{0xFFFF - std::min<uint32_t>(characters, 0xFFFF)};
    };
    return uint64_t{~ascending} << 32 | shortness(left.characters) << 16 | shortness(right.characters);
  }
  // From the back: of a pair that is listed twice the later rank counts, as in Hugging Face's map of merges.
  for (uint32_t i = first_cut_[index + 1]; i-- > first_cut_[index];) {
    if (cuts_[i].at == left.bytes) return cuts_[i].rank;
  }
  return kNever;
}

}  // namespace carat

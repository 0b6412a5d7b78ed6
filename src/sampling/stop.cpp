#include "sampling/stop.h"

#include <algorithm>

namespace carat {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  // Longest first: of the matches that end at one byte the first one found is the one that starts earliest.
  std::stable_sort(stops_.begin(), stops_.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  const size_t seen = pending_.size();  // no match ends here or before
  pending_ += text;
  const std::string_view all = pending_;
  for (size_t end = seen + 1; end <= all.size(); ++end) {
    for (const std::string& stop : stops_) {
      if (all[end - 1] != stop.back() || !all.substr(0, end).ends_with(stop)) continue;
      stopped_ = true;
      matched_ = stop;
      std::string kept(all.substr(0, end - stop.size()));
      pending_.clear();
      return kept;
    }
  }
  std::string shown(all.substr(0, all.size() - held_back(all)));
  pending_.erase(0, shown.size());
  return shown;
}

size_t StopFilter::held_back(std::string_view text) const {
  for (size_t length = std::min(text.size(), stops_.front().size() - 1); length > 0; --length) {
    const std::string_view tail = text.substr(text.size() - length);
    const bool can_grow = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return stop.size() > length && std::string_view(stop).starts_with(tail);
    });
    if (can_grow) return length;
  }
  return 0;
}

std::string StopFilter::finish() {
  std::string rest;
  rest.swap(pending_);
  return rest;
}

}  // namespace carat

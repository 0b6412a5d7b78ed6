// Stop strings over streamed text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carat {

/// Lets text through until a stop string appears, across any split of the pieces: the longest tail that could still become
/// a stop string is held back. The earliest match wins; text before it is kept, the match and what follows is dropped.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);
  /// The text that may be shown now.
  std::string push(std::string_view text);
  /// What was held back and turned out not to be a stop string; empty after a match.
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace carat

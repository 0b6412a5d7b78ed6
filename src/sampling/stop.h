// Stop strings over streamed text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carat {

/// Lets text through until a stop string appears, across any split of the pieces: the longest tail that could still
/// become a stop string is held back. Text before the match is kept, the match and what follows is dropped.
///
/// The match that is complete first wins; of those complete at the same byte the longest. So the outcome depends on the
/// text alone and not on its pieces, and generation ends as early as it can. Pieces of whole UTF-8 characters come out
/// as whole characters. Not for use by several threads at once.
class StopFilter {
 public:
  /// Empty stop strings are ignored.
  explicit StopFilter(std::vector<std::string> stops);
  /// The text that may be shown now; empty after a match.
  std::string push(std::string_view text);
  /// What was held back and turned out not to be a stop string; empty after a match.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// The stop string that matched; empty before.
  const std::string& matched() const { return matched_; }

 private:
  size_t held_back(std::string_view text) const;

  std::vector<std::string> stops_;  // longest first
  std::string pending_;             // the end of the text so far: a proper prefix of a stop string, or empty
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace carat

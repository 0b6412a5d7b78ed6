// Compiled tools of earlier requests: an agent sends the same ones with every turn.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "grammar/constraint.h"

namespace carat::server {

/// Keeps the grammars that were used last. Thread-safe.
class GrammarCache {
 public:
  static constexpr size_t kMost = 8;
  static constexpr size_t kMostBytes = size_t{32} << 20;

  /// The grammar that `make` has made for this key, or makes now; what it throws comes through, and nothing is kept.
  /// The result may be null.
  std::shared_ptr<const Grammar> get(const std::string& key,
                                     const std::function<std::shared_ptr<const Grammar>()>& make);

 private:
  using Kept = std::pair<std::string, std::shared_ptr<const Grammar>>;
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
};

}  // namespace carat::server

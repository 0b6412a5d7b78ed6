#include "server/grammar_cache.h"

#include <algorithm>

namespace carat::server {

std::shared_ptr<const Grammar> GrammarCache::get(const std::string& key,
                                                 const std::function<std::shared_ptr<const Grammar>()>& make) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, key, &Kept::first);
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return found->second;
    }
  }
  std::shared_ptr<const Grammar> made = make();  // outside of the lock: it may take milliseconds
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, made);
  // Grammars grow while they are used.
  size_t bytes = 0;
  size_t count = 0;
  std::erase_if(kept_, [&](const Kept& one) {
    bytes += one.first.size() + (one.second ? grammar_bytes(*one.second) : 0);
    return ++count > kMost || bytes > kMostBytes;
  });
  return made;
}

}  // namespace carat::server

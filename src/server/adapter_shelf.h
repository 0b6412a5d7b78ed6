// The adapters of a model that is being served, and the memory that they take.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "server/service.h"

namespace carat {
class Model;
}

namespace carat::server {

/// Loads, replaces and removes adapters while generations use them. What a generation holds stays, and is counted,
/// until the last one lets it go. Thread-safe.
class AdapterShelf {
 public:
  /// `model` outlives the shelf and all that comes from it. `rows`: most of a forward. `most`: bytes for all adapters.
  AdapterShelf(const Model& model, int64_t rows, size_t most);

  /// An adapter of that id is replaced. Throws ApiFailure for an id that cannot be, files that cannot be loaded, and
  /// when the memory does not hold it.
  AdapterInfo load(const std::string& id, const std::string& path);
  /// Throws ApiFailure (404) when there is none of that id.
  void remove(const std::string& id);
  std::vector<AdapterInfo> list() const;
  /// Used by requests that name none; empty for none.
  void set_default(std::string id);

  /// `names`: "" is the default, "none" none, "a+b" (or "a,b") several whose corrections add up. Throws ApiFailure for
  /// a name that is not there, and when the memory does not hold the sum.
  std::shared_ptr<const Adapter> find(const std::string& names);

  /// Bytes of all adapters and sums of adapters that somebody holds, with what a forward needs beside them.
  size_t bytes() const { return ledger_->taken; }

 private:
  struct Mounted {
    AdapterInfo info;
    std::shared_ptr<const Adapter> adapter;
  };
  /// Outlives the shelf where adapters do.
  struct Ledger {
    std::atomic<size_t> taken{0};
  };
  class Share;

  size_t cost(size_t bytes, int rank) const;
  /// Empty when there is not so much left.
  std::shared_ptr<Share> take(size_t bytes);
  std::shared_ptr<const Adapter> sum(const std::vector<std::shared_ptr<const Adapter>>& parts);

  const Model& model_;
  int64_t rows_;
  size_t most_;
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  mutable std::mutex mutex_;
  std::string default_;
  std::map<std::string, Mounted> mounted_;
  std::map<std::string, std::weak_ptr<const Adapter>> sums_;  // by the fingerprints of their parts
};

}  // namespace carat::server

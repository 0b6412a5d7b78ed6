#include "server/adapter_shelf.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/adapter_files.h"
#include "engine/memory_plan.h"
#include "model/model.h"

namespace carat::server {
namespace {

double megabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

/// Bytes of the ledger, and what they are for.
class AdapterShelf::Share {
 public:
  Share(std::shared_ptr<Ledger> ledger, size_t bytes) : ledger_(std::move(ledger)), bytes_(bytes) {}
  ~Share() {
    adapter_.reset();
    ledger_->taken -= bytes_;
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  /// `adapter`, for the holders of which the bytes count.
  static std::shared_ptr<const Adapter> hold(const std::shared_ptr<Share>& share,
                                             std::shared_ptr<const Adapter> adapter) {
    share->adapter_ = std::move(adapter);
    return {share, share->adapter_.get()};
  }

 private:
  std::shared_ptr<Ledger> ledger_;
  size_t bytes_;
  std::shared_ptr<const Adapter> adapter_;
};

AdapterShelf::AdapterShelf(const Model& model, int64_t rows, size_t most) : model_(model), rows_(rows), most_(most) {}

size_t AdapterShelf::cost(size_t bytes, int rank) const {
  return bytes + adapter_scratch_bytes(rows_, rank);
}

std::shared_ptr<AdapterShelf::Share> AdapterShelf::take(size_t bytes) {
  size_t taken = ledger_->taken;
  do {
    if (bytes > most_ - std::min(most_, taken)) return nullptr;
  } while (!ledger_->taken.compare_exchange_weak(taken, taken + bytes));
  return std::make_shared<Share>(ledger_, bytes);
}

AdapterInfo AdapterShelf::load(const std::string& id, const std::string& path) {
  if (id.empty() || id == "none" || id.find_first_of("+,:/") != std::string::npos) {
    refuse(400, "an adapter cannot have the id \"" + id + "\": it must not be empty, \"none\", or hold any of + , : /",
           "invalid_adapter", "id");
  }
  std::shared_ptr<const Adapter> adapter;
  try {
    const AdapterSize size = adapter_size(path, model_.config());
    const std::shared_ptr<Share> share = take(cost(size.bytes, size.rank));
    if (share == nullptr) {
      refuse(400,
             fmt::format("the adapter {} takes {:.1f} MB; of the {:.1f} MB that adapters may take {:.1f} MB are taken",
                         path, megabytes(cost(size.bytes, size.rank)), megabytes(most_), megabytes(bytes())),
             "insufficient_memory", "path");
    }
    adapter = Share::hold(share, Adapter::load(path, model_));
  } catch (const Error& error) {
    refuse(400, error.what(), "invalid_adapter", "path");
  }
  AdapterInfo info{.id = id,
                   .path = path,
                   .rank = adapter->rank(),
                   .scale = adapter->scale(),
                   .bytes = adapter->bytes(),
                   .modules = adapter->modules()};
  const std::lock_guard lock(mutex_);
  mounted_[id] = {info, std::move(adapter)};
  return info;
}

void AdapterShelf::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (mounted_.erase(id) == 0) refuse(404, "there is no adapter \"" + id + "\"", "adapter_not_found");
}

std::vector<AdapterInfo> AdapterShelf::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> infos;
  for (const auto& [id, mounted] : mounted_) infos.push_back(mounted.info);
  return infos;
}

void AdapterShelf::set_default(std::string id) {
  const std::lock_guard lock(mutex_);
  default_ = std::move(id);
}

std::shared_ptr<const Adapter> AdapterShelf::find(const std::string& names) {
  const std::lock_guard lock(mutex_);
  const std::string& asked = names.empty() ? default_ : names;
  if (asked.empty() || asked == "none") return nullptr;
  std::vector<std::shared_ptr<const Adapter>> wanted;
  for (size_t begin = 0; begin <= asked.size();) {
    const size_t end = std::min(asked.find_first_of("+,", begin), asked.size());
    const std::string name = asked.substr(begin, end - begin);
    const auto found = mounted_.find(name);
    if (found == mounted_.end()) {
      std::string known;
      for (const auto& [id, mounted] : mounted_) known += (known.empty() ? "" : ", ") + id;
      refuse(400, "there is no adapter \"" + name + "\"; this server has " + (known.empty() ? "none" : known),
             "adapter_not_found", "adapter");
    }
    wanted.push_back(found->second.adapter);
    begin = end + 1;
  }
  return wanted.size() == 1 ? wanted.front() : sum(wanted);
}

/// Requests at the same time share one, so that it is in memory once and their rows are computed together.
std::shared_ptr<const Adapter> AdapterShelf::sum(const std::vector<std::shared_ptr<const Adapter>>& parts) {
  std::erase_if(sums_, [](const auto& known) { return known.second.expired(); });
  std::string name;
  size_t bytes = 0;
  int rank = 0;
  for (const auto& part : parts) {
    name += part->fingerprint() + " ";
    bytes += part->bytes();
    rank += part->rank();
  }
  std::weak_ptr<const Adapter>& known = sums_[name];
  if (std::shared_ptr<const Adapter> adapter = known.lock()) return adapter;
  const std::shared_ptr<Share> share = take(cost(bytes, rank));
  if (share == nullptr) {
    throw ApiFailure(
        {.status = 503,
         .message = fmt::format("the sum of these adapters takes {:.1f} MB; of the {:.1f} MB that adapters "
                                "may take {:.1f} MB are taken",
                                megabytes(cost(bytes, rank)), megabytes(most_), megabytes(this->bytes())),
         .code = "insufficient_memory",
         .param = "adapter",
         .retry_after = 5});
  }
  std::shared_ptr<const Adapter> adapter = Share::hold(share, Adapter::stack(parts));
  known = adapter;
  return adapter;
}

}  // namespace carat::server

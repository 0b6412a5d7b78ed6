#include "server/response_store.h"

#include <utility>

namespace carat::server {
namespace {

/// What an entry takes beside its texts: list, map and hash nodes, two copies of the id.
constexpr size_t kEntryBytes = 512;

}  // namespace

ResponseStore::ResponseStore(size_t max_bytes, std::chrono::seconds lifetime, Clock clock)
    : max_bytes_(max_bytes), lifetime_(lifetime), clock_(std::move(clock)) {}

void ResponseStore::put(StoredResponse response) {
  const size_t bytes = kEntryBytes + response.response.size() + response.input.size();
  const std::lock_guard lock(mutex_);
  drop_expired();
  if (const auto it = by_id_.find(response.id); it != by_id_.end()) erase(it->second);
  if (bytes > max_bytes_) return;
  while (bytes_ + bytes > max_bytes_) erase(std::prev(entries_.end()));

  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  entries_.push_front({shared, clock_() + lifetime_, bytes, next_serial_++});
  by_id_[shared->id] = entries_.begin();
  by_age_[entries_.front().serial] = entries_.begin();
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->response;
}

bool ResponseStore::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return false;
  erase(it->second);
  return true;
}

ResponseStoreStats ResponseStore::stats() {
  const std::lock_guard lock(mutex_);
  drop_expired();
  return {entries_.size(), bytes_};
}

void ResponseStore::erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->response->id);
  by_age_.erase(entry->serial);
  entries_.erase(entry);
}

void ResponseStore::drop_expired() {
  const auto now = clock_();
  while (!by_age_.empty() && by_age_.begin()->second->expires <= now) erase(by_age_.begin()->second);
}

}  // namespace carat::server

// Responses kept for a while, so that clients can fetch them and go on from them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace carat::server {

struct StoredResponse {
  std::string id;
  std::string response;  // the response object, JSON text
  std::string input;     // JSON text: array of the input items that the model read, those of earlier turns first
};

struct ResponseStoreStats {
  size_t entries = 0;
  size_t bytes = 0;
};

/// Keeps responses in memory for a time, at most so many bytes; the least recently used go first. Thread-safe.
class ResponseStore {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  explicit ResponseStore(size_t max_bytes = size_t{32} << 20, std::chrono::seconds lifetime = std::chrono::hours(1),
                         Clock clock = std::chrono::steady_clock::now);

  /// Keeps a response under its id, instead of an earlier one of that id. One larger than the whole store is not kept.
  void put(StoredResponse response);
  /// Null when there is none of that id, or no longer.
  std::shared_ptr<const StoredResponse> find(const std::string& id);
  /// Whether there was one.
  bool remove(const std::string& id);

  ResponseStoreStats stats();
  size_t max_bytes() const { return max_bytes_; }
  std::chrono::seconds lifetime() const { return lifetime_; }

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    std::chrono::steady_clock::time_point expires;
    size_t bytes = 0;
    uint64_t serial = 0;
  };
  using Entries = std::list<Entry>;

  void erase(Entries::iterator entry);
  void drop_expired();

  const size_t max_bytes_;
  const std::chrono::seconds lifetime_;
  const Clock clock_;
  std::mutex mutex_;
  Entries entries_;  // most recently used first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  std::map<uint64_t, Entries::iterator> by_age_;  // by serial: the oldest first
  size_t bytes_ = 0;
  uint64_t next_serial_ = 0;
};

}  // namespace carat::server

#include "server/response_store.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace carat::server {
namespace {

using std::chrono::seconds;

/// A store whose time the test sets.
struct Timed {
  explicit Timed(size_t max_bytes)
      : store(max_bytes, seconds(100), [this] { return std::chrono::steady_clock::time_point(seconds(now)); }) {}
  int64_t now = 0;
  ResponseStore store;
};

StoredResponse response(const std::string& id, size_t bytes = 10) {
  return {id, std::string(bytes, 'r'), "[]"};
}

TEST(ResponseStore, GivesWhatWasPut) {
  ResponseStore store;
  store.put({"a", "{}", "[1]"});
  ASSERT_NE(store.find("a"), nullptr);
  EXPECT_EQ(store.find("a")->response, "{}");
  EXPECT_EQ(store.find("a")->input, "[1]");
  EXPECT_EQ(store.find("b"), nullptr);
  store.put({"a", "{2}", "[]"});
  EXPECT_EQ(store.find("a")->response, "{2}");
  EXPECT_EQ(store.stats().entries, 1u);
  const auto held = store.find("a");
  EXPECT_TRUE(store.remove("a"));
  EXPECT_FALSE(store.remove("a"));
  EXPECT_EQ(store.find("a"), nullptr);
  EXPECT_EQ(held->response, "{2}");  // whoever holds it keeps it
  EXPECT_EQ(store.stats().bytes, 0u);
}

TEST(ResponseStore, ForgetsAfterItsTimeHoweverOftenUsed) {
  Timed timed(1 << 20);
  timed.store.put(response("a"));
  timed.now = 60;
  timed.store.put(response("b"));
  timed.now = 99;
  EXPECT_NE(timed.store.find("a"), nullptr);
  timed.now = 100;
  EXPECT_EQ(timed.store.find("a"), nullptr);
  EXPECT_FALSE(timed.store.remove("a"));
  EXPECT_NE(timed.store.find("b"), nullptr);
  timed.now = 160;
  EXPECT_EQ(timed.store.stats().entries, 0u);
  EXPECT_EQ(timed.store.stats().bytes, 0u);
}

TEST(ResponseStore, TheLeastRecentlyUsedGoFirst) {
  Timed timed(3 * 2000);
  for (const char* id : {"a", "b", "c"}) timed.store.put(response(id, 1200));
  EXPECT_EQ(timed.store.stats().entries, 3u);
  timed.store.find("a");
  timed.store.put(response("d", 1200));
  EXPECT_EQ(timed.store.find("b"), nullptr);
  for (const char* id : {"a", "c", "d"}) EXPECT_NE(timed.store.find(id), nullptr) << id;
  timed.store.put(response("huge", 10'000));
  EXPECT_EQ(timed.store.find("huge"), nullptr);
  EXPECT_EQ(timed.store.stats().entries, 3u);
}

TEST(ResponseStore, NeverHoldsMoreThanItMay) {
  std::mt19937 random(1);
  Timed timed(20'000);
  std::map<std::string, std::string> put;
  for (int i = 0; i < 5000; ++i) {
    const std::string id = std::to_string(random() % 40);
    switch (random() % 4) {
      case 0:
        timed.store.remove(id);
        put.erase(id);
        EXPECT_EQ(timed.store.find(id), nullptr);
        break;
      case 1:
        timed.now += random() % 5;
        break;
      default:
        put[id] = std::string(random() % 5000, 'x');
        timed.store.put({id, put[id], ""});
        EXPECT_NE(timed.store.find(id), nullptr);
        break;
    }
    const ResponseStoreStats stats = timed.store.stats();
    ASSERT_LE(stats.bytes, timed.store.max_bytes());
    size_t found = 0;
    size_t bytes = 0;
    for (const auto& [key, text] : put) {
      if (const auto kept = timed.store.find(key)) {
        ASSERT_EQ(kept->response, text);
        ++found;
        bytes += text.size();
      }
    }
    ASSERT_EQ(found, stats.entries);
    ASSERT_GE(stats.bytes, bytes);
  }
}

TEST(ResponseStore, ManyThreadsMayUseIt) {
  ResponseStore store(50'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string id = std::to_string((i * (t + 1)) % 50);
        store.put({id, id, "[]"});
        const auto found = store.find(id);
        EXPECT_EQ(found ? found->response : id, id);
        if (i % 3 == 0) store.remove(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.stats().bytes, store.max_bytes());
}

}  // namespace
}  // namespace carat::server

#include "base/fair_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace carat {
namespace {

TEST(FairMutex, WhoWaitsComesBeforeWhoHasJustHadIt) {
  FairMutex mutex;
  std::vector<int> order;
  std::atomic<int> waiting{0};
  std::atomic<int> taking{2};
  const auto take = [&](int id) {
    for (int i = 0; i < 200; ++i) {
      ++waiting;
      mutex.lock();
      --waiting;
      order.push_back(id);
      while (waiting == 0 && taking == 2) std::this_thread::yield();  // until the other one asks
      if (i == 199) --taking;
      mutex.unlock();
    }
  };
  std::thread other(take, 1);
  take(0);
  other.join();
  ASSERT_EQ(order.size(), 400U);
  // Whenever both ask they alternate; at the ends one may be alone.
  size_t changes = 0;
  for (size_t i = 1; i < order.size(); ++i) changes += order[i] != order[i - 1] ? 1 : 0;
  EXPECT_GE(changes, 380U);
}

}  // namespace
}  // namespace carat

#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace carat {
namespace {

TEST(ThreadPool, RunsEveryIterationOnceForEveryCountAndWidth) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(static_cast<size_t>(count), 0);  // plain ints: a second visitor is a race for the sanitizer
      std::vector<int> owner(static_cast<size_t>(count), -1);
      pool.run(count, [&](int64_t i, int thread) {
        ++runs[static_cast<size_t>(i)];
        owner[static_cast<size_t>(i)] = thread;
      });
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(runs[static_cast<size_t>(i)], 1);
        ASSERT_GE(owner[static_cast<size_t>(i)], 0);
        ASSERT_LT(owner[static_cast<size_t>(i)], threads);
      }
    }
  }
}

TEST(ThreadPool, NegativeCountRunsNothing) {
  ThreadPool pool(2);
  pool.run(-3, [](int64_t, int) { FAIL(); });
}

TEST(ThreadPool, EachLoopSeesWhatTheOneBeforeWrote) {
  // A chain of dependent loops, as the layers of a model are: any iteration that starts early or ends late breaks it.
  ThreadPool pool(4);
  constexpr int64_t kWidth = 37;
  std::vector<int64_t> values(kWidth, 1), next(kWidth, 0);
  std::vector<int64_t> expected = values;
  for (int loop = 0; loop < 300; ++loop) {
    pool.run(kWidth, [&](int64_t i, int) {
      const auto a = static_cast<size_t>(i), b = static_cast<size_t>((i + 1 + loop) % kWidth);
      next[a] = (values[a] + 3 * values[b]) % 1000003;
    });
    values.swap(next);
    std::vector<int64_t> step(kWidth);
    for (size_t i = 0; i < kWidth; ++i) {
      step[i] = (expected[i] + 3 * expected[(i + 1 + static_cast<size_t>(loop)) % kWidth]) % 1000003;
    }
    expected.swap(step);
    ASSERT_EQ(values, expected) << loop;
  }
}

TEST(ThreadPool, PoolsInsideBodiesOfOtherPools) {
  // A pool must not be entered from its own body; another pool may be.
  ThreadPool outer(3);
  std::vector<int64_t> sums(8, 0);
  outer.run(8, [&](int64_t i, int) {
    ThreadPool inner(2);
    std::vector<int64_t> parts(static_cast<size_t>(10 * (i + 1)), 0);
    for (int loop = 0; loop < 5; ++loop) {
      inner.run(static_cast<int64_t>(parts.size()), [&](int64_t j, int) { parts[static_cast<size_t>(j)] += j; });
    }
    sums[static_cast<size_t>(i)] = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  });
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t n = 10 * (i + 1);
    EXPECT_EQ(sums[static_cast<size_t>(i)], 5 * n * (n - 1) / 2);
  }
}

TEST(ThreadPool, WakesAfterItsWorkersHaveGoneToSleep) {
  ThreadPool pool(4);
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::vector<int> runs(100, 0);
    pool.run(100, [&](int64_t i, int) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), 0), 100);
  }
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(1 + i % 5);
}

TEST(ThreadPool, MovesEveryThreadIndexOnlyToOneThread) {
  ThreadPool pool(4);
  std::vector<std::thread::id> ids(4);
  for (int loop = 0; loop < 50; ++loop) {
    pool.run(64, [&](int64_t, int thread) {
      std::thread::id& id = ids[static_cast<size_t>(thread)];  // owned by that thread alone
      if (id == std::thread::id()) id = std::this_thread::get_id();
      EXPECT_EQ(id, std::this_thread::get_id());
    });
  }
  EXPECT_EQ(ids[0], std::this_thread::get_id());
}

TEST(ThreadPool, ZeroMeansTheCoresOfThisMachine) {
  ThreadPool pool;
  EXPECT_EQ(pool.threads(), physical_cores());
  EXPECT_GE(physical_cores(), 1);
}

}  // namespace
}  // namespace carat

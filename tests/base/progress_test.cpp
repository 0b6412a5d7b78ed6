#include "base/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace carat {
namespace {

/// Collects what is written to a pipe.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK) != 0) ADD_FAILURE();
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int fd() const { return ends_[1]; }
  std::string text() const {
    std::string result;
    std::array<char, 4096> chunk{};
    for (ssize_t n; (n = ::read(ends_[0], chunk.data(), chunk.size())) > 0;) {
      result.append(chunk.data(), static_cast<size_t>(n));
    }
    return result;
  }

 private:
  std::array<int, 2> ends_{};
};

TEST(Progress, IsSilentWithoutATerminal) {
  const Pipe pipe;
  {
    Progress progress("work", 100, ProgressUnit::kItems, {.fd = pipe.fd(), .terminal = false});
    for (int i = 0; i < 100; ++i) progress.add(1);
    progress.wipe();
  }
  EXPECT_EQ(pipe.text(), "");
}

TEST(Progress, LastLineIsWrittenOnceEvenWithoutATerminal) {
  const Pipe pipe;
  {
    Progress progress("reading", 0, ProgressUnit::kBytes, {.fd = pipe.fd(), .terminal = false});
    progress.add(12'345'678);
    progress.finish(true);
    progress.finish(true);
  }
  EXPECT_EQ(pipe.text(), "reading: 12.3 MB in 0 s\n");
}

TEST(Progress, DrawsABarAndWipesIt) {
  const Pipe pipe;
  {
    Progress progress("work", 200, ProgressUnit::kItems, {.fd = pipe.fd(), .terminal = true, .columns = 80});
    progress.set(50);
    const std::string drawn = pipe.text();
    EXPECT_EQ(drawn.front(), '\r');
    EXPECT_NE(drawn.find(" 25 %  50 / 200"), std::string::npos) << drawn;
    EXPECT_EQ(std::count(drawn.begin(), drawn.end(), '='), 10) << drawn;
  }
  EXPECT_EQ(pipe.text(), "\r\x1b[K");
}

TEST(Progress, NeverPassesTheEdgeOfTheTerminal) {
  for (const int columns : {1, 20, 40, 79, 200}) {
    const Pipe pipe;
    Progress progress(std::string(60, 'x'), 1000, ProgressUnit::kBytes,
                      {.fd = pipe.fd(), .terminal = true, .columns = columns});
    progress.add(10);
    const std::string drawn = pipe.text();
    ASSERT_GE(drawn.size(), 4u);
    EXPECT_LE(drawn.size() - 4, static_cast<size_t>(std::max(20, columns - 1)));  // "\r" and the three of "\x1b[K"
  }
}

TEST(Progress, RedrawsAtMostTenTimesASecond) {
  const Pipe pipe;
  Progress progress("work", 1'000'000, ProgressUnit::kItems, {.fd = pipe.fd(), .terminal = true});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100'000; ++i) progress.add(1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string drawn = pipe.text();
  EXPECT_LE(std::count(drawn.begin(), drawn.end(), '\r'), 1 + static_cast<std::ptrdiff_t>(seconds * 10));
}

TEST(Progress, CountsEveryUpdateOfManyThreads) {
  const Pipe pipe;
  Progress progress("work", 40'000, ProgressUnit::kItems, {.fd = pipe.fd(), .terminal = true});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) progress.add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(progress.done(), 40'000u);
  progress.finish(true);
  EXPECT_NE(pipe.text().find("work: 40000 in"), std::string::npos);
}

TEST(Progress, SurvivesAClosedOutputAndAnOverfullCount) {
  Progress progress("work", 10, ProgressUnit::kBytes, {.fd = -1, .terminal = true});
  progress.add(1000);
  progress.set(3);
  progress.finish(true);
}

TEST(Progress, FormatsBytesWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(12'345), "12.3 kB");
  EXPECT_EQ(format_bytes(999'499), "999 kB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(253'113'024), "253 MB");
  EXPECT_EQ(format_bytes(9'996'000), "10.0 MB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "18.4 EB");
}

TEST(Progress, FormatsDurations) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3599), "59:59");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(1e18), "> 99 h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

}  // namespace
}  // namespace carat

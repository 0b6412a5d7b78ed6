#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace carat {
namespace {

constexpr int64_t kDrawInterval = 100'000'000;  // nanoseconds
constexpr double kRateMemory = 4.0;             // seconds over which the shown rate is smoothed

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

int terminal_columns(const ProgressOutput& output) {
  winsize size{};
  if (::ioctl(output.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return output.columns;
}

}  // namespace

ProgressOutput ProgressOutput::standard() {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  return {.fd = 2, .terminal = ::isatty(2) == 1 && !dumb, .columns = 80};
}

Progress::Progress(std::string label, uint64_t total, ProgressUnit unit, ProgressOutput output)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      output_(output),
      start_(Clock::now()),
      sampled_at_(start_) {}

Progress::~Progress() {
  finish(false);
}

void Progress::add(uint64_t amount) noexcept {
  done_.fetch_add(amount, std::memory_order_relaxed);
  redraw();
}

void Progress::set(uint64_t done) noexcept {
  done_.store(done, std::memory_order_relaxed);
  redraw();
}

void Progress::resume_at(uint64_t done) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    done_.store(done, std::memory_order_relaxed);
    base_.store(done, std::memory_order_relaxed);
    sampled_done_ = done;
  } catch (...) {  // a mutex that cannot be locked: the rate is then off, no more
  }
  redraw();
}

void Progress::redraw() noexcept {
  if (!output_.terminal) return;
  const auto now = Clock::now();
  const int64_t elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(now - start_).count();
  int64_t due = next_draw_.load(std::memory_order_relaxed);
  if (elapsed < due || !next_draw_.compare_exchange_strong(due, elapsed + kDrawInterval)) return;
  try {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && !finished_) draw(now);
  } catch (...) {  // no memory for a line of text: the work goes on without it
  }
}

void Progress::draw(Clock::time_point now) {
  const uint64_t done = done_.load(std::memory_order_relaxed);
  const double step = seconds_between(sampled_at_, now);
  if (step > 0.05) {
    const double gained = done >= sampled_done_ ? static_cast<double>(done - sampled_done_) : 0.0;
    const double weight = rate_ == 0 ? 1.0 : 1.0 - std::exp(-step / kRateMemory);
    rate_ += weight * (gained / step - rate_);
    sampled_at_ = now;
    sampled_done_ = done;
  }
  std::string right;
  if (total_ > 0) {
    right = fmt::format(" {:3.0f} %  {} / {}",
                        100.0 * static_cast<double>(std::min(done, total_)) / static_cast<double>(total_), amount(done),
                        amount(total_));
  } else {
    right = fmt::format("  {}", amount(done));
  }
  if (rate_ > 0) {
    right += fmt::format("  {}/s", amount(static_cast<uint64_t>(rate_)));
    if (total_ > done) right += fmt::format("  {} left", format_duration(static_cast<double>(total_ - done) / rate_));
  }
  const auto columns = static_cast<size_t>(std::max(20, terminal_columns(output_) - 1));
  std::string line = label_ + " ";
  if (total_ > 0 && line.size() + right.size() + 12 <= columns) {
    const size_t width = std::min<size_t>(40, columns - line.size() - right.size() - 2);
    const auto filled = static_cast<size_t>(static_cast<double>(width) * static_cast<double>(std::min(done, total_)) /
                                            static_cast<double>(total_));
    line += fmt::format("[{}{}]", std::string(filled, '='), std::string(width - filled, ' '));
  }
  line += right;
  if (line.size() > columns) line.resize(columns);
  write(fmt::format("\r{}\x1b[K", line));
  drawn_ = true;
}

void Progress::wipe() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (drawn_) write("\r\x1b[K");
    drawn_ = false;
  } catch (...) {  // as in redraw()
  }
}

void Progress::finish(bool last_line) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    std::string text = drawn_ ? "\r\x1b[K" : "";
    if (last_line) {
      const uint64_t done = done_.load(std::memory_order_relaxed);
      const uint64_t base = base_.load(std::memory_order_relaxed);
      const double seconds = seconds_between(start_, Clock::now());
      text += fmt::format("{}: {} in {}", label_, amount(done), format_duration(seconds));
      if (seconds > 0.5 && done > base) {
        text += fmt::format(" ({}/s)", amount(static_cast<uint64_t>(static_cast<double>(done - base) / seconds)));
      }
      text += "\n";
    }
    if (!text.empty()) write(text);
  } catch (...) {  // as in redraw()
  }
}

std::string Progress::amount(uint64_t value) const {
  return unit_ == ProgressUnit::kBytes ? format_bytes(value) : fmt::format("{}", value);
}

void Progress::write(const std::string& text) const noexcept {
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = ::write(output_.fd, text.data() + sent, text.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 6> kUnits{"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000.0;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds > 359'999) return "> 99 h";
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace carat

// A progress line on stderr for work that a person waits for: downloads, hashing, conversion, training.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace carat {

/// What a Progress counts: bytes are shown as "12.3 MB" (powers of ten), items as plain numbers.
enum class ProgressUnit : uint8_t { kBytes, kItems };

/// Where a Progress writes. `terminal` false means silence until finish(true).
struct ProgressOutput {
  int fd = 2;
  bool terminal = false;
  int columns = 80;  // used when the terminal does not tell its width

  /// stderr; a terminal unless TERM says "dumb".
  static ProgressOutput standard();
};

/// A bar with rate and remaining time that redraws itself at most ten times a second, or, without a terminal, nothing.
/// Updates may come from any number of threads at once; they cost one atomic addition, and a redraw on whichever thread
/// happens to be due. After construction nothing throws: a line that cannot be written is not written.
class Progress {
 public:
  /// `total` 0 means that it is not known: then there is a counter instead of a bar.
  Progress(std::string label, uint64_t total, ProgressUnit unit = ProgressUnit::kBytes,
           ProgressOutput output = ProgressOutput::standard());
  /// Wipes the line unless finish() has been called.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(uint64_t amount) noexcept;
  /// Sets the absolute amount done; may go backwards.
  void set(uint64_t done) noexcept;
  /// Sets the amount done without counting it towards the rate: what an earlier run had already finished.
  void resume_at(uint64_t done) noexcept;
  uint64_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

  /// Clears the line so that something else can be printed; the next update draws it again.
  void wipe() noexcept;

  /// Ends the line: wiped, or replaced by one last line "label: 253 MB in 12 s (21.1 MB/s)", which is written even
  /// where there is no terminal. Later calls do nothing.
  void finish(bool last_line = false) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void redraw() noexcept;
  void draw(Clock::time_point now);
  std::string amount(uint64_t value) const;
  void write(const std::string& text) const noexcept;

  const std::string label_;
  const uint64_t total_;
  const ProgressUnit unit_;
  const ProgressOutput output_;
  const Clock::time_point start_;
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> base_{0};      // done before this run
  std::atomic<int64_t> next_draw_{0};  // nanoseconds after start_
  std::mutex mutex_;                   // guards the line and what follows
  Clock::time_point sampled_at_;
  uint64_t sampled_done_ = 0;
  double rate_ = 0;  // units per second, smoothed
  bool drawn_ = false;
  bool finished_ = false;
};

/// "512 B", "12.3 MB", "4.02 GB": three significant digits, powers of ten.
std::string format_bytes(uint64_t bytes);
/// "8 s", "2:05", "1:02:05".
std::string format_duration(double seconds);

}  // namespace carat

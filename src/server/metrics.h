// What a server counts, in Prometheus' form.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/scheduler.h"

namespace carat::server {

/// Thread-safe. Names and meanings: docs/serving.md.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void request(std::string_view route, int status, double seconds);
  void step(int64_t rows, int64_t generations, double seconds);
  void first_token(double seconds);  // since the request came in
  void next_token(double seconds);   // since the token before
  void generation(std::string_view end, int64_t prompt_tokens, int64_t cached_tokens, int64_t generated_tokens,
                  double queued_seconds);

  /// The state of a model's engine, and of the transport, when the metrics are read.
  void set(const std::string& model, const SchedulerStats& stats);
  void set_connections(size_t connections, size_t streams);

  /// The text exposition format.
  std::string text() const;

  /// Sums for /stats.
  struct Totals {
    uint64_t requests = 0;
    uint64_t generations = 0;
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t generated_tokens = 0;
    uint64_t steps = 0;
  };
  Totals totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat::server

#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "base/memory.h"

namespace carat::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Buckets kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

template <typename Builder>
auto& family(prometheus::Registry& registry, Builder builder, const char* name, const char* help) {
  return builder.Name(name).Help(help).Register(registry);
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      family(registry, BuildCounter(), "carat_http_requests_total", "Requests answered, by route and status.");
  prometheus::Family<prometheus::Histogram>& request_seconds =
      family(registry, BuildHistogram(), "carat_http_request_seconds",
             "From a request's arrival to the end of its answer, by route.");
  prometheus::Histogram& step_rows =
      family(registry, BuildHistogram(), "carat_step_rows", "Token rows of a step.").Add({}, kRows);
  prometheus::Histogram& step_generations =
      family(registry, BuildHistogram(), "carat_batch_size", "Generations in a step.").Add({}, kRows);
  prometheus::Histogram& step_seconds =
      family(registry, BuildHistogram(), "carat_step_seconds", "Duration of a step.").Add({}, kSeconds);
  prometheus::Histogram& first_tokens =
      family(registry, BuildHistogram(), "carat_time_to_first_token_seconds", "From a request to its first token.")
          .Add({}, kSeconds);
  prometheus::Histogram& next_tokens =
      family(registry, BuildHistogram(), "carat_inter_token_seconds", "From one token of a reply to the next.")
          .Add({}, kSeconds);
  prometheus::Histogram& queue_seconds =
      family(registry, BuildHistogram(), "carat_queue_seconds", "Time that generations waited for their start.")
          .Add({}, kSeconds);
  prometheus::Family<prometheus::Counter>& ends =
      family(registry, BuildCounter(), "carat_generations_total", "Generations that ended, by the reason of the end.");
  prometheus::Family<prometheus::Counter>& tokens =
      family(registry, BuildCounter(), "carat_tokens_total", "Tokens: of prompts, of them cached, and generated.");
  prometheus::Counter& prompt_tokens = tokens.Add({{"kind", "prompt"}});
  prometheus::Counter& cached_tokens = tokens.Add({{"kind", "prompt_cached"}});
  prometheus::Counter& generated_tokens = tokens.Add({{"kind", "generated"}});
  prometheus::Family<prometheus::Gauge>& generations =
      family(registry, BuildGauge(), "carat_generations", "Generations running and waiting.");
  prometheus::Family<prometheus::Gauge>& kv_bytes =
      family(registry, BuildGauge(), "carat_kv_cache_bytes",
             "Bytes of keys and values: in use, kept for later prompts, limit.");
  prometheus::Family<prometheus::Counter>& prefixes =
      family(registry, BuildCounter(), "carat_prefix_cache_total",
             "Prompts that began like an earlier one, those that did not, tokens reused.");
  prometheus::Family<prometheus::Counter>& preempted =
      family(registry, BuildCounter(), "carat_preemptions_total",
             "Times that a generation gave up its memory and was computed anew.");
  prometheus::Family<prometheus::Gauge>& connections =
      family(registry, BuildGauge(), "carat_http_connections", "Open connections, and those that stream.");
  prometheus::Gauge& resident =
      family(registry, BuildGauge(), "carat_peak_resident_bytes", "Most memory resident so far.").Add({});
  std::mutex mutex;
  std::map<std::string, SchedulerStats> last;  // by model
  std::atomic<uint64_t> request_count{0};
  std::atomic<uint64_t> generation_count{0};
  std::atomic<uint64_t> step_count{0};
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::request(std::string_view route, int status, double seconds) {
  ++impl_->request_count;
  impl_->requests.Add({{"route", std::string(route)}, {"status", std::to_string(status)}}).Increment();
  impl_->request_seconds.Add({{"route", std::string(route)}}, kSeconds).Observe(seconds);
}

void Metrics::step(int64_t rows, int64_t generations, double seconds) {
  ++impl_->step_count;
  impl_->step_rows.Observe(static_cast<double>(rows));
  impl_->step_generations.Observe(static_cast<double>(generations));
  impl_->step_seconds.Observe(seconds);
}

void Metrics::first_token(double seconds) {
  impl_->first_tokens.Observe(seconds);
}

void Metrics::next_token(double seconds) {
  impl_->next_tokens.Observe(seconds);
}

void Metrics::generation(std::string_view end, int64_t prompt_tokens, int64_t cached_tokens, int64_t generated_tokens,
                         double queued_seconds) {
  ++impl_->generation_count;
  impl_->ends.Add({{"end", std::string(end)}}).Increment();
  impl_->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  impl_->cached_tokens.Increment(static_cast<double>(cached_tokens));
  impl_->generated_tokens.Increment(static_cast<double>(generated_tokens));
  impl_->queue_seconds.Observe(queued_seconds);
}

void Metrics::set(const std::string& model, const SchedulerStats& stats) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  impl_->generations.Add({{"model", model}, {"state", "running"}}).Set(number(stats.running));
  impl_->generations.Add({{"model", model}, {"state", "waiting"}}).Set(number(stats.waiting));
  impl_->kv_bytes.Add({{"model", model}, {"what", "in_use"}}).Set(number(stats.kv_bytes_in_use));
  impl_->kv_bytes.Add({{"model", model}, {"what", "limit"}}).Set(number(stats.kv_bytes_limit));
  impl_->kv_bytes.Add({{"model", model}, {"what", "prefixes"}}).Set(number(stats.prefixes.bytes));
  // Counters are told their growth.
  const std::lock_guard lock(impl_->mutex);
  SchedulerStats& before = impl_->last[model];
  const auto grow = [&](prometheus::Counter& counter, uint64_t now, uint64_t then) {
    counter.Increment(number(now - std::min(now, then)));
  };
  grow(impl_->prefixes.Add({{"model", model}, {"what", "hits"}}), stats.prefixes.hits, before.prefixes.hits);
  grow(impl_->prefixes.Add({{"model", model}, {"what", "misses"}}), stats.prefixes.misses, before.prefixes.misses);
  grow(impl_->prefixes.Add({{"model", model}, {"what", "tokens"}}), stats.prefixes.tokens_reused,
       before.prefixes.tokens_reused);
  grow(impl_->preempted.Add({{"model", model}}), stats.preempted, before.preempted);
  before = stats;
  impl_->resident.Set(number(peak_resident_memory()));
}

void Metrics::set_connections(size_t connections, size_t streams) {
  impl_->connections.Add({{"state", "open"}}).Set(static_cast<double>(connections));
  impl_->connections.Add({{"state", "streaming"}}).Set(static_cast<double>(streams));
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

Metrics::Totals Metrics::totals() const {
  const auto count = [](const prometheus::Counter& counter) { return static_cast<uint64_t>(counter.Value()); };
  return {.requests = impl_->request_count,
          .generations = impl_->generation_count,
          .prompt_tokens = count(impl_->prompt_tokens),
          .cached_tokens = count(impl_->cached_tokens),
          .generated_tokens = count(impl_->generated_tokens),
          .steps = impl_->step_count};
}

}  // namespace carat::server

#include "server/server.h"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/process.h"
#include "server/router.h"

namespace carat::server {
namespace {

/// SIGTERM and SIGINT wait to be fetched instead of ending the process. Threads that are made while it lives inherit
/// that.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    signal(SIGPIPE, SIG_IGN);
  }
  ~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  void wait() {
    int number = 0;
    sigwait(&signals_, &number);
  }
  /// Whether one came within that time.
  bool wait(std::chrono::milliseconds time) {
#if defined(__APPLE__)  // which has no sigtimedwait
    std::this_thread::sleep_for(time);
    sigset_t pending{};
    sigpending(&pending);
    if (sigismember(&pending, SIGTERM) != 1 && sigismember(&pending, SIGINT) != 1) return false;
    wait();
    return true;
#else
    const timespec limit{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
    return sigtimedwait(&signals_, nullptr, &limit) > 0;
#endif
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

/// Lines of a log: text for people, or one JSON object each.
class Log {
 public:
  Log(LogFormat format, const std::string& level) : format_(format), logger_("carat", sink()) {
    logger_.set_level(spdlog::level::from_str(level));
    logger_.set_pattern(format == LogFormat::kJson ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    logger_.flush_on(spdlog::level::info);
  }

  void info(const std::string& message) { write(spdlog::level::info, {{"message", message}}, message); }

  void request(const HttpRequest& request, int status, double seconds) {
    const auto level = status >= 500 ? spdlog::level::err : spdlog::level::info;
    if (!logger_.should_log(level)) return;
    write(level,
          {{"id", request.id},
           {"peer", request.peer},
           {"method", request.method},
           {"path", request.path},
           {"status", status},
           {"seconds", seconds}},
          format_ == LogFormat::kJson ? ""
                                      : fmt::format("{} {} {} {} {:.1f} ms id={}", request.peer, request.method,
                                                    printable(request.path), status, seconds * 1e3, request.id));
  }

 private:
  using Json = nlohmann::ordered_json;

  static spdlog::sink_ptr sink() { return std::make_shared<spdlog::sinks::stderr_sink_mt>(); }

  /// Whatever a client put into a path: no control characters in the log.
  static std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    return text;
  }

  void write(spdlog::level::level_enum level, const Json& fields, const std::string& text) {
    if (format_ == LogFormat::kText) return logger_.log(level, "{}", text);
    Json line{{"time", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
              {"level", std::string(spdlog::level::to_string_view(level).data())}};
    line.update(fields);
    logger_.log(level, "{}", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  LogFormat format_;
  spdlog::logger logger_;
};

/// A connection is a file, and the usual limit of 1,024 files is below what the server may be told to take.
void allow_files(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

void run_server(const ServerOptions& options) {
#if defined(__GLIBC__)
  // Threads that come and go would each keep an arena of the allocator, and what requests free in them.
  mallopt(M_ARENA_MAX, 2);
#endif
  constexpr size_t kOtherFiles = 256;
  allow_files(options.http.max_connections + kOtherFiles);
  SignalQueue signals;
  Log log(options.log_format, options.log_level);
  Metrics metrics;
  ModelService service(options.models, options.serving, metrics);
  for (const NamedModel& adapter : options.adapters) {
    const AdapterInfo info = [&] {
      try {
        return service.first().load_adapter(adapter.id, adapter.path.string());
      } catch (const ApiFailure& failure) {
        fail("{}", failure.what());
      }
    }();
    if (&adapter == &options.adapters.front()) service.first().set_default_adapter(adapter.id);
    log.info(fmt::format("adapter {}: rank {}, {} projections", info.id, info.rank, info.modules));
  }
  const bool loopback = is_loopback(options.http.host);
  Router router(service, metrics,
                {.api_keys = options.api_keys,
                 .cors_origins = options.cors_origins,
                 .loopback = loopback,
                 .host = options.http.host,
                 .change_adapters = options.change_adapters || loopback || !options.api_keys.empty(),
                 .version = options.version,
                 .log = [&log](const HttpRequest& request, int status, double seconds) {
                   log.request(request, status, seconds);
                 }});
  // Declared after what its handlers use, so that it goes first; the engines' last replies find it gone.
  HttpServer http(
      options.http, [&router](std::shared_ptr<HttpExchange> exchange) { router.handle(std::move(exchange)); },
      [&](const HttpRequest& request, int status, const std::string& message) {
        // Of a handler that failed the router tells.
        if (status != 500) {
          metrics.request("refused", status, 0.0);
          log.request(request, status, 0.0);
        }
        return router.error(request, {.status = status, .message = message, .code = {}, .param = {}});
      });
  router.set_transport([&http] { return http.stats(); });

  for (const auto& model : service.served()) {
    const SchedulerStats s = model->stats();
    log.info(fmt::format("model {}: {} tokens of context, {:.2f} GB for keys and values", model->id(), model->longest(),
                         static_cast<double>(s.kv_bytes_limit) / 1e9));
  }
  if (!loopback && options.api_keys.empty()) {
    log.info("anyone who reaches this address can use the server: --api-key asks for a key");
  }
  const bool v6 = options.http.host.find(':') != std::string::npos;
  log.info(fmt::format("carat is listening on {}://{}{}{}:{}", options.http.tls_key.empty() ? "http" : "https",
                       v6 ? "[" : "", options.http.host, v6 ? "]" : "", http.port()));

  signals.wait();
  log.info("stopping: what is in progress may end");
  service.drain();
  // As long as replies are made the server still answers, so that those who ask hear 503 and balancers see /ready fail.
  const auto end = std::chrono::steady_clock::now() + options.drain_timeout;
  bool impatient = false;
  const auto patient_until = [&](auto done) {
    while (!done() && !impatient && std::chrono::steady_clock::now() < end) {
      impatient = signals.wait(std::chrono::milliseconds(20));
    }
    return done();
  };
  if (!patient_until([&] { return service.idle(); })) service.abandon();
  http.drain();
  // The last words of streams, be they an error, still have to leave.
  constexpr std::chrono::seconds kLastWords{2};
  if (!patient_until([&] { return http.wait(std::chrono::milliseconds(0)); })) http.wait(kLastWords);
  log.info("stopped");
}

}  // namespace carat::server

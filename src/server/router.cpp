#include "server/router.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/memory.h"
#include "server/anthropic.h"
#include "server/anthropic_writer.h"
#include "server/chat_page.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_embeddings.h"
#include "server/openai_errors.h"
#include "server/openai_misc.h"
#include "server/responses.h"

namespace carat::server {
namespace {

using Clock = std::chrono::steady_clock;

/// An exchange that adds headers to its answer and tells when it has been answered.
class WatchedExchange final : public HttpExchange {
 public:
  using Done = std::function<void(const HttpRequest& request, int status, double seconds)>;

  WatchedExchange(std::shared_ptr<HttpExchange> inner, Headers headers, Done done)
      : inner_(std::move(inner)), headers_(std::move(headers)), done_(std::move(done)) {}
  ~WatchedExchange() override { finish(status_ == 0 ? 500 : status_.load()); }
  WatchedExchange(const WatchedExchange&) = delete;
  WatchedExchange& operator=(const WatchedExchange&) = delete;

  const HttpRequest& request() const override { return inner_->request(); }
  void respond(HttpResponse response) override {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    const int status = response.status;
    status_ = status;
    finish(status);  // before its client can ask what has been counted
    inner_->respond(std::move(response));
  }
  void begin_events(Headers headers) override {
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    status_ = 200;
    inner_->begin_events(std::move(headers));
  }
  void write(std::string text) override { inner_->write(std::move(text)); }
  void end() override {
    finish(status_);
    inner_->end();
  }
  bool gone() const override { return inner_->gone(); }
  void on_gone(std::function<void()> action) override { inner_->on_gone(std::move(action)); }

 private:
  void finish(int status) {
    if (finished_.exchange(true)) return;
    constexpr int kClientClosedRequest = 499;  // as nginx names it
    done_(request(), inner_->gone() ? kClientClosedRequest : status,
          std::chrono::duration<double>(Clock::now() - start_).count());
  }

  std::shared_ptr<HttpExchange> inner_;
  Headers headers_;
  Done done_;
  Clock::time_point start_ = Clock::now();
  std::atomic<int> status_{0};
  std::atomic<bool> finished_{false};
};

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// "localhost" of "localhost:8080", "::1" of "[::1]:8080".
std::string_view host_name(std::string_view host) {
  if (host.starts_with("[")) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool names_this_machine(std::string_view host) {
  return host == "localhost" || host.ends_with(".localhost") || host == "127.0.0.1" || host == "::1";
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Router::Router(ModelService& service, Metrics& metrics, RouterOptions options)
    : service_(service), metrics_(metrics), options_(std::move(options)), store_(std::make_shared<ResponseStore>()) {
  using Exchange = std::shared_ptr<HttpExchange>;
  const auto with_service = [this](void (*handler)(Service&, Exchange)) {
    return [this, handler](Exchange exchange) { handler(service_, std::move(exchange)); };
  };
  const auto with_store = [this](void (*handler)(Service&, Exchange, std::shared_ptr<ResponseStore>)) {
    return [this, handler](Exchange exchange) { handler(service_, std::move(exchange), store_); };
  };
  const auto changing_adapters = [this, with_service](void (*handler)(Service&, Exchange)) {
    return [this, inner = with_service(handler)](Exchange exchange) {
      if (options_.change_adapters) return inner(std::move(exchange));
      exchange->respond(error(exchange->request(), {.status = 403,
                                                    .message = "this server does not let clients change its adapters",
                                                    .code = "forbidden",
                                                    .param = {}}));
    };
  };
  for (const std::string prefix : {"/v1", ""}) {  // some clients leave the version out
    add("POST", prefix + "/chat/completions", with_service(handle_openai_chat));
    add("POST", prefix + "/completions", with_service(handle_openai_completions));
    add("POST", prefix + "/embeddings", with_service(handle_openai_embeddings));
    add("GET", prefix + "/models", with_service(handle_openai_models));
    add("POST", prefix + "/responses", with_store(handle_responses));
  }
  add("GET", "/v1/models/", with_service(handle_openai_model));
  add("POST", "/v1/responses/input_tokens", with_store(handle_response_input_tokens));
  for (const char* method : {"GET", "DELETE", "POST"}) {
    add(method, "/v1/responses/", with_store(handle_stored_response));
  }
  add("POST", "/v1/messages", with_service(handle_messages));
  add("POST", "/v1/messages/count_tokens", with_service(handle_count_tokens));
  add("POST", "/tokenize", with_service(handle_tokenize));
  add("POST", "/detokenize", with_service(handle_detokenize));
  // What lm_eval asks before it tokenizes by /tokenize.
  add("GET", "/tokenizer_info", [this](const Exchange& exchange) {
    const Tokenizer& tokenizer = service_.first().tokenizer();
    nlohmann::ordered_json info{{"tokenizer_class", "GemmaTokenizer"},
                                {"bos_token", tokenizer.piece(tokenizer.bos_id())},
                                {"eos_token", nullptr}};
    if (!tokenizer.eos_ids().empty()) info["eos_token"] = tokenizer.piece(tokenizer.eos_ids().front());
    exchange->respond({.body = dump(info)});
  });
  add("GET", "/v1/adapters", with_service(handle_adapters));
  add("POST", "/v1/adapters", changing_adapters(handle_load_adapter));
  add("DELETE", "/v1/adapters/", changing_adapters(handle_remove_adapter));

  const auto text = [](int status, std::string type, std::string body, Headers headers = {}) {
    return HttpResponse{
        .status = status, .content_type = std::move(type), .body = std::move(body), .headers = std::move(headers)};
  };
  const auto page = [text](const Exchange& exchange) {
    exchange->respond(text(200, "text/html; charset=utf-8", std::string(kChatPage),
                           {{"Content-Security-Policy", std::string(kChatPagePolicy)},
                            {"X-Content-Type-Options", "nosniff"},
                            {"Referrer-Policy", "no-referrer"},
                            {"Cache-Control", "no-cache"}}));
  };
  add("GET", "/", page, true);
  add("GET", "/index.html", page, true);
  add(
      "GET", "/health",
      [text](const Exchange& exchange) { exchange->respond(text(200, "application/json", R"({"status": "ok"})")); },
      true);
  add(
      "GET", "/ready",
      [this, text](const Exchange& exchange) {
        const bool draining = service_.draining();
        exchange->respond(text(draining ? 503 : 200, "application/json",
                               draining ? R"({"status": "draining"})" : R"({"status": "ok"})"));
      },
      true);
  add("GET", "/stats",
      [this, text](const Exchange& exchange) { exchange->respond(text(200, "application/json", stats_text())); });
  add("GET", "/metrics", [this, text](const Exchange& exchange) {
    refresh_gauges();
    exchange->respond(text(200, "text/plain; version=0.0.4; charset=utf-8", metrics_.text()));
  });
  add("GET", "/v1", [this, text](const Exchange& exchange) {
    nlohmann::ordered_json index{{"name", "carat"},
                                 {"version", options_.version},
                                 {"model", service_.first().id()},
                                 {"endpoints", nlohmann::ordered_json::array()}};
    for (const Route& route : routes_) index["endpoints"].push_back(route.method + " " + route.path);
    exchange->respond(text(200, "application/json", dump(index)));
  });
}

void Router::add(std::string method, std::string path, Handler handler, bool open) {
  routes_.push_back({std::move(method), std::move(path), std::move(handler), open});
}

HttpResponse Router::error(const HttpRequest& request, const ApiError& error) const {
  if (request.path.starts_with("/v1/messages")) return anthropic_error(error, request.id);
  return openai_error(error);
}

bool Router::allowed(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.header("authorization");
  const auto same_letter = [](char a, char b) { return a == b || (a ^ b) == 0x20; };  // schemes have no case
  if (given.size() > kScheme.size() && std::equal(kScheme.begin(), kScheme.end(), given.begin(), same_letter)) {
    given.remove_prefix(kScheme.size());
  } else {
    given = request.header("x-api-key");
  }
  bool known = false;  // all keys are compared: the time tells nothing of which one nearly fits
  for (const std::string& key : options_.api_keys) known |= same_secret(given, key);
  return known;
}

/// A page of another site must not use the server through its reader's browser, neither by asking across origins nor by
/// giving its own name this machine's address.
bool Router::same_site(const HttpRequest& request) const {
  const std::string_view host = request.header("host");
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && !origin_allowed(origin)) {
    const size_t scheme = origin.find("://");
    if (scheme == std::string_view::npos || origin.substr(scheme + 3) != host) return false;
  }
  if (!options_.loopback || !options_.api_keys.empty() || host.empty()) return true;
  const std::string_view name = host_name(host);
  return names_this_machine(name) || name == options_.host;
}

bool Router::origin_allowed(std::string_view origin) const {
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

Headers Router::cors_headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !origin_allowed(origin)) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
          {"Vary", "Origin"}};
}

void Router::handle(std::shared_ptr<HttpExchange> inner) {
  const HttpRequest& request = inner->request();
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  const Route* route = nullptr;
  std::string methods;
  for (const Route& candidate : routes_) {
    const bool below = candidate.path.size() > 1 && candidate.path.back() == '/' &&
                       request.path.size() > candidate.path.size() && request.path.starts_with(candidate.path);
    if (candidate.path != request.path && !below) continue;
    methods += (methods.empty() ? "" : ", ") + candidate.method;
    if (candidate.method == method && (route == nullptr || candidate.path.size() > route->path.size())) {
      route = &candidate;
    }
  }
  const std::string name = route != nullptr ? route->path : "other";
  auto exchange = std::make_shared<WatchedExchange>(
      std::move(inner), cors_headers(request), [this, name](const HttpRequest& answered, int status, double seconds) {
        metrics_.request(name, status, seconds);
        if (options_.log) options_.log(answered, status, seconds);
      });

  if (!same_site(request)) {
    return exchange->respond(error(request, {.status = 403,
                                             .message = "pages of other sites may not use this server; --cors names "
                                                        "those that may",
                                             .code = "forbidden_origin",
                                             .param = {}}));
  }
  if (request.method == "OPTIONS") {
    Headers headers{{"Allow", methods.empty() ? "GET, POST" : methods}};
    if (!request.header("access-control-request-method").empty()) {
      headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
      const std::string_view wanted = request.header("access-control-request-headers");
      headers.emplace_back("Access-Control-Allow-Headers",
                           wanted.empty() ? "authorization, content-type, x-api-key" : std::string(wanted));
      headers.emplace_back("Access-Control-Max-Age", "86400");
    }
    return exchange->respond({.status = 204, .content_type = {}, .body = {}, .headers = std::move(headers)});
  }
  const bool open = route != nullptr && route->open;
  if (!open && !allowed(request)) {
    HttpResponse response = error(request, {.status = 401,
                                            .message = "this server wants an API key: Authorization: Bearer KEY, or "
                                                       "x-api-key: KEY",
                                            .code = "invalid_api_key",
                                            .param = {}});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return exchange->respond(std::move(response));
  }
  if (route == nullptr) {
    const bool known = !methods.empty();
    HttpResponse response =
        error(request, {.status = known ? 405 : 404,
                        .message = known ? request.path + " answers " + methods + ", not " + request.method
                                         : "there is nothing at " + request.path + "; GET /v1 lists what there is",
                        .code = known ? "method_not_allowed" : "not_found",
                        .param = {}});
    if (known) response.headers.emplace_back("Allow", methods);
    return exchange->respond(std::move(response));
  }
  route->handler(std::move(exchange));
}

void Router::refresh_gauges() const {
  for (const auto& model : service_.served()) metrics_.set(model->id(), model->stats());
  if (!transport_) return;
  const HttpStats http = transport_();
  metrics_.set_connections(http.connections, http.streams);
}

std::string Router::stats_text() const {
  using Json = nlohmann::ordered_json;
  const auto seconds = [](auto duration) { return std::chrono::duration_cast<std::chrono::seconds>(duration).count(); };
  const Metrics::Totals totals = metrics_.totals();
  const ResponseStoreStats responses = store_->stats();
  Json stats{{"server",
              {{"owner", "carat"},
               {"version", options_.version},
               {"model", service_.first().id()},
               {"started_at", seconds(started_.time_since_epoch())},
               {"uptime_seconds", seconds(std::chrono::system_clock::now() - started_)},
               {"draining", service_.draining()}}},
             {"totals",
              {{"requests", totals.requests},
               {"generations", totals.generations},
               {"prompt_tokens", totals.prompt_tokens},
               {"cached_tokens", totals.cached_tokens},
               {"generated_tokens", totals.generated_tokens},
               {"steps", totals.steps}}},
             {"memory",
              {{"budget_bytes", service_.memory()},
               {"fixed_bytes", service_.fixed_memory()},
               {"peak_resident_bytes", peak_resident_memory()}}},
             {"response_store",
              {{"entries", responses.entries},
               {"bytes", responses.bytes},
               {"max_bytes", store_->max_bytes()},
               {"ttl_seconds", store_->lifetime().count()}}},
             {"models", Json::array()}};
  if (transport_) {
    const HttpStats http = transport_();
    stats["http"] = {{"connections", http.connections},
                     {"streams", http.streams},
                     {"accepted", http.accepted},
                     {"refused", http.refused}};
  }
  for (const auto& model : service_.served()) {
    const SchedulerStats s = model->stats();
    stats["models"].push_back(
        {{"id", model->id()},
         {"context", model->longest()},
         {"running", s.running},
         {"waiting", s.waiting},
         {"preempted", s.preempted},
         {"kv",
          {{"bytes_in_use", s.kv_bytes_in_use}, {"bytes_taken", s.kv_bytes_taken}, {"bytes_limit", s.kv_bytes_limit}}},
         {"prompt_cache",
          {{"entries", s.prefixes.entries},
           {"bytes", s.prefixes.bytes},
           {"max_bytes", s.prefixes.max_bytes},
           {"hits", s.prefixes.hits},
           {"misses", s.prefixes.misses},
           {"tokens_reused", s.prefixes.tokens_reused}}}});
  }
  return dump(stats);
}

}  // namespace carat::server

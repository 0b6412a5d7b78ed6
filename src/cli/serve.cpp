// carat serve: an HTTP server for clients of OpenAI's and Anthropic's interfaces, and a page to chat on.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "server/server.h"

namespace carat {
namespace {

using server::NamedModel;

struct Flags {
  std::vector<std::string> models;
  std::string model;  // mlx_lm.server's way to say it
  std::string config;
  std::vector<std::string> adapters;
  ModelFlags run;
  SamplingFlags sampling;
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::optional<size_t> memory;
  std::optional<size_t> prefix_cache;
  int max_running = 64;
  int max_waiting = 256;
  int step_rows = 128;
  std::optional<int> max_tokens;
  std::optional<bool> thinking;
  std::string template_arguments;
  std::vector<std::string> api_keys;
  std::vector<std::string> cors;
  std::string tls_certificate, tls_key;
  bool any_model = false;
  bool change_adapters = false;
  int http_threads = 2;
  size_t max_connections = 4096;
  size_t max_body = size_t{64} << 20;
  int drain_seconds = 30;
  std::string log_format = "text";
  std::string log_level = "info";
};

/// "NAME=PATH", or a path or model's name by itself.
NamedModel split_name(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !std::filesystem::exists(text)) {
    return {text.substr(0, equals), text.substr(equals + 1)};
  }
  return {"", text};
}

NamedModel named_model(const std::string& text) {
  NamedModel model = split_name(text);
  const std::string given = model.path.string();
  model.path = resolve_model(given);
  if (model.id.empty()) {
    // A name from the store is the id; of a path its last part.
    const bool is_path = std::filesystem::exists(given);
    std::filesystem::path last = std::filesystem::path(given).lexically_normal();
    if (is_path && !last.has_filename()) last = last.parent_path();
    model.id = is_path ? last.filename().string() : given;
    if (model.id.ends_with(".gguf")) model.id.resize(model.id.size() - std::string_view(".gguf").size());
  }
  return model;
}

/// Gives the flags that a file names, unless the command line has them, the file's values.
void read_config(CLI::App& verb, const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw UsageError("--config: there is no file " + path);
  for (const CLI::ConfigItem& item : CLI::ConfigBase().from_file(path)) {
    if (item.name == "++" || item.name == "--") continue;  // the begin and end of a section
    if (!item.parents.empty() && item.parents != std::vector<std::string>{verb.get_name()}) continue;
    CLI::Option* option = verb.get_option_no_throw("--" + item.name);
    if (option == nullptr) option = verb.get_option_no_throw(item.name);
    if (option == nullptr || !option->get_configurable()) {
      throw UsageError(path + ": there is no flag \"" + item.name + "\"");
    }
    if (option->count() > 0) continue;
    try {
      if (option->get_expected_max() == 0) {
        option->add_result(option->get_flag_value(item.name, verb.get_config_formatter()->to_flag(item)));
      } else {
        option->add_result(item.inputs);
      }
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw UsageError(path + ": " + error.what());
    }
  }
}

/// The thinking switch of --chat-template-args.
std::optional<bool> thinking_of(const std::string& arguments) {
  const auto json = nlohmann::json::parse(arguments, nullptr, false);
  if (!json.is_object()) throw UsageError("--chat-template-args is not a JSON object");
  const auto found = json.find("enable_thinking");
  if (found == json.end()) return std::nullopt;
  if (!found->is_boolean()) throw UsageError("enable_thinking in --chat-template-args is neither true nor false");
  return found->get<bool>();
}

int run(Flags flags) {
  server::ServerOptions options;
  if (!flags.model.empty()) flags.models.insert(flags.models.begin(), flags.model);
  if (flags.models.empty()) throw UsageError("no model was named: carat serve MODEL");
  if (flags.tls_certificate.empty() != flags.tls_key.empty()) {
    throw UsageError("--tls-cert and --tls-key belong together");
  }
  // Of a variable that is not set, and it would open the server to all.
  if (std::find(flags.api_keys.begin(), flags.api_keys.end(), "") != flags.api_keys.end()) {
    throw UsageError("--api-key is empty");
  }
  for (const std::string& model : flags.models) options.models.push_back(named_model(model));
  for (const std::string& text : flags.adapters) {
    NamedModel adapter = split_name(text);
    if (adapter.id.empty()) {
      std::filesystem::path path = adapter.path.lexically_normal();
      if (!path.has_filename()) path = path.parent_path();
      adapter.id = path.filename().string();
    }
    options.adapters.push_back(std::move(adapter));
  }
  options.serving.engine = flags.run.engine_options();
  options.serving.engine.prefix_cache_bytes = flags.prefix_cache;
  options.serving.memory = flags.memory.value_or(0);
  options.serving.max_running = flags.max_running;
  options.serving.max_waiting = flags.max_waiting;
  options.serving.mixed_rows = flags.step_rows;
  options.serving.sampling = flags.sampling.choice();
  options.serving.max_tokens = flags.max_tokens;
  options.serving.thinking = flags.thinking;
  if (!flags.template_arguments.empty() && !flags.thinking) {
    options.serving.thinking = thinking_of(flags.template_arguments);
  }
  options.serving.any_model = flags.any_model;
  options.http.host = flags.host;
  options.http.port = flags.port;
  options.http.tls_certificate = flags.tls_certificate;
  options.http.tls_key = flags.tls_key;
  options.http.threads = flags.http_threads;
  options.http.max_connections = flags.max_connections;
  options.http.max_body_bytes = flags.max_body;
  options.api_keys = flags.api_keys;
  if (const char* key = std::getenv("CARAT_API_KEY"); key != nullptr && *key != '\0')
    options.api_keys.emplace_back(key);
  options.cors_origins = flags.cors;
  options.change_adapters = flags.change_adapters;
  options.log_format = flags.log_format == "json" ? server::LogFormat::kJson : server::LogFormat::kText;
  options.log_level = flags.log_level;
  options.drain_timeout = std::chrono::seconds(flags.drain_seconds);
  options.version = version();
  server::run_server(options);
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("serve", "Serve models to OpenAI and Anthropic clients, and a page to chat on");
  verb->add_option("MODEL", flags->models,
                   "A directory, a .gguf file, or a name from the store; NAME=MODEL gives it another name; several may "
                   "be served at once");
  verb->add_option("--model", flags->model, "The same as MODEL")->group("");
  verb->add_option("--adapter,--adapter-path", flags->adapters,
                   "A LoRA adapter: DIR or ID=DIR; may be repeated. The first is used where a request names none")
      ->allow_extra_args(false);
  verb->add_option("--config", flags->config, "A file of flags: host = \"0.0.0.0\" and so on, one a line")
      ->configurable(false);

  const std::string network = "Network";
  verb->add_option("--host", flags->host, "Address to listen on")->capture_default_str()->group(network);
  verb->add_option("--port", flags->port, "Port; 0 takes any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(network);
  verb->add_option("--api-key", flags->api_keys, "Ask clients for this key; may be repeated (also CARAT_API_KEY)")
      ->allow_extra_args(false)
      ->group(network);
  verb->add_option("--cors", flags->cors, "Origin of a page that may use the server from a browser, or *")
      ->allow_extra_args(false)
      ->group(network);
  verb->add_option("--tls-cert", flags->tls_certificate, "Certificate chain, PEM: serve https")->group(network);
  verb->add_option("--tls-key", flags->tls_key, "Its private key, PEM")->group(network);
  verb->add_option("--max-connections", flags->max_connections, "Connections at once")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->group(network);
  verb->add_option("--max-body", flags->max_body, "Largest request body, such as 64MB")
      ->transform(CLI::AsSizeValue(false))
      ->group(network);
  verb->add_option("--http-threads", flags->http_threads, "Threads that talk to clients")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(network);

  const std::string engine = "Engine";
  verb->add_option("--memory", flags->memory,
                   "Bytes that the process may take, such as 12GB (default: three quarters of the machine's)")
      ->transform(CLI::AsSizeValue(false))
      ->group(engine);
  verb->add_option("--prefix-cache,--prompt-cache-bytes", flags->prefix_cache,
                   "Most of it for the prompts of earlier requests (default: what running ones leave)")
      ->transform(CLI::AsSizeValue(false))
      ->group(engine);
  verb->add_option("--parallel,--decode-concurrency", flags->max_running, "Generations at once")
      ->check(CLI::Range(1, 512))
      ->capture_default_str()
      ->group(engine);
  verb->add_option("--queue", flags->max_waiting, "Generations that may wait; more are refused with 429")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str()
      ->group(engine);
  verb->add_option("--step-rows", flags->step_rows,
                   "Tokens of a step while replies are being made: fewer make them smoother, more read prompts faster")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str()
      ->group(engine);
  verb->add_option("--threads", flags->run.threads, "Threads that compute (default: one a physical core)")
      ->check(CLI::Range(1, 1024))
      ->group(engine);
  verb->add_option("--precision", flags->run.precision, "fast or exact")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str()
      ->group(engine);
  verb->add_option("--chunk,--prefill-step-size", flags->run.chunk, "Most tokens of a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(engine);
  add_kv_flags(*verb, flags->run.kv);

  const std::string defaults = "What requests leave out";
  verb->add_option("--max-tokens", flags->max_tokens,
                   "Longest answer of a conversation (default: to the context's end)")
      ->check(CLI::NonNegativeNumber)
      ->group(defaults);
  verb->add_flag_function(
          "--thinking,!--no-thinking", [flags](int64_t given) { flags->thinking = given > 0; },
          "Let models think first (Gemma 4)")
      ->group(defaults);
  verb->add_option("--chat-template-args", flags->template_arguments, "{\"enable_thinking\": true}")->group("");
  verb->add_flag("--any-model", flags->any_model, "Answer whatever model a request names")->group(defaults);
  verb->add_flag("--allow-adapter-changes", flags->change_adapters,
                 "Let clients load and remove adapters though the server is open to all")
      ->group(defaults);
  add_sampling_flags(*verb, flags->sampling);

  const std::string operations = "Operations";
  verb->add_option("--drain-timeout", flags->drain_seconds, "Seconds for replies in progress after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(operations);
  verb->add_option("--log-format", flags->log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(operations);
  verb->add_option("--log-level", flags->log_level, "trace, debug, info, warn, error or off")
      ->transform(CLI::IsMember({"trace", "debug", "info", "warn", "warning", "error", "err", "critical", "off"},
                                CLI::ignore_case))
      ->capture_default_str()
      ->group(operations);
  add_examples(*verb,
               "  carat serve gemma3-270m\n"
               "  carat serve ./gemma-4-e2b-it --host 0.0.0.0 --api-key \"$KEY\" --kv q8\n"
               "  carat serve gemma=./gemma-4-e2b-it --adapter support=./adapters/support --memory 12GB");
  verb->callback([flags, verb, &action] {
    action = [flags, verb] {
      if (!flags->config.empty()) read_config(*verb, flags->config);
      return run(*flags);
    };
  });
}

}  // namespace carat

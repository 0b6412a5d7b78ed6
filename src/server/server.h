// A whole server: models, routes, transport, log, signals.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "server/http_server.h"
#include "server/model_service.h"

namespace carat::server {

enum class LogFormat : uint8_t { kText, kJson };

struct ServerOptions {
  std::vector<NamedModel> models;
  std::vector<NamedModel> adapters;  // of the first model; the first of them is used by requests that name none
  ServingOptions serving;
  HttpOptions http;
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;
  bool change_adapters = false;  // let clients load adapters even where the server is open to all
  LogFormat log_format = LogFormat::kText;
  std::string log_level = "info";  // trace, debug, info, warn, error, off
  std::chrono::seconds drain_timeout{30};
  std::string version;
};

/// Serves until SIGTERM or SIGINT, then lets what is in progress end, at most drain_timeout; a second signal ends it at
/// once. Logs to standard error. Throws Error when it cannot start. To be called from the process's first thread,
/// before there are others.
void run_server(const ServerOptions& options);

}  // namespace carat::server

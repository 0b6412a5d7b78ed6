#include "server/openai_misc.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json_text.h"
#include "server/openai_errors.h"
#include "server/request_fields.h"

namespace carat::server {
namespace {

void respond(HttpExchange& exchange, const Json& json) {
  HttpResponse response;
  response.body = to_text(json);
  exchange.respond(std::move(response));
}

/// What follows `marker` in the path.
std::string rest_of(std::string_view path, std::string_view marker) {
  const size_t at = path.find(marker);
  return at == std::string_view::npos ? std::string() : std::string(path.substr(at + marker.size()));
}

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* digits = text.data() + i + 1;
      const auto [end, error] = std::from_chars(digits, digits + 2, code, 16);
      if (error == std::errc() && end == digits + 2) {
        out += static_cast<char>(code);
        i += 2;
        continue;
      }
    }
    out += text[i] == '+' ? ' ' : text[i];
  }
  return out;
}

std::string model_in_query(std::string_view query) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.starts_with("model=")) return decoded(pair.substr(6));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
  }
  return {};
}

Json model_json(const ModelInfo& info, const std::string& id) {
  return {{"id", id},
          {"object", "model"},
          {"created", info.created},
          {"owned_by", "carat"},
          {"context_window", info.context_window},
          {"reasoning", info.thinking}};
}

Json models_json(const Service& service) {
  Json list = Json::array();
  for (const ModelInfo& info : service.models()) {
    list.push_back(model_json(info, info.id));
    for (const AdapterInfo& adapter : info.adapters) {
      Json entry = model_json(info, fmt::format("{}:{}", info.id, adapter.id));
      entry["parent"] = info.id;
      list.push_back(std::move(entry));
    }
  }
  return list;
}

Json adapter_json(const AdapterInfo& adapter) {
  return {{"id", adapter.id},       {"path", adapter.path},        {"rank", adapter.rank},
          {"scale", adapter.scale}, {"size_bytes", adapter.bytes}, {"mounted_layers", adapter.modules}};
}

Json piece_json(const std::string& piece) {
  if (is_utf8(piece)) return piece;
  Json bytes = Json::array();
  for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

std::string read_adapter_id(const Fields& fields) {
  const auto id = fields.text("id");
  // The signs that join ids in `model` and `adapter`, and what stands in paths of routes.
  if (!id || id->empty() || *id == "none" || id->find_first_of("+,:/") != std::string::npos) {
    fields.refuse("id", "a name, other than none, without + , : and /");
  }
  return *id;
}

}  // namespace

void handle_openai_models(Service& service, std::shared_ptr<HttpExchange> exchange) {
  respond(*exchange, {{"object", "list"}, {"data", models_json(service)}});
}

void handle_openai_model(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    // Throws for unknown models; "" stands for the default one elsewhere, but names none here.
    const std::string asked = rest_of(exchange->request().path, "/models/");
    const std::string id = asked.empty() ? asked : service.model_id(asked);
    for (const Json& model : models_json(service)) {
      if (model["id"] == id || model["id"] == asked) return respond(*exchange, model);
    }
    throw ApiFailure({404, fmt::format("model: found {}, expected one of GET /v1/models", json_string(asked)),
                      "model_not_found", "model", 0});
  });
}

void handle_tokenize(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    const Json json = read_body(exchange->request().body);
    const Fields fields(json);
    const char* name = fields.has("content") ? "content" : fields.has("text") ? "text" : "prompt";
    const auto text = fields.text(name);
    if (!text) fields.refuse("content", "a string");
    const std::string model = fields.text("model").value_or("");
    // vLLM's name for it is longer.
    const char* special = fields.has("add_special_tokens") ? "add_special_tokens" : "add_special";
    const std::vector<int> ids = service.tokenize(model, *text, fields.flag(special).value_or(false));
    Json tokens = Json::array();
    if (fields.flag("with_pieces").value_or(false)) {
      const std::vector<std::string> pieces = service.pieces(model, ids);
      for (size_t i = 0; i < ids.size(); ++i) tokens.push_back({{"id", ids[i]}, {"piece", piece_json(pieces.at(i))}});
    } else {
      tokens = ids;
    }
    respond(*exchange, {{"tokens", std::move(tokens)}, {"count", ids.size()}});
  });
}

void handle_detokenize(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    const Json json = read_body(exchange->request().body);
    const Fields fields(json);
    const auto ids = fields.ids("tokens");
    if (!ids) fields.refuse("tokens", "an array of token ids");
    const std::string text = service.detokenize(fields.text("model").value_or(""), *ids);
    respond(*exchange, {{"content", text}, {"prompt", text}});  // llama-server's name, and vLLM's
  });
}

void handle_adapters(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    Json list = Json::array();
    for (const AdapterInfo& adapter : service.adapters(model_in_query(exchange->request().query))) {
      list.push_back(adapter_json(adapter));
    }
    respond(*exchange, {{"adapters", std::move(list)}});
  });
}

void handle_load_adapter(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    const Json json = read_body(exchange->request().body);
    const Fields fields(json);
    const std::string id = read_adapter_id(fields);
    const auto path = fields.text("path");
    if (!path || path->empty()) fields.refuse("path", "the directory or file of an adapter");
    const std::string query = model_in_query(exchange->request().query);
    const std::string model = query.empty() ? fields.text("model").value_or("") : query;
    respond(*exchange, adapter_json(service.load_adapter(model, id, *path)));
  });
}

void handle_remove_adapter(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    const std::string model = model_in_query(exchange->request().query);
    const std::string id = rest_of(exchange->request().path, "/adapters/");
    int modules = 0;
    for (const AdapterInfo& adapter : service.adapters(model)) {
      if (adapter.id == id) modules = adapter.modules;
    }
    service.remove_adapter(model, id);
    respond(*exchange, {{"id", id}, {"removed_layers", modules}});
  });
}

}  // namespace carat::server

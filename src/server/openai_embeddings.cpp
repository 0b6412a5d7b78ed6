#include "server/openai_embeddings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/generation_fields.h"
#include "server/json_text.h"
#include "server/openai_errors.h"
#include "server/request_fields.h"

namespace carat::server {
namespace {

constexpr size_t kMostInputs = 2048;

struct Request {
  std::string model;
  std::vector<std::vector<int>> inputs;
  bool base64 = false;
  std::optional<size_t> dimensions;
};

std::vector<int> read_input(Service& service, const std::string& model, const Json& value, const std::string& path) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
    return service.tokenize(model, value.get_ref<const std::string&>(), true);
  }
  if (value.is_array() && !value.empty()) return read_ids(value, path);
  refuse(path, fmt::format("{}: found {}, expected a text or token ids, not empty", path, describe(value)));
}

Request read_request(Service& service, std::string_view body) {
  const Json json = read_body(body);
  const Fields fields(json);
  Request request;
  GenerationTask named;
  read_model(fields, named);
  request.model = named.model;

  const auto format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") fields.refuse("encoding_format", "float or base64");
  request.base64 = format == "base64";
  if (const auto dimensions = fields.integer("dimensions", 1, 1 << 20)) {
    request.dimensions = static_cast<size_t>(*dimensions);
  }

  const Json& input = fields.require("input", "a string, token ids, or an array of strings or of arrays of token ids");
  if (!input.is_array() || input.empty() || input[0].is_number()) {
    request.inputs.push_back(read_input(service, request.model, input, "input"));
    return request;
  }
  if (input.size() > kMostInputs) {
    refuse("input", fmt::format("input: found {} inputs, expected at most {}", input.size(), kMostInputs));
  }
  for (size_t i = 0; i < input.size(); ++i) {
    request.inputs.push_back(read_input(service, request.model, input[i], fmt::format("input[{}]", i)));
  }
  return request;
}

void shorten(std::vector<float>& values, size_t dimensions) {
  values.resize(dimensions);
  double squares = 0.0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  if (squares == 0.0) return;
  const double scale = 1.0 / std::sqrt(squares);
  for (float& value : values) value = static_cast<float>(value * scale);
}

std::string base64_text(const std::vector<float>& values) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  bytes.reserve(values.size() * sizeof(float));
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xff);
  }
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? kLetters[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string values_text(const std::vector<float>& values, bool base64) {
  if (base64) return fmt::format("\"{}\"", base64_text(values));
  std::string out = "[";
  for (const float value : values) {
    if (out.size() > 1) out += ',';
    out += number_text(value);
  }
  return out + ']';
}

HttpResponse answer(const Request& request, const std::string& model, std::vector<EmbeddingResult> results) {
  std::string body = R"({"object":"list","data":[)";
  int64_t tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    auto& [values, count] = results[i];
    if (request.dimensions && *request.dimensions > values.size()) {
      ApiError error;
      error.message = fmt::format("dimensions: found {}, expected at most {}, as many as the model has",
                                  *request.dimensions, values.size());
      error.param = "dimensions";
      return openai_error(error);
    }
    if (request.dimensions && *request.dimensions < values.size()) shorten(values, *request.dimensions);
    fmt::format_to(std::back_inserter(body), R"({}{{"object":"embedding","index":{},"embedding":{}}})",
                   i == 0 ? "" : ",", i, values_text(values, request.base64));
    tokens += count;
  }
  fmt::format_to(std::back_inserter(body), R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                 json_string(model), tokens, tokens);
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

}  // namespace

void handle_openai_embeddings(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_openai_error(*exchange, [&] {
    Request request = read_request(service, exchange->request().body);
    std::string model = service.model_id(request.model);
    const std::string asked = request.model;
    auto inputs = std::exchange(request.inputs, {});
    service.embed(asked, std::move(inputs),
                  [exchange, request = std::move(request), model = std::move(model)](
                      std::vector<EmbeddingResult> results, const std::optional<ApiError>& error) {
                    exchange->respond(error ? openai_error(*error) : answer(request, model, std::move(results)));
                  });
  });
}

}  // namespace carat::server

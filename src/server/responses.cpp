#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "server/json_text.h"
#include "server/openai_errors.h"
#include "server/request_fields.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"

namespace carat::server {
namespace {

[[noreturn]] void refuse_status(int status, std::string message, std::string code = {}) {
  throw ApiFailure({.status = status, .message = std::move(message), .code = std::move(code), .param = {}});
}

/// The value of a parameter as it stands in the query; empty when it is not there.
std::string_view parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    const size_t equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) == name) return pair.substr(std::min(equals + 1, pair.size()));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

size_t read_limit(std::string_view query) {
  constexpr size_t kMost = 100;
  const std::string_view text = parameter(query, "limit");
  if (text.empty()) return 20;
  size_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > kMost) {
    refuse("limit", fmt::format("limit: found {}, expected an integer from 1 to {}", describe(Json(text)), kMost));
  }
  return limit;
}

/// A page of the items, the last first unless the query asks for order=asc.
Json list_items(Json items, std::string_view query) {
  const size_t limit = read_limit(query);
  const std::string_view order = parameter(query, "order");
  if (!order.empty() && order != "asc" && order != "desc") {
    refuse("order", fmt::format("order: found {}, expected asc or desc", describe(Json(order))));
  }
  if (order != "asc") std::reverse(items.begin(), items.end());
  size_t first = 0;
  if (const std::string_view after = parameter(query, "after"); !after.empty()) {
    const auto it = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == after; });
    if (it == items.end()) {
      refuse("after", fmt::format("after: found {}, expected the id of an input item", describe(Json(after))));
    }
    first = static_cast<size_t>(it - items.begin()) + 1;
  }
  const size_t last = std::min(first + limit, items.size());
  Json page = Json::array();
  for (size_t i = first; i < last; ++i) page.push_back(items[i]);
  const std::string first_id = page.empty() ? "" : page.front()["id"];
  const std::string last_id = page.empty() ? "" : page.back()["id"];
  return {{"object", "list"},
          {"data", std::move(page)},
          {"first_id", first_id},
          {"last_id", last_id},
          {"has_more", last < items.size()}};
}

std::shared_ptr<const StoredResponse> find(ResponseStore& store, const std::string& id) {
  auto response = store.find(id);
  if (!response) {
    refuse_status(404, fmt::format("there is no response {}: it was not stored, or is no longer", describe(Json(id))),
                  "response_not_found");
  }
  return response;
}

/// `rest`: what stands behind the id in the path.
Json answer(ResponseStore& store, const HttpRequest& request, const std::string& id, std::string_view rest) {
  if (rest.empty() && request.method == "GET") {
    if (parameter(request.query, "stream") == "true") {
      refuse("stream", "stream: found true, expected false: a stored response is given whole");
    }
    return Json::parse(find(store, id)->response);
  }
  if (rest.empty() && request.method == "DELETE") {
    find(store, id);
    store.remove(id);
    return {{"id", id}, {"object", "response"}, {"deleted", true}};
  }
  if (rest == "/input_items" && request.method == "GET") {
    return list_items(Json::parse(find(store, id)->input), request.query);
  }
  if (rest == "/cancel" && request.method == "POST") {
    find(store, id);
    refuse("", "only a response that is made in the background can be cancelled");
  }
  if (rest.empty() || rest == "/input_items" || rest == "/cancel") {
    refuse_status(405, fmt::format("the method {} is not allowed here", request.method));
  }
  refuse_status(404, fmt::format("there is nothing at {}", describe(Json(request.path))));
}

}  // namespace

void handle_responses(Service& service, std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ResponseStore> store) {
  or_openai_error(*exchange, [&] {
    ResponsesRequest request = read_responses_request(exchange->request().body, *store);
    request.response["model"] = service.model_id(request.task.model);
    ResponsesWriter::Options options{.response = std::move(request.response),
                                     .items = std::move(request.items),
                                     .stream = request.stream,
                                     .store = request.store ? store : nullptr};
    send_reply(service, std::move(request.task), exchange, std::make_unique<ResponsesWriter>(std::move(options)),
               request.stream);
  });
}

void handle_response_input_tokens(Service& service, std::shared_ptr<HttpExchange> exchange,
                                  std::shared_ptr<ResponseStore> store) {
  or_openai_error(*exchange, [&] {
    const ResponsesRequest request = read_responses_request(exchange->request().body, *store);
    const Json body = {{"object", "response.input_tokens"}, {"input_tokens", service.count_prompt(request.task)}};
    exchange->respond({.body = to_text(body)});
  });
}

void handle_stored_response(Service& /*service*/, std::shared_ptr<HttpExchange> exchange,
                            std::shared_ptr<ResponseStore> store) {
  or_openai_error(*exchange, [&] {
    constexpr std::string_view kPrefix = "/v1/responses/";
    const HttpRequest& request = exchange->request();
    std::string_view rest = request.path;
    if (rest.starts_with(kPrefix)) rest.remove_prefix(kPrefix.size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    exchange->respond(
        {.body = to_text(answer(*store, request, std::string(rest.substr(0, slash)), rest.substr(slash)))});
  });
}

}  // namespace carat::server

#include "server/anthropic.h"

#include <utility>

#include "server/anthropic_request.h"
#include "server/anthropic_writer.h"
#include "server/json_text.h"

namespace carat::server {
namespace {

/// handle(), and what it refuses in Anthropic's shape.
template <typename Handle>
void or_anthropic_error(HttpExchange& exchange, Handle handle) {
  try {
    handle();
  } catch (const ApiFailure& failure) {
    exchange.respond(anthropic_error(failure.error(), exchange.request().id));
  }
}

}  // namespace

void handle_messages(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_anthropic_error(*exchange, [&] {
    const std::string& id = exchange->request().id;
    MessagesRequest request = read_messages_request(exchange->request().body, MessagesRoute::kMessages);
    AnthropicWriter::Options options{.model = service.model_id(request.task.model),
                                     .request_id = id,
                                     .stream = request.stream,
                                     .marks_cache = request.marks_cache};
    send_reply(service, std::move(request.task), exchange, std::make_unique<AnthropicWriter>(std::move(options)),
               request.stream, {{"request-id", id}});
  });
}

void handle_count_tokens(Service& service, std::shared_ptr<HttpExchange> exchange) {
  or_anthropic_error(*exchange, [&] {
    const MessagesRequest request = read_messages_request(exchange->request().body, MessagesRoute::kCountTokens);
    const Json body = {{"input_tokens", service.count_prompt(request.task)}};
    exchange->respond({.body = to_text(body), .headers = {{"request-id", exchange->request().id}}});
  });
}

}  // namespace carat::server

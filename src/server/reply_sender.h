// One reply on its way to one client, whole or as a stream of events; a dialect supplies the words.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/chat_task.h"
#include "server/exchange.h"
#include "server/service.h"

namespace carat::server {

/// One server-sent event with a name, as both Anthropic's and OpenAI's Responses clients expect it.
std::string named_event(std::string_view name, const Json& data);

/// What a dialect makes of a reply. Called by one thread at a time. Of a stream: open(), any number of add(), close();
/// what they return, whole events or nothing, is written. Otherwise: any number of add() and close(), which return
/// nothing then, and whole().
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  /// `prompt_tokens`: what usage will say.
  virtual std::string open(int64_t prompt_tokens) = 0;
  virtual std::string add(std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) = 0;
  /// `end` may carry an error: the stream then ends with the dialect's event for it.
  virtual std::string close(const ReplyEnd& end) = 0;
  /// The answer to a request that does not stream.
  virtual HttpResponse whole() = 0;
  /// The answer when generation failed before anything was sent.
  virtual HttpResponse failure(const ApiError& error) = 0;
};

/// Runs `task` and answers the exchange through `writer`; cancels when the client leaves. `headers` go with a stream.
/// Throws what Service::chat throws; the exchange is then still unanswered.
void send_reply(Service& service, ChatTask task, std::shared_ptr<HttpExchange> exchange,
                std::unique_ptr<ReplyWriter> writer, bool stream, Headers headers = {});

}  // namespace carat::server

// A reply in the words of Anthropic's Messages API.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/reply_sender.h"

namespace carat::server {

/// The error as Anthropic tells it: {"type": "error", "error": {"type", "message"}, "request_id"} with the status of
/// `error`, Retry-After where it says so, and the request's id as `request-id`.
HttpResponse anthropic_error(const ApiError& error, const std::string& request_id);

/// Content blocks in the order in which the reply brings them: what follows a thought or a call of another kind is a
/// new block. An empty reply is one empty text block.
///
/// Usage: input_tokens is the whole prompt, exactly what count_tokens says, and cache_read_input_tokens is 0, unless
/// the request marks a cache (cache_control). Then, as Anthropic has it, input_tokens leaves out what the cache held
/// and cache_read_input_tokens says how much that was: their sum is the whole prompt. (message_start, written before
/// that is known, has the whole prompt in any case; message_delta corrects it.)
class AnthropicWriter : public ReplyWriter {
 public:
  struct Options {
    std::string model;
    std::string request_id;
    bool stream = false;
    bool marks_cache = false;
  };

  explicit AnthropicWriter(Options options);

  std::string open(int64_t prompt_tokens) override;
  std::string add(std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override;
  std::string close(const ReplyEnd& end) override;
  HttpResponse whole() override;
  HttpResponse failure(const ApiError& error) override;

 private:
  enum class Block : uint8_t { kNone, kThinking, kText };

  void emit(std::string_view type, const Json& fields);
  void delta(Json fields);
  void start_block(Json block);
  void stop_block();
  void grow(Block kind, const std::string& text);
  void call(const ReplyEvent& event);
  std::string take();

  Options options_;
  Json message_;
  Block block_ = Block::kNone;  // the one that is open: the last of the message's
  std::string pending_;         // events not yet taken
};

}  // namespace carat::server

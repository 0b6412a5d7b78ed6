// A reply in the words of OpenAI's Responses API.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/reply_sender.h"
#include "server/response_store.h"

namespace carat::server {

/// Output items in the order in which the reply brings them: reasoning, message, function_call; what follows one of
/// another kind is a new item. An empty reply is a message with an empty text. A thought stands in its item twice, as
/// summary (which is what clients show) and as content (which is what it is).
///
/// Events: response.created, response.in_progress; of each item output_item.added, its parts and deltas,
/// output_item.done; then response.completed, or response.incomplete when the limit of tokens was reached. When
/// generation fails: error, then response.failed. Each has the next sequence_number.
///
/// The finished response is stored, where that is wanted, before the client can know that it is finished.
class ResponsesWriter : public ReplyWriter {
 public:
  struct Options {
    Json response;  // the object before anything is said (responses_request.h)
    Json items;     // the input, to be stored with it
    bool stream = false;
    std::shared_ptr<ResponseStore> store;  // null: not to be stored
  };

  explicit ResponsesWriter(Options options);

  std::string open(int64_t prompt_tokens) override;
  std::string add(std::span<const ReplyEvent> events, std::span<const TokenReport> tokens) override;
  std::string close(const ReplyEnd& end) override;
  HttpResponse whole() override;
  HttpResponse failure(const ApiError& error) override;

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage };

  size_t output_index() const;
  void emit(std::string_view type, const Json& fields);
  /// An event about a part of the open item.
  void emit_part(std::string_view type, const Json& fields);
  void emit_response(std::string_view type);

  void grow(Item kind, const std::string& text);
  void call(const ReplyEvent& event);
  void start_reasoning();
  void start_message();
  /// Ends the open item, if there is one.
  void finish_item(const char* status);
  void finish_reasoning();
  void finish_message();
  void push_item();

  Json text_logprobs(const std::string& text);
  void end_response(const ReplyEnd& end);
  void fail_response(const ApiError& error);
  void store() const;
  std::string take();

  Options options_;
  Json& response_ = options_.response;
  Item open_ = Item::kNone;
  Json item_;         // the open item
  std::string text_;  // its text so far
  Json logprobs_ = Json::array();
  std::vector<TokenReport> tokens_;  // reported, and not yet told with a text
  int64_t sequence_ = 0;
  std::string pending_;  // events not yet taken
};

}  // namespace carat::server

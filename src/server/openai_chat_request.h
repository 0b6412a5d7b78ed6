// The body of POST /v1/chat/completions.
#pragma once

#include <string>
#include <string_view>

#include "server/chat_task.h"
#include "server/request_fields.h"

namespace carat::server {

struct OpenAiChatRequest {
  ChatTask task;
  bool stream = false;
  bool include_usage = false;
};

/// Throws ApiFailure for what does not fit. Unknown fields, and known ones that change nothing here (user, metadata,
/// store, service_tier, ...), are passed over.
OpenAiChatRequest read_openai_chat(std::string_view body);

/// stream_options.include_usage; the options are refused unless `stream`.
bool read_include_usage(const Fields& fields, bool stream);

/// OpenAI's messages, as far as they can be checked without a model: an array of objects with a known role and contents
/// of text. The rest is checked where the prompt is made.
void check_messages(const Json& messages, std::string_view path = "messages");

}  // namespace carat::server

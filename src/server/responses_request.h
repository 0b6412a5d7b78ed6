// Requests of OpenAI's Responses API, read into tasks.
#pragma once

#include <string_view>

#include "server/chat_task.h"
#include "server/response_store.h"

namespace carat::server {

struct ResponsesRequest {
  ChatTask task;
  Json items;     // what the model reads, in full (response_items.h): earlier turns first
  Json response;  // the response object before anything is said; its `model` is as the client asked for it
  bool stream = false;
  bool store = true;
};

/// Reads a request body; earlier turns come from `store`. docs/api-responses.md says what is read, dropped and refused.
/// Throws ApiFailure: 404 when the previous response is not there.
ResponsesRequest read_responses_request(std::string_view body, ResponseStore& store);

}  // namespace carat::server

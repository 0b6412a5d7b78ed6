// Bytes to a request of OpenAI's Responses API to a prompt, and on to the next turn.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "chat/chat.h"
#include "server/json_text.h"
#include "server/responses_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carat;
  using namespace carat::server;
  ResponseStore store;
  try {
    ResponsesRequest request =
        read_responses_request(std::string_view(reinterpret_cast<const char*>(data), size), store);
    if (request.task.messages.empty()) __builtin_trap();
    store.put({"resp_1", to_text(request.response), to_text(request.items)});
    // What was accepted once can be gone on from.
    const ResponsesRequest next =
        read_responses_request(R"({"previous_response_id":"resp_1","input":"Go on."})", store);
    if (next.task.messages.back()["content"] != "Go on.") __builtin_trap();
    if (next.items.size() != request.items.size() + 1) __builtin_trap();
    render_chat(ChatFormat::kGemma4, request.task.messages, request.task.tools);
  } catch (const ApiFailure&) {
    if (store.find("resp_1")) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}

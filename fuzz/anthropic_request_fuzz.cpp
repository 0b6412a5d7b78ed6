// Bytes to a request of Anthropic's Messages API to a prompt.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "chat/chat.h"
#include "server/anthropic_request.h"

namespace {

/// What the chat formats rely on: results follow calls, no empty user turn, and it is not the assistant's turn.
void check(const carat::Json& messages) {
  if (messages.empty() || messages.back()["role"] == "assistant") __builtin_trap();
  bool called = false;
  for (const carat::Json& message : messages) {
    const bool result = message["role"] == "tool";
    if (result && !called) __builtin_trap();
    if (message["role"] == "user" && message["content"] == "") __builtin_trap();
    called = result || message.contains("tool_calls");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carat;
  using namespace carat::server;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const MessagesRoute route : {MessagesRoute::kMessages, MessagesRoute::kCountTokens}) {
    try {
      const ChatTask task = read_messages_request(body, route).task;
      check(task.messages);
      render_chat(ChatFormat::kGemma4, task.messages, task.tools);
    } catch (const ApiFailure&) {
    } catch (const Error&) {
    }
  }
  return 0;
}

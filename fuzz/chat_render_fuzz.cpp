// Bytes to JSON to prompts: {"messages": ..., "tools": ..., "options": {...}} in every format.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using carat::ChatFormat;
  using carat::Json;
  const Json request = Json::parse(data, data + size, nullptr, false);
  if (!request.is_object()) return 0;
  const auto field = [&](const char* name) {
    const auto it = request.find(name);
    return it == request.end() ? nullptr : &*it;
  };
  const auto flag = [&](const char* name) {
    const Json* value = field(name);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  const Json none;
  const Json* messages = field("messages");
  const Json* tools = field("tools");
  carat::ChatOptions options;
  options.add_generation_prompt = flag("add_generation_prompt");
  options.enable_thinking = flag("enable_thinking");
  for (const ChatFormat format : {ChatFormat::kGemma3, ChatFormat::kGemma4, ChatFormat::kGemma4Interleaved}) {
    try {
      const std::string prompt =
          carat::render_chat(format, messages ? *messages : none, tools ? *tools : none, options);
      if (!prompt.starts_with("<bos>")) __builtin_trap();
    } catch (const carat::Error&) {
    }
  }
  return 0;
}

// A token stream from bytes: the speech parser must take any, and say the same however the text is split.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/speech.h"

namespace {

using carat::SpeechEvent;
using Token = std::pair<int, std::string>;

constexpr carat::SpeechMarkers kMarkers = {
    .channel_open = 1, .channel_close = 2, .tool_call_open = 3, .tool_call_close = 4, .quote = 5};

/// The events of a reply as one text, neighbours of a kind joined.
std::string hear(const std::vector<Token>& tokens, std::string_view prompt, carat::ChatFormat format, bool bytewise) {
  carat::SpeechParser parser(kMarkers, prompt, format);
  std::vector<SpeechEvent> events;
  for (const auto& [id, text] : tokens) {
    if (!bytewise || id <= 5) {
      parser.push(id, text, events);
      continue;
    }
    for (const char byte : text) parser.push(id, std::string_view(&byte, 1), events);
  }
  parser.finish(events);
  std::string all;
  SpeechEvent::Kind last = SpeechEvent::Kind::kToolCall;
  for (const SpeechEvent& event : events) {
    if (event.kind != last || event.kind == SpeechEvent::Kind::kToolCall) all += static_cast<char>(event.kind);
    all += event.text + event.arguments;
    last = event.kind;
  }
  return all + (parser.thought_open() ? "open" : "closed");
}

}  // namespace

/// First byte: format and length of the prompt. Then tokens: a byte below 6 is that marker; any other begins a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto format = data[0] & 1 ? carat::ChatFormat::kGemma4Interleaved : carat::ChatFormat::kGemma4;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view prompt = bytes.substr(0, data[0] >> 1);
  std::vector<Token> tokens;
  for (const char byte : bytes.substr(prompt.size())) {
    const int id = static_cast<unsigned char>(byte);
    if (id < 6) {
      tokens.emplace_back(id, "");
    } else if (tokens.empty() || tokens.back().first < 6) {
      tokens.emplace_back(id, std::string(1, byte));
    } else {
      tokens.back().second += byte;
    }
  }
  if (hear(tokens, prompt, format, false) != hear(tokens, prompt, format, true)) __builtin_trap();
  return 0;
}

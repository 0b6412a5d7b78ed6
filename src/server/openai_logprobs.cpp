#include "server/openai_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/json_text.h"

namespace carat::server {
namespace {

/// JSON has no infinity; OpenAI writes -9999.0 for tokens that cannot be.
std::string logprob_text(float logprob) {
  constexpr float kLowest = -9999.0f;
  return number_text(logprob > kLowest ? logprob : kLowest);
}

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

/// "token":...,"logprob":...,"bytes":[...]
void append_token(std::string& out, const std::string& bytes, float logprob) {
  fmt::format_to(std::back_inserter(out), R"("token":{},"logprob":{},"bytes":[)", json_string(bytes),
                 logprob_text(logprob));
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

std::string spelled(std::string_view bytes) {
  if (is_utf8(bytes)) return json_string(bytes);
  std::string out = "bytes:";
  for (const char byte : bytes) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return json_string(out);
}

/// Counts a character at its first byte, so that the parts of one that several tokens share add up.
size_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string alternatives(const TokenReport& token) {
  std::string out;
  bool found = false;
  for (const auto& [id, bytes, logprob] : token.top) {
    separate(out);
    out += fmt::format("{}:{}", spelled(bytes), logprob_text(logprob));
    found = found || id == token.token;
  }
  if (!found) {
    separate(out);
    out += fmt::format("{}:{}", spelled(token.bytes), logprob_text(token.logprob));
  }
  return fmt::format("{{{}}}", out);
}

}  // namespace

void append_chat_logprobs(std::string& out, std::span<const TokenReport> tokens) {
  for (const TokenReport& token : tokens) {
    separate(out);
    out += '{';
    append_token(out, token.bytes, token.logprob);
    out += R"(,"top_logprobs":[)";
    for (size_t i = 0; i < token.top.size(); ++i) {
      out += i == 0 ? "{" : ",{";
      append_token(out, token.top[i].bytes, token.top[i].logprob);
      out += '}';
    }
    out += "]}";
  }
}

void CompletionLogprobs::add_first(std::string_view bytes, bool in_text) {
  tokens_ = spelled(bytes);
  token_logprobs_ = "null";
  top_logprobs_ = "null";
  offsets_ = std::to_string(offset_);
  if (in_text) offset_ += characters(bytes);
}

void CompletionLogprobs::add(std::span<const TokenReport> tokens) {
  for (const TokenReport& token : tokens) {
    for (std::string* list : {&tokens_, &token_logprobs_, &top_logprobs_, &offsets_}) separate(*list);
    tokens_ += spelled(token.bytes);
    token_logprobs_ += logprob_text(token.logprob);
    top_logprobs_ += alternatives(token);
    offsets_ += std::to_string(offset_);
    offset_ += characters(token.bytes);
  }
}

std::string CompletionLogprobs::take() {
  return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                     std::exchange(tokens_, {}), std::exchange(token_logprobs_, {}), std::exchange(top_logprobs_, {}),
                     std::exchange(offsets_, {}));
}

}  // namespace carat::server

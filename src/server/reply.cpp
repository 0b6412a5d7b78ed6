#include "server/reply.h"

#include <utility>

#include "server/random_id.h"

namespace carat::server {
namespace {

std::string bytes_of(const Tokenizer& tokenizer, int token) {
  return tokenizer.is_special(token) ? std::string(tokenizer.piece(token)) : tokenizer.token_bytes(token);
}

}  // namespace

TokenReport report_of(const Tokenizer& tokenizer, int token, float logprob, std::span<const TokenLogprob> top) {
  TokenReport report{.token = token, .bytes = bytes_of(tokenizer, token), .logprob = logprob, .top = {}};
  for (const TokenLogprob& other : top) {
    report.top.push_back({other.token, bytes_of(tokenizer, other.token), other.logprob});
  }
  return report;
}

ReplyReader::ReplyReader(std::shared_ptr<const Tokenizer> tokenizer, ReplyParser parser, SpeechMarkers markers,
                         ReplyOptions options)
    : tokenizer_(std::move(tokenizer)),
      parser_(std::move(parser)),
      markers_(markers),
      options_(std::move(options)),
      decoder_(tokenizer_),
      filter_(options_.stop) {}

Verdict ReplyReader::push(const GeneratedToken& token) {
  events_.clear();
  tokens_.clear();
  if (token.ends) return {};
  if (options_.logprobs) tokens_.push_back(report_of(*tokenizer_, token.token, token.logprob, token.top));

  const bool was_open = thought_open();
  speech_.clear();
  auto* spoken = std::get_if<SpeechParser>(&parser_);
  if (spoken != nullptr && is_marker(token.token)) {
    // No character reaches across a marker: what is held of one belongs to what the marker ends.
    if (const std::string rest = decoder_.finish(); !rest.empty()) spoken->push(-1, rest, speech_);
  }
  const std::string text = decoder_.push(token.token);
  if (spoken != nullptr) {
    spoken->push(token.token, text, speech_);
  } else if (auto* calls = std::get_if<JsonCallParser>(&parser_)) {
    calls->push(text, speech_);
  } else {
    add_text(text);
  }
  take(speech_);
  Verdict verdict{.stop = filter_.stopped() || (calls_ > 0 && !options_.parallel_calls), .next = {}};
  const bool open = thought_open();
  if (was_open || open) ++reasoning_tokens_;
  thought_tokens_ = open ? thought_tokens_ + 1 : 0;
  if (open && options_.thinking_budget && thought_tokens_ >= *options_.thinking_budget && markers_.channel_close >= 0) {
    verdict.next = markers_.channel_close;
  }
  return verdict;
}

bool ReplyReader::is_marker(int token) const {
  return token == markers_.channel_open || token == markers_.channel_close || token == markers_.tool_call_open ||
         token == markers_.tool_call_close || token == markers_.quote;
}

bool ReplyReader::thought_open() const {
  const auto* spoken = std::get_if<SpeechParser>(&parser_);
  return spoken != nullptr && spoken->thought_open();
}

void ReplyReader::finish(const GenerationEnd& generation, ReplyEnd& end) {
  events_.clear();
  tokens_.clear();
  speech_.clear();
  const std::string rest = decoder_.finish();
  if (auto* spoken = std::get_if<SpeechParser>(&parser_)) {
    if (!rest.empty()) spoken->push(-1, rest, speech_);
    end.thought_open = spoken->thought_open();
    spoken->finish(speech_);
  } else if (auto* calls = std::get_if<JsonCallParser>(&parser_)) {
    calls->push(rest, speech_);
    calls->finish(speech_);
  } else {
    add_text(rest);
  }
  take(speech_);
  if (std::string held = filter_.stopped() ? "" : filter_.finish(); !held.empty()) {
    events_.push_back({.kind = ReplyEvent::Kind::kText, .text = std::move(held), .arguments = {}, .call_id = {}});
  }
  end.stop_sequence = filter_.matched();
  if (filter_.stopped()) {
    end.reason = EndReason::kStopSequence;
  } else if (calls_ > 0) {
    end.reason = EndReason::kToolCalls;
  } else if (generation.finish == FinishReason::kMaxTokens || generation.finish == FinishReason::kContext ||
             end.thought_open) {
    end.reason = EndReason::kLength;  // a reply that ends inside a thought is not complete, whatever ended it
  } else {
    end.reason = EndReason::kStop;
  }
  end.usage = {.prompt_tokens = generation.prompt_tokens,
               .cached_tokens = generation.reused_tokens,
               .completion_tokens = generation.generated_tokens,
               .reasoning_tokens = reasoning_tokens_};
}

void ReplyReader::take(std::vector<SpeechEvent>& speech) {
  for (SpeechEvent& event : speech) {
    switch (event.kind) {
      case SpeechEvent::Kind::kText:
        add_text(std::move(event.text));
        break;
      case SpeechEvent::Kind::kReasoning:
        if (filter_.stopped()) break;
        events_.push_back(
            {.kind = ReplyEvent::Kind::kReasoning, .text = std::move(event.text), .arguments = {}, .call_id = {}});
        break;
      case SpeechEvent::Kind::kToolCall:
        if (filter_.stopped() || (calls_ > 0 && !options_.parallel_calls)) break;
        // No stop string reaches across a call: what is held back before it is text.
        if (std::string held = filter_.finish(); !held.empty()) {
          events_.push_back({.kind = ReplyEvent::Kind::kText, .text = std::move(held), .arguments = {}, .call_id = {}});
        }
        events_.push_back({.kind = ReplyEvent::Kind::kToolCall,
                           .text = std::move(event.text),
                           .arguments = std::move(event.arguments),
                           .call_id = random_id("call_"),
                           .call_index = calls_++});
        break;
    }
  }
}

void ReplyReader::add_text(std::string text) {
  if (filter_.stopped()) return;
  text = filter_.push(text);
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == ReplyEvent::Kind::kText) {
    events_.back().text += text;
  } else {
    events_.push_back({.kind = ReplyEvent::Kind::kText, .text = std::move(text), .arguments = {}, .call_id = {}});
  }
}

}  // namespace carat::server

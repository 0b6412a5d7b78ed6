#include "chat/speech.h"

#include <algorithm>
#include <array>
#include <utility>

namespace carat {
namespace {

using Kind = SpeechEvent::Kind;

constexpr std::string_view kChannelOpen = "<|channel>";
constexpr std::string_view kChannelClose = "<channel|>";
constexpr std::string_view kCallOpen = "<|tool_call>";
constexpr std::string_view kCallClose = "<tool_call|>";
/// In the order of Marker, kNone first.
constexpr std::array<std::string_view, 6> kSpelling = {"",        kChannelOpen, kChannelClose,
                                                       kCallOpen, kCallClose,   kQuoteMarker};
constexpr std::string_view kLabel = "thought";
/// Of one byte each, so that no split of the text can hide one.
constexpr std::string_view kSpace = " \t\n\v\f\r";

void emit(Kind kind, std::string_view text, std::vector<SpeechEvent>& events) {
  if (!text.empty()) events.push_back({kind, std::string(text), {}});
}

std::string to_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// What of the prompt belongs to the turn that the model goes on with, without results that others wrote.
std::string_view open_turn(std::string_view prompt) {
  for (const std::string_view marker : {std::string_view("<|turn>"), std::string_view("<tool_response|>")}) {
    const size_t last = prompt.rfind(marker);
    if (last != prompt.npos) prompt.remove_prefix(last + marker.size());
  }
  return prompt;
}

}  // namespace

SpeechParser::SpeechParser(SpeechMarkers markers, std::string_view prompt, ChatFormat format)
    : markers_(markers), drop_last_newline_(format != ChatFormat::kGemma4Interleaved) {
  resume(open_turn(prompt));
}

SpeechParser::Marker SpeechParser::marker_of(int id) const {
  if (id < 0) return Marker::kNone;
  if (id == markers_.channel_open) return Marker::kChannelOpen;
  if (id == markers_.channel_close) return Marker::kChannelClose;
  if (id == markers_.tool_call_open) return Marker::kCallOpen;
  if (id == markers_.tool_call_close) return Marker::kCallClose;
  if (id == markers_.quote) return Marker::kQuote;
  return Marker::kNone;
}

void SpeechParser::resume(std::string_view prompt) {
  const std::array<int, 6> ids = {-1,
                                  markers_.channel_open,
                                  markers_.channel_close,
                                  markers_.tool_call_open,
                                  markers_.tool_call_close,
                                  markers_.quote};
  std::vector<SpeechEvent> said;  // known to the client already
  size_t start = 0;               // of the text since the last marker
  for (size_t at = prompt.find('<'); at != prompt.npos; at = prompt.find('<', at)) {
    size_t marker = 1;
    while (marker < ids.size() && (ids[marker] < 0 || !prompt.substr(at).starts_with(kSpelling[marker]))) ++marker;
    if (marker == ids.size()) {
      ++at;
      continue;
    }
    add_text(prompt.substr(start, at - start), said);
    add_marker(static_cast<Marker>(marker), said);
    start = at += kSpelling[marker].size();
  }
  add_text(prompt.substr(start), said);
}

void SpeechParser::push(int id, std::string_view text, std::vector<SpeechEvent>& events) {
  const Marker marker = marker_of(id);
  if (marker == Marker::kNone) return add_text(text, events);
  const std::string_view spelling = kSpelling[static_cast<size_t>(marker)];
  if (text.ends_with(spelling)) text.remove_suffix(spelling.size());
  add_text(text, events);
  add_marker(marker, events);
}

void SpeechParser::finish(std::vector<SpeechEvent>& events) {
  if (state_ == State::kThought) end_thought(false, events);
  if (state_ == State::kCall) {
    end_call(false, events);
    state_ = State::kText;
  }
}

void SpeechParser::add_marker(Marker marker, std::vector<SpeechEvent>& events) {
  const bool in_string = state_ == State::kCall && call_.quotes.size() % 2 == 1;
  if (marker == Marker::kQuote) {
    if (state_ == State::kCall) call_.add_quote();
    return;
  }
  if (in_string && marker != Marker::kCallClose) return call_.add_text(kSpelling[static_cast<size_t>(marker)]);

  const bool opens = marker == Marker::kChannelOpen || marker == Marker::kCallOpen;
  if (state_ == State::kThought && (opens || marker == Marker::kChannelClose)) {
    end_thought(true, events);
    state_ = State::kText;
  } else if (state_ == State::kCall && (opens || marker == Marker::kCallClose)) {
    end_call(marker == Marker::kCallClose, events);
    state_ = State::kText;
  }
  if (marker == Marker::kChannelOpen) {
    state_ = State::kThought;
    label_pending_ = true;
    thought_said_ = false;
  } else if (marker == Marker::kCallOpen) {
    state_ = State::kCall;
  }
}

void SpeechParser::add_text(std::string_view text, std::vector<SpeechEvent>& events) {
  switch (state_) {
    case State::kText:
      return emit(Kind::kText, text, events);
    case State::kThought:
      return add_thought(text, events);
    case State::kCall:
      return call_.add_text(text);
  }
}

void SpeechParser::add_thought(std::string_view text, std::vector<SpeechEvent>& events) {
  held_ += text;
  if (label_pending_ && !take_label()) return;
  if (!thought_said_ && held_.find_first_not_of(kSpace) == held_.npos) return;
  if (held_.empty()) return;
  thought_said_ = true;
  const bool hold_newline = drop_last_newline_ && held_.back() == '\n';
  emit(Kind::kReasoning, std::string_view(held_).substr(0, held_.size() - (hold_newline ? 1 : 0)), events);
  held_.assign(hold_newline ? 1 : 0, '\n');
}

/// Removes the label from held_ once it is complete. False while it cannot be told yet. A first line that is no label
/// belongs to the thought.
bool SpeechParser::take_label() {
  const size_t line = held_.find('\n');
  const std::string_view first(held_.data(), std::min(line, held_.size()));
  if (line == held_.npos && kLabel.starts_with(first)) return false;
  if (line != held_.npos && (first == kLabel || first.empty())) held_.erase(0, line + 1);
  label_pending_ = false;
  return true;
}

void SpeechParser::end_thought(bool closed, std::vector<SpeechEvent>& events) {
  // What is held is no more than a label, white space of an empty thought, or the last newline.
  const bool keep = label_pending_ ? closed && !held_.empty() && held_ != kLabel : thought_said_ && !closed;
  if (keep) emit(Kind::kReasoning, held_, events);
  held_.clear();
}

void SpeechParser::end_call(bool closed, std::vector<SpeechEvent>& events) {
  const CallText call = std::exchange(call_, {});
  if (const auto calls = read_calls(call)) {
    for (const WrittenCall& each : *calls) events.push_back({Kind::kToolCall, each.name, to_json(each.arguments)});
    return;
  }
  emit(Kind::kText, std::string(kCallOpen) + call.text + std::string(closed ? kCallClose : ""), events);
}

}  // namespace carat

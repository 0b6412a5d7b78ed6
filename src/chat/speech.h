// What Gemma 4 says, taken apart while it is being said: thoughts, text and tool calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_syntax.h"

namespace carat {

/// Token ids of the markers; -1 where the vocabulary has none (Gemma 3 has none: everything is text).
struct SpeechMarkers {
  int channel_open = -1;     // <|channel>
  int channel_close = -1;    // <channel|>
  int tool_call_open = -1;   // <|tool_call>
  int tool_call_close = -1;  // <tool_call|>
  int quote = -1;            // <|"|>
};

/// `id` gives the token of a piece, as std::optional<int>.
template <typename Id>
SpeechMarkers find_markers(const Id& id) {
  return {.channel_open = id("<|channel>").value_or(-1),
          .channel_close = id("<channel|>").value_or(-1),
          .tool_call_open = id("<|tool_call>").value_or(-1),
          .tool_call_close = id("<tool_call|>").value_or(-1),
          .quote = id(kQuoteMarker).value_or(-1)};
}

struct SpeechEvent {
  enum class Kind : uint8_t { kReasoning, kText, kToolCall };
  Kind kind = Kind::kText;
  std::string text;       // reasoning or text to append; for a call the name of the tool
  std::string arguments;  // for a call: a JSON object, keys in the order written, valid UTF-8

  bool operator==(const SpeechEvent&) const = default;
};

/// The incremental parser of one reply. Markers are known by their token ids alone: text that spells one is text. How
/// the text is split over tokens changes where events are split, never what they add up to.
///
/// A thought loses its label ("thought", up to the first newline) and its last newline, which the template writes back;
/// a thought of nothing but white space gives no event; a call ends a thought. Stray closing markers and delimiters are
/// dropped. Calls come whole, when their segment ends, one event each. A segment that is malformed, or cut short, comes
/// as text with its markers spelled out: nothing that the model said vanishes.
class SpeechParser {
 public:
  /// `prompt`: the rendered prompt or its tail. A thought or a call that it leaves open is gone on with.
  /// `format`: kGemma4Interleaved keeps the last newline of a thought, because its template adds none.
  explicit SpeechParser(SpeechMarkers markers, std::string_view prompt = {}, ChatFormat format = ChatFormat::kGemma4);

  /// Adds what this token makes certain to `events`. `text`: what the token added to the decoded text, any bytes. With
  /// a marker it may be empty, the marker's spelling, or text that the decoder had held back until then.
  void push(int id, std::string_view text, std::vector<SpeechEvent>& events);

  /// Adds what was held back. Call once, at the end.
  void finish(std::vector<SpeechEvent>& events);

  /// The reply stands inside a thought; after finish(): the thought is incomplete, and so is the reply.
  bool thought_open() const { return state_ == State::kThought; }

 private:
  enum class State : uint8_t { kText, kThought, kCall };
  enum class Marker : uint8_t { kNone, kChannelOpen, kChannelClose, kCallOpen, kCallClose, kQuote };

  Marker marker_of(int id) const;
  void resume(std::string_view prompt);
  void add_marker(Marker marker, std::vector<SpeechEvent>& events);
  void add_text(std::string_view text, std::vector<SpeechEvent>& events);
  void add_thought(std::string_view text, std::vector<SpeechEvent>& events);
  bool take_label();
  void end_thought(bool closed, std::vector<SpeechEvent>& events);
  void end_call(bool closed, std::vector<SpeechEvent>& events);

  SpeechMarkers markers_;
  bool drop_last_newline_;
  State state_ = State::kText;
  bool label_pending_ = false;  // the thought's label may still be on its way
  bool thought_said_ = false;   // the thought has more than white space
  std::string held_;            // of the thought: label, leading white space or last newline
  CallText call_;
};

}  // namespace carat

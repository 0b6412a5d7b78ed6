#include "chat/json_calls.h"

#include <array>
#include <utility>

namespace carat {
namespace {

constexpr std::array<std::string_view, 2> kOpeners = {"```json", "```tool_code"};
constexpr int kMaxDepth = 128;
constexpr size_t kMaxBlock = size_t{4} << 20;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void emit_text(std::string_view text, std::vector<SpeechEvent>& events) {
  if (text.empty()) return;
  if (!events.empty() && events.back().kind == SpeechEvent::Kind::kText) {
    events.back().text += text;
  } else {
    events.push_back({SpeechEvent::Kind::kText, std::string(text), {}});
  }
}

/// The arguments of a call; null when `object` is none.
const Json* arguments_of(const Json& object) {
  if (!object.is_object() || object.size() != 2) return nullptr;
  for (const char* key : {"arguments", "parameters"}) {
    const auto it = object.find(key);
    if (it != object.end() && it->is_object()) return &*it;
  }
  return nullptr;
}

}  // namespace

JsonCallParser::JsonCallParser(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object()) continue;
    const auto name = tool["function"].find("name");
    if (name != tool["function"].end() && name->is_string()) tools_.insert(name->get<std::string>());
  }
}

void JsonCallParser::reset() {
  state_ = State::kText;
  held_.clear();
  value_ = value_end_ = 0;
  ticks_ = depth_ = 0;
  call_depth_ = 1;
  in_string_ = escaped_ = key_due_ = name_due_ = false;
}

void JsonCallParser::push(std::string_view text, std::vector<SpeechEvent>& events) {
  size_t begin = 0;  // of the text that passes
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (state_ == State::kText) {
      if (c == '`' && at_line_start_ && !tools_.empty()) {
        emit_text(text.substr(begin, i - begin), events);
        state_ = State::kOpening;
        held_ = c;
      }
      at_line_start_ = c == '\n';
      continue;
    }
    held_ += c;
    begin = i + 1;
    if (!take(c) || held_.size() > kMaxBlock) {
      give_up(events);
    } else if (ticks_ == 3) {
      if (!read_block(events)) emit_text(held_, events);
      reset();
      at_line_start_ = false;
    }
  }
  if (state_ == State::kText) emit_text(text.substr(begin), events);
}

/// What was held is text, save that a block may begin behind its fence.
void JsonCallParser::give_up(std::vector<SpeechEvent>& events) {
  const std::string held = std::exchange(held_, {});
  reset();
  emit_text(std::string_view(held).substr(0, 1), events);
  at_line_start_ = false;
  push(std::string_view(held).substr(1), events);
}

void JsonCallParser::finish(std::vector<SpeechEvent>& events) {
  while (state_ != State::kText) {
    if (state_ == State::kBehind && read_block(events)) return reset();
    give_up(events);
  }
}

/// False when the held text cannot become a call any more.
bool JsonCallParser::take(char c) {
  switch (state_) {
    case State::kText:
      return true;
    case State::kOpening:
      for (const std::string_view opener : kOpeners) {
        if (opener.starts_with(held_)) return true;
        if (!held_.starts_with(opener)) continue;
        state_ = State::kBefore;
        return take(c);
      }
      return false;
    case State::kBefore:
      if (is_space(c)) return true;
      if (c != '{' && c != '[') return false;
      value_ = held_.size() - 1;
      call_depth_ = c == '[' ? 2 : 1;
      state_ = State::kInside;
      return take_inside(c);
    case State::kInside:
      return take_inside(c);
    case State::kBehind:
      if (c == '`') {
        ++ticks_;
        return true;
      }
      return ticks_ == 0 && is_space(c);
  }
  return false;
}

bool JsonCallParser::take_inside(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      return end_string();
    }
    return true;
  }
  switch (c) {
    case '"':
      in_string_ = true;
      string_begin_ = held_.size();
      return depth_ >= call_depth_;
    case '{':
    case '[':
      if (++depth_ > kMaxDepth) return false;
      if (depth_ == call_depth_ && c == '[') return false;
      key_due_ = depth_ == call_depth_;
      return true;
    case '}':
    case ']':
      if (--depth_ == 0) {
        value_end_ = held_.size();
        state_ = State::kBehind;
      }
      return true;
    case ',':
      if (depth_ == call_depth_) key_due_ = true;
      return true;
    default:
      return depth_ >= call_depth_ || is_space(c);
  }
}

bool JsonCallParser::end_string() {
  if (depth_ != call_depth_) return true;
  const std::string_view text = std::string_view(held_).substr(string_begin_, held_.size() - 1 - string_begin_);
  if (std::exchange(key_due_, false)) {
    name_due_ = text == "name";
    return name_due_ || text == "arguments" || text == "parameters";
  }
  // Names that need escapes are looked at when the block is whole.
  return !std::exchange(name_due_, false) || tools_.contains(text) || text.find('\\') != text.npos;
}

bool JsonCallParser::read_block(std::vector<SpeechEvent>& events) const {
  const Json value = Json::parse(held_.begin() + static_cast<ptrdiff_t>(value_),
                                 held_.begin() + static_cast<ptrdiff_t>(value_end_), nullptr, false);
  const Json calls = value.is_object() ? Json::array({value}) : value;
  if (!calls.is_array() || calls.empty()) return false;
  std::vector<SpeechEvent> found;
  for (const Json& call : calls) {
    const Json* arguments = arguments_of(call);
    if (arguments == nullptr) return false;
    const auto name = call.find("name");
    if (name == call.end() || !name->is_string() || !tools_.contains(name->get_ref<const std::string&>())) return false;
    found.push_back({SpeechEvent::Kind::kToolCall, name->get<std::string>(),
                     arguments->dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  events.insert(events.end(), found.begin(), found.end());
  return true;
}

}  // namespace carat

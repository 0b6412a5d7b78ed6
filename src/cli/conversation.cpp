#include "cli/conversation.h"

#include "base/error.h"

namespace carat {

bool Conversation::has_system() const {
  return !messages_.empty() && messages_.front()["role"] == "system";
}

bool Conversation::empty() const {
  return messages_.size() == (has_system() ? 1u : 0u);
}

void Conversation::set_system(std::string text) {
  if (has_system()) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", std::move(text)}});
}

void Conversation::clear() {
  const auto keep = static_cast<std::ptrdiff_t>(has_system() ? 1 : 0);
  messages_.erase(messages_.begin() + keep, messages_.end());
}

void Conversation::add_user(std::string_view text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
}

size_t Conversation::last_user() const {
  for (size_t i = messages_.size(); i > 0; --i) {
    if (messages_[i - 1]["role"] == "user") return i - 1;
  }
  return messages_.size();
}

bool Conversation::drop_answer() {
  const size_t user = last_user();
  if (user == messages_.size()) return false;
  messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(user) + 1, messages_.end());
  return true;
}

bool Conversation::drop_turn() {
  if (!drop_answer()) return false;
  messages_.erase(messages_.size() - 1);
  return true;
}

void Conversation::parse(const std::string& text, const std::string& origin) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail("{} is not valid JSON", origin);
  if (json.is_object()) {
    if (!json.contains("messages")) fail("{} has no \"messages\"", origin);
    json = Json(json["messages"]);
  }
  if (!json.is_array()) fail("{} holds no array of messages", origin);
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_object() || !json[i].contains("role") || !json[i]["role"].is_string()) {
      fail("{}: message {} is not an object with a \"role\"", origin, i);
    }
  }
  messages_ = std::move(json);
}

std::string Conversation::dump(int indent) const {
  return messages_.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace carat

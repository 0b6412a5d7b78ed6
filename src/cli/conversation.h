// The messages of a conversation and the ways to change them.
#pragma once

#include <string>
#include <string_view>

#include "chat/chat.h"

namespace carat {

class Conversation {
 public:
  explicit Conversation(std::string system = {}) { set_system(std::move(system)); }

  /// An empty text removes the system message.
  void set_system(std::string text);
  /// Forgets everything but the system message.
  void clear();
  void add_user(std::string_view text);
  void add(Json message) { messages_.push_back(std::move(message)); }
  /// Removes what follows the last user message; false when there is no user message.
  bool drop_answer();
  /// Removes the last user message and what follows it; false when there is none.
  bool drop_turn();

  /// Replaces the messages. Throws Error when `text` is not a JSON array of messages, or an object with "messages".
  void parse(const std::string& text, const std::string& origin);
  /// As JSON, always valid UTF-8: what is not becomes U+FFFD.
  std::string dump(int indent = -1) const;

  bool empty() const;
  size_t size() const { return messages_.size(); }
  const Json& messages() const { return messages_; }

 private:
  bool has_system() const;
  size_t last_user() const;  // size() when there is none

  Json messages_ = Json::array();
};

}  // namespace carat

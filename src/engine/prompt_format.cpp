#include "engine/prompt_format.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string shipped_template(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf()) {
    return std::string(gguf->string("tokenizer.chat_template").value_or(""));
  }
  if (std::string text = read_text(checkpoint.path() / "chat_template.jinja"); !text.empty()) return text;
  for (const char* file : {"chat_template.json", "tokenizer_config.json"}) {
    const Json config = Json::parse(read_text(checkpoint.path() / file), nullptr, false);
    if (!config.is_object() || !config.contains("chat_template")) continue;
    const Json& shipped = config["chat_template"];
    if (shipped.is_string()) return shipped.get<std::string>();
    for (const Json& named : shipped) {  // several: [{"name": "default", "template": "…"}, …]
      if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
          named["template"].is_string()) {
        return named["template"].get<std::string>();
      }
    }
  }
  return "";
}

/// Marks the control tokens in every string of a message's content: text, the texts of parts, values of a tool's
/// result.
void mark_strings(const Tokenizer& tokenizer, Json& value) {
  if (value.is_string()) {
    value = tokenizer.mark_specials(value.get_ref<const std::string&>());
  } else if (value.is_structured()) {
    for (Json& element : value) mark_strings(tokenizer, element);
  }
}

std::vector<int> with_bos(const Tokenizer& tokenizer, std::vector<int> ids) {
  if (ids.empty() || ids.front() != tokenizer.bos_id()) ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

}  // namespace

ChatFormat chat_format_of(const Checkpoint& checkpoint) {
  return detect_chat_format(shipped_template(checkpoint), checkpoint.config().family == Family::kGemma4);
}

bool has_chat_template(const Checkpoint& checkpoint) {
  return !shipped_template(checkpoint).empty();
}

std::vector<int> stop_ids_of(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  return merged(checkpoint.stop_ids(), tokenizer.eos_ids());
}

std::vector<int> merged(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

std::string_view chat_format_name(ChatFormat format) {
  switch (format) {
    case ChatFormat::kGemma3:
      return "gemma3";
    case ChatFormat::kGemma4:
      return "gemma4";
    case ChatFormat::kGemma4Interleaved:
      break;
  }
  return "gemma4-interleaved";
}

std::optional<ChatFormat> find_chat_format(std::string_view name) {
  for (const ChatFormat format : {ChatFormat::kGemma3, ChatFormat::kGemma4, ChatFormat::kGemma4Interleaved}) {
    if (name == chat_format_name(format)) return format;
  }
  return std::nullopt;
}

std::vector<int> encode_conversation(const Tokenizer& tokenizer, ChatFormat format, Json messages, const Json& tools,
                                     const ChatOptions& options) {
  if (messages.is_array()) {
    for (Json& message : messages) {
      if (!message.is_object() || !message.contains("content")) continue;
      const auto role = message.find("role");
      if (role != message.end() && (*role == "assistant" || *role == "model"))
        continue;  // its own words, markers and all
      mark_strings(tokenizer, message["content"]);
    }
  }
  return with_bos(tokenizer, tokenizer.encode_marked(render_chat(format, messages, tools, options)));
}

std::vector<int> encode_with_bos(const Tokenizer& tokenizer, std::string_view text) {
  return with_bos(tokenizer, tokenizer.encode(text));
}

}  // namespace carat

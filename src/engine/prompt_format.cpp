#include "engine/prompt_format.h"

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
  const Json config = Json::parse(read_text(checkpoint.path() / "tokenizer_config.json"), nullptr, false);
  if (config.is_object() && config.contains("chat_template") && config["chat_template"].is_string()) {
    return config["chat_template"].get<std::string>();
  }
  return "";
}

}  // namespace

ChatFormat chat_format_of(const Checkpoint& checkpoint) {
  return detect_chat_format(shipped_template(checkpoint), checkpoint.config().family == Family::kGemma4);
}

bool has_chat_template(const Checkpoint& checkpoint) {
  return !shipped_template(checkpoint).empty();
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

std::vector<int> encode_with_bos(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int> ids = tokenizer.encode(text);
  if (ids.empty() || ids.front() != tokenizer.bos_id()) ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

}  // namespace carat

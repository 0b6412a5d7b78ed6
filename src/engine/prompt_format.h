// From a checkpoint's files to the form of its prompts.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "chat/chat.h"

namespace carat {

class Checkpoint;
class Tokenizer;

/// The turn format that the checkpoint's shipped template (chat_template.jinja, tokenizer_config.json or GGUF metadata)
/// asks for, or its family's current one when it ships none.
ChatFormat chat_format_of(const Checkpoint& checkpoint);
/// Whether it ships one. Models that were taught to converse do, pretrained ones do not.
bool has_chat_template(const Checkpoint& checkpoint);

/// "gemma3", "gemma4" or "gemma4-interleaved".
std::string_view chat_format_name(ChatFormat format);
/// The format of that name; nullopt for any other word.
std::optional<ChatFormat> find_chat_format(std::string_view name);

/// Ids that end generation: those of the configuration, the generation configuration and the tokenizer together.
/// Sorted.
std::vector<int> stop_ids_of(const Checkpoint& checkpoint, const Tokenizer& tokenizer);
/// All of both, sorted, each once.
std::vector<int> merged(std::vector<int> a, const std::vector<int>& b);

/// Ids of a conversation's prompt (render_chat), BOS exactly once. What users, systems and tools say is text: a control
/// token spelled in it stays letters and cannot end a turn or open one.
std::vector<int> encode_conversation(const Tokenizer& tokenizer, ChatFormat format, Json messages, const Json& tools,
                                     const ChatOptions& options);

/// Ids of `text` with control tokens parsed and BOS exactly once, at the front, whether or not the text begins with it.
std::vector<int> encode_with_bos(const Tokenizer& tokenizer, std::string_view text);

}  // namespace carat

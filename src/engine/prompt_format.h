// From a checkpoint's files to the form of its prompts.
#pragma once

#include <string_view>
#include <vector>

#include "chat/chat.h"

namespace carat {

class Checkpoint;
class Tokenizer;

/// The turn format that the checkpoint's shipped template (chat_template.jinja, tokenizer_config.json or GGUF metadata) asks for,
/// or its family's current one when it ships none.
ChatFormat chat_format_of(const Checkpoint& checkpoint);

/// Ids of `text` with control tokens parsed and BOS exactly once, at the front, whether or not the text begins with it.
std::vector<int> encode_with_bos(const Tokenizer& tokenizer, std::string_view text);

}  // namespace carat

// Tool declarations: a JSON schema in the words of Gemma 4.
#pragma once

#include <string>

#include "chat/chat.h"

namespace carat {

/// declaration:name{...} of one OpenAI function tool, without <|tool>. `interleaved` picks the field order of
/// ChatFormat::kGemma4Interleaved. Schemas are untrusted: whatever Jinja prints for a missing type, a list of types (a
/// Python list in capitals), $ref, anyOf or booleans is printed; where it would raise, a `required` that cannot be
/// looped over counts as an empty list, `properties` that is no object as an empty one, and a scalar type of array
/// items as a list of one. Throws Error when the tool has no function with a name.
std::string declare_tool(const Json& tool, bool interleaved);

}  // namespace carat

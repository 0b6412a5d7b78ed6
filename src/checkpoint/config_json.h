// config.json as a parsed document, for readers that need more of it than the ModelConfig. Include in .cpp files only.
#pragma once

#include "checkpoint/json.h"
#include "checkpoint/model_config.h"

namespace carat {

/// What parse_config_json does, for the root of a document that has been parsed already.
ModelConfig read_config(const JsonObject& root);

}  // namespace carat

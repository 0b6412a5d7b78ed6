// GGUF metadata -> ModelConfig.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/model_config.h"

namespace carat {

/// The tensors of all parts of a GGUF model by name.
using GgufTensors = std::map<std::string_view, const GgufTensor*>;

/// Reads the config of a gemma3 or gemma4 model. Some facts are in the tensors alone: the vocabulary (rows of
/// token_embd), which layers lack a value projection, the RoPE lanes of full layers (rope_freqs), whether the head is
/// tied. Throws Error for anything missing, contradictory or unsupported.
ModelConfig read_gguf_config(const GgufFile& file, const GgufTensors& tensors);

/// Token ids at which generation ends, as the metadata names them: eos, eot, eom.
std::vector<int> gguf_stop_ids(const GgufFile& file);

}  // namespace carat

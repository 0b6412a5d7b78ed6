// What keys and values depend on beside the tokens.
#pragma once

#include <string>
#include <string_view>

#include "carat/options.h"
#include "checkpoint/checkpoint.h"

namespace carat {

/// "carat 0.1.0, fast, 3f2a…": the release, the precision, and a digest of the model: its configuration as far as the
/// forward pass reads it, the name, format, shape and size of every tensor that it uses, and 64 bytes from the middle
/// of each matrix. A few pages of the files are read, whatever the size of the model. Threads, chunks and instruction
/// sets are no part of it: they do not show in results. With an adapter its fingerprint stands at the end.
std::string model_identity(const Checkpoint& checkpoint, Precision precision, std::string_view adapter = {});

}  // namespace carat

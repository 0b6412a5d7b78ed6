// The operations of the reference backend that have a file of their own.
#pragma once

#include "compute/device.h"

namespace carat::reference {

void finish_qkv(const QkvArgs& args);
void attention(const AttentionArgs& args);
void moe(const MoeArgs& args);

}  // namespace carat::reference

// Every reader, and the step from a format known at run time to its reader.
#pragma once

#include <utility>

#include "base/error.h"
#include "quant/affine.h"
#include "quant/gguf_blocks.h"
#include "quant/microscaling.h"
#include "quant/reader.h"

namespace carat {

/// Whether Reader<format> exists: all but the plain floats and kMxFp8.
constexpr bool has_reader(WeightFormat format) {
  return format != WeightFormat::kF32 && format != WeightFormat::kF16 && format != WeightFormat::kBF16 &&
         format != WeightFormat::kMxFp8;
}

/// Calls visitor(Reader<format>{}) and returns what it returns (one type for all readers).
/// Throws Error when the format has no reader.
template <typename Visitor>
decltype(auto) with_reader(WeightFormat format, Visitor&& visitor) {
  switch (format) {
    case WeightFormat::kAffine:
      return visitor(Reader<WeightFormat::kAffine>{});
    case WeightFormat::kMxFp4:
      return visitor(Reader<WeightFormat::kMxFp4>{});
    case WeightFormat::kNvFp4:
      return visitor(Reader<WeightFormat::kNvFp4>{});
    case WeightFormat::kQ4_0:
      return visitor(Reader<WeightFormat::kQ4_0>{});
    case WeightFormat::kQ4_1:
      return visitor(Reader<WeightFormat::kQ4_1>{});
    case WeightFormat::kQ5_0:
      return visitor(Reader<WeightFormat::kQ5_0>{});
    case WeightFormat::kQ5_1:
      return visitor(Reader<WeightFormat::kQ5_1>{});
    case WeightFormat::kQ8_0:
      return visitor(Reader<WeightFormat::kQ8_0>{});
    case WeightFormat::kQ2_K:
      return visitor(Reader<WeightFormat::kQ2_K>{});
    case WeightFormat::kQ3_K:
      return visitor(Reader<WeightFormat::kQ3_K>{});
    case WeightFormat::kQ4_K:
      return visitor(Reader<WeightFormat::kQ4_K>{});
    case WeightFormat::kQ5_K:
      return visitor(Reader<WeightFormat::kQ5_K>{});
    case WeightFormat::kQ6_K:
      return visitor(Reader<WeightFormat::kQ6_K>{});
    case WeightFormat::kIQ4_NL:
      return visitor(Reader<WeightFormat::kIQ4_NL>{});
    case WeightFormat::kIQ4_XS:
      return visitor(Reader<WeightFormat::kIQ4_XS>{});
    case WeightFormat::kGgufMxFp4:
      return visitor(Reader<WeightFormat::kGgufMxFp4>{});
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kMxFp8:
      break;
  }
  fail("the weight format {} has no integer codes to read", format_name(format));
}

}  // namespace carat

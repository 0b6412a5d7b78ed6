#include "checkpoint/ggml_types.h"

#include <algorithm>
#include <array>

namespace carat {

namespace {

using F = WeightFormat;

// Types without a reader are listed too: their sizes let a file that holds one be checked and shown. Numbers that are
// missing here (4, 5, 31-33, 36-38) belonged to formats that ggml has withdrawn.
constexpr std::array kTypes = {
    GgmlType{0, "F32", 1, 4, F::kF32},
    GgmlType{1, "F16", 1, 2, F::kF16},
    GgmlType{2, "Q4_0", 32, 18, F::kQ4_0},
    GgmlType{3, "Q4_1", 32, 20, F::kQ4_1},
    GgmlType{6, "Q5_0", 32, 22, F::kQ5_0},
    GgmlType{7, "Q5_1", 32, 24, F::kQ5_1},
    GgmlType{8, "Q8_0", 32, 34, F::kQ8_0},
    GgmlType{9, "Q8_1", 32, 36, std::nullopt},
    GgmlType{10, "Q2_K", 256, 84, F::kQ2_K},
    GgmlType{11, "Q3_K", 256, 110, F::kQ3_K},
    GgmlType{12, "Q4_K", 256, 144, F::kQ4_K},
    GgmlType{13, "Q5_K", 256, 176, F::kQ5_K},
    GgmlType{14, "Q6_K", 256, 210, F::kQ6_K},
    GgmlType{15, "Q8_K", 256, 292, std::nullopt},
    GgmlType{16, "IQ2_XXS", 256, 66, std::nullopt},
    GgmlType{17, "IQ2_XS", 256, 74, std::nullopt},
    GgmlType{18, "IQ3_XXS", 256, 98, std::nullopt},
    GgmlType{19, "IQ1_S", 256, 50, std::nullopt},
    GgmlType{20, "IQ4_NL", 32, 18, F::kIQ4_NL},
    GgmlType{21, "IQ3_S", 256, 110, std::nullopt},
    GgmlType{22, "IQ2_S", 256, 82, std::nullopt},
    GgmlType{23, "IQ4_XS", 256, 136, F::kIQ4_XS},
    GgmlType{24, "I8", 1, 1, std::nullopt},
    GgmlType{25, "I16", 1, 2, std::nullopt},
    GgmlType{26, "I32", 1, 4, std::nullopt},
    GgmlType{27, "I64", 1, 8, std::nullopt},
    GgmlType{28, "F64", 1, 8, std::nullopt},
    GgmlType{29, "IQ1_M", 256, 56, std::nullopt},
    GgmlType{30, "BF16", 1, 2, F::kBF16},
    GgmlType{34, "TQ1_0", 256, 54, std::nullopt},
    GgmlType{35, "TQ2_0", 256, 66, std::nullopt},
    GgmlType{39, "MXFP4", 32, 17, F::kGgufMxFp4},
    GgmlType{40, "NVFP4", 64, 36, std::nullopt},
    GgmlType{41, "Q1_0", 128, 18, std::nullopt},
    GgmlType{42, "Q2_0", 64, 18, std::nullopt},
};

}  // namespace

const GgmlType* find_ggml_type(uint32_t number) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const GgmlType& t) { return t.number == number; });
  return found == kTypes.end() ? nullptr : &*found;
}

}  // namespace carat

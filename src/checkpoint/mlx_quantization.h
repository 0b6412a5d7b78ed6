// The quantisation block of an MLX config.json: which module is packed how.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/json.h"
#include "quant/matrix.h"

namespace carat {

/// How one module's weights are packed.
struct MlxPacking {
  WeightFormat format = WeightFormat::kAffine;  // or one of the three microscaling formats
  int bits = 0;
  int group = 0;
};

/// "affine 4-bit g64" … for error messages.
std::string describe(const MlxPacking& packing);

/// True when MLX can write that combination.
bool is_valid(const MlxPacking& packing);

class MlxQuantization {
 public:
  /// No quantisation at all.
  MlxQuantization() = default;
  /// Reads `quantization`, or `quantization_config` when there is none. Throws Error for other methods (gptq, awq …).
  explicit MlxQuantization(const JsonObject& config);

  /// What the config says about one module in particular, keyed as in the file or by any other prefix.
  struct Entry {
    bool packed = true;  // false: "left as it is"
    MlxPacking packing;
  };
  std::optional<Entry> entry(const std::string& path, const std::string& canonical) const;
  /// What it says about all others.
  const std::optional<MlxPacking>& standard() const { return standard_; }

 private:
  std::optional<MlxPacking> standard_;
  std::map<std::string, Entry> by_path_;
  std::map<std::string, Entry> by_canonical_;
};

}  // namespace carat

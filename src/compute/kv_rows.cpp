#include "compute/kv_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/half.h"

namespace carat {
namespace {

using Kind = KvFormat::Kind;

// The positive halves of the best points for a unit normal: each is the mean of the normal between the boundaries half
// way to its neighbours.
constexpr std::array kTwoBits = {0.45278f, 1.510418f};
constexpr std::array kThreeBits = {0.2450942f, 0.7560053f, 1.343909f, 2.151946f};
constexpr std::array kFourBits = {0.128395f, 0.3880483f, 0.6567591f, 0.9423405f,
                                  1.256231f, 1.618046f,  2.069017f,  2.73259f};
constexpr std::array kFiveBits = {0.06588966f, 0.1980518f, 0.3313783f, 0.4666995f, 0.6049336f, 0.7471357f,
                                  0.8945651f,  1.048783f,  1.211804f,  1.38634f,   1.576228f,  1.787233f,
                                  2.028728f,   2.317739f,  2.69112f,   3.260732f};
constexpr std::array kEightBits = {
    0.008446193f, 0.02533938f, 0.04223498f, 0.0591346f, 0.07603986f, 0.09295236f, 0.1098737f, 0.1268056f, 0.1437496f,
    0.1607073f,   0.1776805f,  0.1946708f,  0.2116798f, 0.2287092f,  0.2457608f,  0.2628362f, 0.2799372f, 0.2970656f,
    0.314223f,    0.3314114f,  0.3486324f,  0.365888f,  0.38318f,    0.4005102f,  0.4178806f, 0.4352932f, 0.4527499f,
    0.4702527f,   0.4878036f,  0.5054048f,  0.5230583f, 0.5407663f,  0.558531f,   0.5763547f, 0.5942396f, 0.6121881f,
    0.6302026f,   0.6482855f,  0.6664394f,  0.6846668f, 0.7029703f,  0.7213526f,  0.7398166f, 0.758365f,  0.7770008f,
    0.795727f,    0.8145467f,  0.833463f,   0.8524793f, 0.8715989f,  0.8908253f,  0.9101621f, 0.929613f,  0.9491818f,
    0.9688726f,   0.9886894f,  1.008636f,   1.028718f,  1.048939f,   1.069304f,   1.089818f,  1.110486f,  1.131313f,
    1.152305f,    1.173468f,   1.194808f,   1.21633f,   1.238042f,   1.25995f,    1.282062f,  1.304384f,  1.326925f,
    1.349694f,    1.372698f,   1.395946f,   1.419449f,  1.443217f,   1.467259f,   1.491587f,  1.516213f,  1.54115f,
    1.56641f,     1.592008f,   1.617958f,   1.644276f,  1.67098f,    1.698087f,   1.725617f,  1.753589f,  1.782027f,
    1.810953f,    1.840393f,   1.870375f,   1.900928f,  1.932084f,   1.963878f,   1.996348f,  2.029536f,  2.063485f,
    2.098247f,    2.133874f,   2.170428f,   2.207975f,  2.24659f,    2.286354f,   2.327362f,  2.369717f,  2.413539f,
    2.458962f,    2.506143f,   2.555259f,   2.606521f,  2.660174f,   2.716508f,   2.775871f,  2.838686f,  2.905473f,
    2.976882f,    3.053742f,   3.137133f,   3.2285f,    3.329848f,   3.444072f,   3.575588f,  3.731666f,  3.925638f,
    4.186595f,    4.603536f};

/// 2^bits points, ascending, repeated to 16.
template <size_t Half>
std::vector<float> both_halves(const std::array<float, Half>& positive) {
  std::vector<float> points(std::max<size_t>(16, 2 * Half));
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t code = i % (2 * Half);
    points[i] = code < Half ? -positive[Half - 1 - code] : positive[code - Half];
  }
  return points;
}

std::vector<float> integers(int bits) {
  std::vector<float> points;
  for (int i = 0; i < std::max(16, 1 << bits); ++i) points.push_back(static_cast<float>(i % (1 << bits)));
  return points;
}

size_t code_bytes(KvFormat format, int head_dim) {
  return static_cast<size_t>(head_dim) * format.bits / 8;
}

/// Of operands that are no numbers the second one, as the vector units have it.
float max(float a, float b) {
  return a > b ? a : b;
}
float min(float a, float b) {
  return a < b ? a : b;
}

/// The sum of 16-lane vectors: lanes first, then folded by halves.
template <typename F>
float lane_sum(int64_t n, const F& term) {
  std::array<float, 16> lanes{};
  for (int64_t i = 0; i < n; ++i) lanes[static_cast<size_t>(i % 16)] = term(i, lanes[static_cast<size_t>(i % 16)]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

void put_half(std::byte* at, float value) {
  const uint16_t half = f32_to_f16(value);
  std::memcpy(at, &half, sizeof half);
}
float half_at(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return f16_to_f32(half);
}

void put_code(std::byte* codes, int bits, int64_t index, uint32_t code) {
  for (int64_t bit = index * bits, end = bit + bits; bit < end; ++bit, code >>= 1) {
    codes[bit / 8] |= static_cast<std::byte>((code & 1u) << (bit % 8));
  }
}
uint32_t code_at(const std::byte* codes, int bits, int64_t index) {
  uint32_t code = 0;
  for (int64_t i = 0; i < bits; ++i) {
    const int64_t bit = index * bits + i;
    code |= (std::to_integer<uint32_t>(codes[bit / 8]) >> (bit % 8) & 1u) << i;
  }
  return code;
}

/// Spread groups: the ends of the group's range are codes. Affine ones, as MLX has it: the end that is farther from
/// zero is a code, and so is zero where it lies within. Scale and bias are rounded to float16 before the codes are
/// chosen, so that codes make good for that.
void store_affine_group(std::span<const float> x, KvFormat format, int64_t first, std::byte* codes, std::byte* scale_at,
                        std::byte* bias_at) {
  const float levels = static_cast<float>((1 << format.bits) - 1);
  float high = -INFINITY;
  float low = INFINITY;
  for (const float v : x) {
    high = max(v, high);
    low = min(v, low);
  }
  high = min(max(high, -kLargestKvScale), kLargestKvScale);
  low = min(max(low, -kLargestKvScale), kLargestKvScale);
  const float step = max((high - low) / levels, 1e-7f);
  if (format.kind == Kind::kSpread) {
    put_half(scale_at, step);
    put_half(bias_at, low + 0.0f);  // no negative zero
  } else {
    const bool from_below = std::fabs(low) > std::fabs(high);
    const float edge = from_below ? low : high;
    const float signed_step = from_below ? step : 0.0f - step;
    const float edge_code = std::nearbyint(edge / signed_step);
    const bool has_edge = std::fabs(edge_code) > 0.5f;
    put_half(scale_at, has_edge ? edge / edge_code : signed_step);
    put_half(bias_at, has_edge ? edge : 0.0f);
  }
  const float inverse = 1.0f / half_at(scale_at);
  const float bias = half_at(bias_at);
  for (size_t i = 0; i < x.size(); ++i) {
    const float code = min(max(std::nearbyint((x[i] - bias) * inverse), 0.0f), levels);
    put_code(codes, format.bits, first + static_cast<int64_t>(i), static_cast<uint32_t>(code));
  }
}

/// The nearest points to the group over its root mean square; then the scale that fits them best.
void store_rotated_group(std::span<const float> x, KvFormat format, int64_t first, std::byte* codes,
                         std::byte* scale_at) {
  const float* points = kv_codebook(format);
  const auto n = static_cast<int64_t>(x.size());
  const auto at = [&](int64_t i) { return x[static_cast<size_t>(i)]; };
  const float mean =
      lane_sum(n, [&](int64_t i, float sum) { return std::fma(at(i), at(i), sum); }) / static_cast<float>(n);
  const float inverse = mean > 1e-30f ? 1.0f / std::sqrt(mean) : 0.0f;
  std::vector<float> chosen;
  for (int64_t i = 0; i < n; ++i) {
    const float z = at(i) * inverse;
    uint32_t code = 0;
    while (code + 1 < (1u << format.bits) && z > 0.5f * (points[code] + points[code + 1])) ++code;
    put_code(codes, format.bits, first + i, code);
    chosen.push_back(points[code]);
  }
  const auto point = [&](int64_t i) { return chosen[static_cast<size_t>(i)]; };
  const float product = lane_sum(n, [&](int64_t i, float sum) { return std::fma(at(i), point(i), sum); });
  const float square = lane_sum(n, [&](int64_t i, float sum) { return std::fma(point(i), point(i), sum); });
  put_half(scale_at, min(max(product / square, 0.0f), kLargestKvScale));
}

}  // namespace

size_t kv_row_bytes(KvFormat format, int head_dim) {
  const auto width = static_cast<size_t>(head_dim);
  switch (format.kind) {
    case Kind::kFloat32:
      return 4 * width;
    case Kind::kFloat16:
    case Kind::kBfloat16:
      return 2 * width;
    case Kind::kAffine:
    case Kind::kSpread:
      return code_bytes(format, head_dim) + 4 * (width / format.group);
    case Kind::kRotated:
      return code_bytes(format, head_dim) + 2 * (width / format.group);
  }
  return 0;
}

KvFormat fit_kv_format(KvFormat format, int head_dim) {
  if (format == KvFormat::kF32 || format == KvFormat::kF16 || format == KvFormat::kBF16) return format;
  const std::string name = kv_format_name(format);
  if ((format.group != 16 && format.group != 32 && format.group != 64) || kv_codebook(format) == nullptr) {
    fail("there is no format {} of keys and values: {} bits in groups of {}", name, format.bits, format.group);
  }
  if (head_dim % 16 != 0 || head_dim < 16 || head_dim > kMaxCodedHead) {
    fail("keys and values cannot be stored as {}: heads are {} wide; expected a multiple of 16 up to {}", name,
         head_dim, kMaxCodedHead);
  }
  if (format.kind == Kind::kRotated && !std::has_single_bit(static_cast<unsigned>(head_dim))) {
    fail("values cannot be stored as {}: heads are {} wide; a rotation needs a power of two", name, head_dim);
  }
  while (head_dim % format.group != 0) format.group /= 2;
  return format;
}

const float* kv_codebook(KvFormat format) {
  static const std::map<std::pair<Kind, int>, std::vector<float>> kTables = [] {
    std::map<std::pair<Kind, int>, std::vector<float>> tables;
    for (const Kind kind : {Kind::kAffine, Kind::kSpread}) {
      for (int bits = 2; bits <= 8; ++bits) tables[{kind, bits}] = integers(bits);
    }
    tables[{Kind::kRotated, 2}] = both_halves(kTwoBits);
    tables[{Kind::kRotated, 3}] = both_halves(kThreeBits);
    tables[{Kind::kRotated, 4}] = both_halves(kFourBits);
    tables[{Kind::kRotated, 5}] = both_halves(kFiveBits);
    tables[{Kind::kRotated, 8}] = both_halves(kEightBits);
    return tables;
  }();
  const auto table = kTables.find({format.kind, format.bits});
  return table != kTables.end() ? table->second.data() : nullptr;
}

const float* kv_signs() {
  static const std::array<float, kMaxCodedHead> kSigns = [] {
    std::array<float, kMaxCodedHead> signs;
    for (uint64_t i = 0; i < signs.size(); ++i) {  // splitmix64
      uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      signs[i] = ((z ^ (z >> 31)) & 1u) != 0 ? 1.0f : -1.0f;
    }
    return signs;
  }();
  return kSigns.data();
}

void rotate_kv_head(std::span<float> x, bool back) {
  const float* signs = kv_signs();
  const float norm = 1.0f / std::sqrt(static_cast<float>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) x[i] *= back ? 1.0f : signs[i];
  for (size_t distance = 1; distance < x.size(); distance *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * norm * (back ? signs[i] : 1.0f);
}

void spread_kv_groups(std::span<float> x, int group) {
  const auto width = static_cast<size_t>(group);
  const float norm = 1.0f / std::sqrt(static_cast<float>(group));
  for (size_t distance = 1; distance < width; distance *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  for (float& value : x) value *= norm;
}

void store_kv_row(std::span<const float> x, KvFormat format, std::byte* row) {
  const auto width = static_cast<int>(x.size());
  if (format.kind == Kind::kFloat32) {
    std::memcpy(row, x.data(), x.size_bytes());
    return;
  }
  if (format.group == 0) {
    for (const float value : x) {
      const uint16_t half = format.kind == Kind::kFloat16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(row, &half, sizeof half);
      row += sizeof half;
    }
    return;
  }
  std::memset(row, 0, kv_row_bytes(format, width));
  std::byte* scales = row + code_bytes(format, width);
  const size_t groups = x.size() / format.group;
  std::vector<float> head(x.begin(), x.end());
  if (format.kind == Kind::kRotated) rotate_kv_head(head, false);
  if (format.kind == Kind::kSpread) spread_kv_groups(head, format.group);
  for (size_t g = 0; g < groups; ++g) {
    const auto first = static_cast<int64_t>(g * format.group);
    const std::span<const float> group = std::span(head).subspan(g * format.group, format.group);
    if (format.kind == Kind::kRotated) {
      store_rotated_group(group, format, first, row, scales + 2 * g);
    } else {
      store_affine_group(group, format, first, row, scales + 2 * g, scales + 2 * (groups + g));
    }
  }
}

void load_kv_row(const std::byte* row, KvFormat format, std::span<float> x) {
  const std::byte* scales = row + code_bytes(format, static_cast<int>(x.size()));
  const size_t group = std::max<size_t>(format.group, 1);  // floats have none
  const size_t groups = x.size() / group;
  const float* points = kv_codebook(format);
  for (size_t i = 0; i < x.size(); ++i) {
    if (format.kind == Kind::kFloat32) {
      std::memcpy(&x[i], row + 4 * i, 4);
    } else if (format.kind == Kind::kFloat16) {
      x[i] = half_at(row + 2 * i);
    } else if (format.kind == Kind::kBfloat16) {
      uint16_t half;
      std::memcpy(&half, row + 2 * i, sizeof half);
      x[i] = bf16_to_f32(half);
    } else {
      const size_t g = i / group;
      const float bias = format.kind != Kind::kRotated ? half_at(scales + 2 * (groups + g)) : 0.0f;
      x[i] = std::fma(points[code_at(row, format.bits, static_cast<int64_t>(i))], half_at(scales + 2 * g), bias);
    }
  }
}

}  // namespace carat

// Seeded JSON values for the tests of the chat room.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>

#include "chat/chat.h"

namespace carat {

/// Values whose keys can stand unquoted in Gemma's syntax.
class RandomJson {
 public:
  explicit RandomJson(uint32_t seed) : random_(seed) {}

  Json object(int depth) {
    Json out = Json::object();
    for (size_t n = random_() % 5; n > 0; --n) out[key()] = value(depth - 1);
    return out;
  }

  Json value(int depth) {
    switch (random_() % (depth > 0 ? 8 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return random_() % 2 == 0;
      case 2:
        return integer();
      case 3:
        return real();
      case 4:
      case 5:
        return text();
      case 6:
        return object(depth);
      default: {
        Json out = Json::array();
        for (size_t n = random_() % 4; n > 0; --n) out.push_back(value(depth - 1));
        return out;
      }
    }
  }

  std::string text() {
    static constexpr const char* kPieces[] = {"a", "Paris", " ",         "\n",   "\"", "'",    "\\", "{",
                                              "}", "[",     "]",         ":",    ",",  "日本", "🎉",  "call:f{",
                                              "<", "|>",    "<|channel", "null", "1",  "\t"};
    std::string out;
    for (size_t n = random_() % 7; n > 0; --n) out += kPieces[random_() % std::size(kPieces)];
    return out;
  }

 private:
  std::string key() {
    static constexpr const char* kKeys[] = {"a", "B", "city", "two words", "x-1", "ключ", "1", "it's", "$ref", "a.b"};
    return kKeys[random_() % std::size(kKeys)];
  }

  Json integer() {
    switch (random_() % 4) {
      case 0:
        return std::numeric_limits<uint64_t>::max();
      case 1:
        return std::numeric_limits<int64_t>::min();
      default:
        return static_cast<int64_t>(random_() % 2001) - 1000;
    }
  }

  Json real() {
    static constexpr double kReals[] = {
        0.0, -0.0, 1.0, 1.5, 1e20, 1e16, 1e15, 1e-5, 1e-4, 5e-324, 1.7976931348623157e308};
    if (random_() % 2 == 0) return kReals[random_() % std::size(kReals)];
    return std::ldexp(static_cast<double>(random_()), static_cast<int>(random_() % 200) - 100);
  }

  std::mt19937 random_;
};

/// The value as JSON text with its keys sorted: equal for equal values of equal types.
inline std::string sorted_text(const Json& value) {
  return nlohmann::json::parse(value.dump()).dump();
}

}  // namespace carat

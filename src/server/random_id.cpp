#include "server/random_id.h"

#include <random>

namespace carat::server {

std::string random_id(std::string_view prefix, size_t length) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::uniform_int_distribution<size_t> any(0, kLetters.size() - 1);
  std::string id(prefix);
  id.reserve(prefix.size() + length);
  for (size_t i = 0; i < length; ++i) id += kLetters[any(generator)];
  return id;
}

}  // namespace carat::server

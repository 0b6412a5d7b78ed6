// Errors are sentences: they name the file, tensor, field or flag, what was found and what was expected.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace carat {

/// Every failure that a file, a prompt, a flag or the machine can cause. `what()` is one sentence for a person.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with the formatted sentence.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace carat

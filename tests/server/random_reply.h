// Replies by chance: what any sequence of events must survive.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "fakes.h"

namespace carat::server {

/// Up to a dozen batches of events, empty ones and empty texts among them; calls have the indices 0, 1, 2, …
inline std::vector<std::vector<ReplyEvent>> random_reply(std::mt19937& random) {
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  static const std::vector<std::string> kTexts = {"",   " ",  "a",         "\n",   "data: x\n\n",
                                                  "\"", "\\", "h\xc3\xa9", "\xff", "{}"};
  static const std::vector<std::string> kArguments = {"{}", R"({"a":[1,{"b":"}"}],"n":null})",
                                                      R"({"s":"h\u00e9 \"x\"\n"})"};
  std::vector<std::vector<ReplyEvent>> batches(static_cast<size_t>(below(12)));
  int calls = 0;
  for (auto& batch : batches) {
    for (int i = below(4); i > 0; --i) {
      const int kind = below(3);
      const std::string& words = kTexts[static_cast<size_t>(below(static_cast<int>(kTexts.size())))];
      if (kind == 0) batch.push_back(reasoning(words));
      if (kind == 1) batch.push_back(text(words));
      if (kind == 2) {
        batch.push_back(tool_call(calls, "call_" + std::to_string(calls), "tool_" + std::to_string(below(2)),
                                  kArguments[static_cast<size_t>(below(3))]));
        ++calls;
      }
    }
  }
  return batches;
}

inline EndReason random_end(std::mt19937& random) {
  static constexpr EndReason kReasons[] = {EndReason::kStop, EndReason::kStopSequence, EndReason::kLength,
                                           EndReason::kToolCalls};
  return kReasons[std::uniform_int_distribution<int>(0, 3)(random)];
}

}  // namespace carat::server

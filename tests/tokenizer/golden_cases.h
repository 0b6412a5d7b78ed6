// Texts with the ids that Hugging Face's `tokenizers` computes (tools/make_tokenizer_goldens.py).
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace carat {

inline std::string test_path(const std::string& name) {
  return std::string(CARAT_TEST_DATA) + "/tokenizer/" + name;
}

inline std::string read_test_file(const std::string& name) {
  std::ifstream file(test_path(name), std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + test_path(name));
  return {std::istreambuf_iterator<char>(file), {}};
}

struct GoldenCase {
  std::string text;
  std::vector<int> ids;          // Specials::kParse
  std::vector<int> ids_as_text;  // Specials::kText
};

inline std::vector<GoldenCase> golden_cases(const std::string& name) {
  std::vector<GoldenCase> cases;
  const auto json = nlohmann::json::parse(read_test_file(name));
  for (const auto& entry : json.at("cases")) {
    cases.push_back(
        {entry.at(0).get<std::string>(), entry.at(1).get<std::vector<int>>(), entry.at(2).get<std::vector<int>>()});
  }
  if (cases.size() < 100) throw std::runtime_error(name + " has too few cases to prove anything");
  return cases;
}

}  // namespace carat

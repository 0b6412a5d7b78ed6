// Options that several verbs share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "carat/engine.h"

namespace CLI {
class App;
}

namespace carat {

/// MODEL and how to run it.
struct ModelFlags {
  std::string model;
  int threads = 0;
  std::string precision = "fast";
  std::string kv;  // empty: by precision
  int chunk = 512;

  EngineOptions engine_options() const;
};

/// Adds the positional MODEL and --threads, --precision, --kv, --chunk.
void add_model_flags(CLI::App& verb, ModelFlags& flags);
/// Adds MODEL alone.
void add_model_argument(CLI::App& verb, std::string& model);

/// Sampling flags; unset ones keep the model's recommendation (or greedy).
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, xtc_probability, xtc_threshold;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k, repetition_context, presence_context, frequency_context;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID:BIAS"
  bool greedy = false;
  bool hlg = false;
  std::optional<float> hlg_width, hlg_shoulder, hlg_toe, hlg_pivot_offset;

  /// Throws Error naming the flag whose value is malformed. Without --seed every call draws a fresh one.
  SamplingParams resolve(SamplingParams recommended) const;
};

void add_sampling_flags(CLI::App& verb, SamplingFlags& flags);

/// Examples under a verb's help: "carat generate …" lines.
void add_examples(CLI::App& verb, const std::string& examples);

/// The whole of a file, or of standard input for "-". Throws Error.
std::string read_input(const std::string& path);

/// Token ids separated by spaces, commas or line breaks. `origin` names them in errors.
std::vector<int> parse_ids(const std::string& text, const std::string& origin);

}  // namespace carat

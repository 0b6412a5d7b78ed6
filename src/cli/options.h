// Options that several verbs share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "carat/engine.h"
#include "sampling/sampling_choice.h"

namespace CLI {
class App;
}

namespace carat {

/// The command line asks for something that cannot be: main exits with 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// --kv and its kin.
struct KvFlags {
  std::string all, k, v;  // names; empty where not given
  std::string config;     // a kv_config.json
  std::optional<int> recent;

  /// nullopt when nothing is asked for. Throws UsageError for what cannot be, Error for a file that cannot be read.
  std::optional<KvChoice> choice() const;
  /// Sets what the options have of keys and values. Throws like choice().
  void apply(EngineOptions& options) const;
};

void add_kv_flags(CLI::App& verb, KvFlags& flags);

/// MODEL and how to run it.
struct ModelFlags {
  std::string model;
  int threads = 0;
  std::string precision = "fast";
  KvFlags kv;
  int chunk = 512;
  std::vector<std::string> adapters;

  EngineOptions engine_options() const;
};

/// Adds the positional MODEL and --threads, --precision, --kv and its kin, --chunk.
void add_model_flags(CLI::App& verb, ModelFlags& flags);
/// Adds --adapter.
void add_adapter_flag(CLI::App& verb, std::vector<std::string>& adapters);
/// Adds MODEL alone.
void add_model_argument(CLI::App& verb, std::string& model);

/// Sampling flags; unset ones keep the model's recommendation (or greedy).
struct SamplingFlags {
  SamplingChoice values;                // of the flags that have one; hlg and logit_bias are below
  std::vector<std::string> logit_bias;  // "ID:BIAS"
  bool greedy = false;
  HlgParams hlg;

  /// What was chosen. Throws UsageError naming the value that is malformed or out of range.
  SamplingChoice choice() const;
  /// The recommendation with what was chosen. Without --seed every call draws a fresh one. Throws like choice().
  SamplingParams resolve(SamplingParams recommended) const;
};

void add_sampling_flags(CLI::App& verb, SamplingFlags& flags);

/// Examples under a verb's help: "carat generate …" lines.
void add_examples(CLI::App& verb, const std::string& examples);

/// The whole of a file, or of standard input for "-". Throws Error, and UsageError rather than wait for a person to
/// type at a terminal: `what` ("the prompt") should have come in another way.
std::string read_input(const std::string& path, const std::string& what = "the input");

/// `text` when it was given, else the file when one was named, else standard input. Both together are a UsageError.
std::string text_input(const std::optional<std::string>& text, const std::string& file, const std::string& what);

/// Token ids separated by spaces, commas or line breaks. `origin` names them in errors.
std::vector<int> parse_ids(const std::string& text, const std::string& origin);

}  // namespace carat

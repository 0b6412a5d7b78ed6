// carat's C++ interface: load a Gemma model, turn text into tokens, generate.
//
//   carat::Engine engine = carat::Engine::load("gemma-3-270m.gguf");
//   carat::GenerateRequest request;
//   request.prompt = engine.encode("Once upon a time");
//   engine.generate(request, [](const carat::Piece& piece) { std::cout << piece.text; return true; });
//
// Failures throw carat::Error (a std::runtime_error whose what() is one sentence).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carat/options.h"
#include "carat/sampling.h"

namespace carat {

struct GenerateRequest {
  std::vector<int> prompt;        // token ids, BOS included (encode and render_chat see to that); not empty
  SamplingParams sampling;        // default: greedy
  int max_tokens = 256;           // >= 0
  std::vector<std::string> stop;  // generation ends before the first of these texts
  std::vector<int> stop_tokens;   // end generation beside the model's own stop tokens, never instead of them
  bool show_specials = false;     // control tokens ("<end_of_turn>") appear in the text
  /// Prompt tokens computed so far, after each chunk. May throw to give up: generate lets it pass and can be called
  /// again.
  std::function<void(int64_t done, int64_t total)> on_prefill = {};
};

/// One generated token.
struct Piece {
  int token = 0;  // -1: no token, only text that had been held back until the end
  std::string_view
      text;              // what may be shown now: whole UTF-8 characters, possibly none, possibly of earlier tokens too
  float logprob = 0.0f;  // with sampling.logprobs
  std::span<const TokenLogprob> top;
};

enum class FinishReason : uint8_t {
  kStopToken,
  kStopText,
  kMaxTokens,
  kContext,    // the model's context is full
  kCancelled,  // the callback returned false
};

struct GenerateResult {
  std::vector<int> tokens;  // without the stop token
  std::string text;
  FinishReason finish = FinishReason::kMaxTokens;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt: their keys and values were cached
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;  // after the first token
};

/// The cache of earlier prompts. What continues in place is not counted as a hit.
struct PrefixCacheStats {
  size_t entries = 0;
  size_t bytes = 0;
  size_t max_bytes = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t tokens_reused = 0;
};

struct ChatRequest {
  std::string messages;  // JSON array in the OpenAI shape: [{"role": "user", "content": "Hello"}, …]
  std::string tools;     // JSON array of function tools; empty for none
  std::optional<bool> thinking = std::nullopt;  // default: as the model's template says (off)
};

/// A model ready to generate. One call at a time: not thread-safe; moves are cheap.
class Engine {
 public:
  /// `model` is a directory with config.json and safetensors, or a .gguf file; its files stay mapped. Throws Error when
  /// they are missing, damaged or unsupported, or when an adapter does not fit the model.
  static Engine load(const std::filesystem::path& model, const EngineOptions& options = {});

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  /// Token ids of a text to be continued, BOS first. Control tokens written in the text are read as such.
  std::vector<int> encode(std::string_view text) const;
  /// Token ids of a conversation, ready for the model's answer.
  /// What users, systems and tools say is text: control tokens spelled in it do not count as such.
  std::vector<int> encode_chat(const ChatRequest& chat) const;
  /// The prompt text of a conversation.
  std::string render_chat(const ChatRequest& chat) const;
  std::string decode(const std::vector<int>& ids) const;

  /// Generates until a stop token, a stop text, max_tokens or the end of the context. `on_piece` is called once a token
  /// and may return false to end generation. The same request gives the same result whatever ran before. A prompt that
  /// continues the previous request, or begins like an earlier one (EngineOptions::prefix_cache_bytes), reuses its keys
  /// and values. Throws Error for an empty or too long prompt and bad parameters.
  GenerateResult generate(const GenerateRequest& request, const std::function<bool(const Piece&)>& on_piece = {});

  /// Writes the keys and values of the last request's prompt and answer to a file, for a later load_prompt_cache.
  /// Whatever happens, `file` is the old file or the new one. Does nothing when nothing has been computed. Throws Error
  /// when the file cannot be written.
  void save_prompt_cache(const std::filesystem::path& file);
  /// Goes on from there: prompts that begin like it reuse its keys and values. Returns its number of tokens. Throws
  /// Error, and changes nothing, when the file is missing, damaged, or of another model, adapter, precision or cache
  /// format.
  int64_t load_prompt_cache(const std::filesystem::path& file);
  PrefixCacheStats prefix_cache() const;

  /// The id of a vocabulary piece, such as "<end_of_turn>"; nullopt when the vocabulary has none of that name.
  std::optional<int> token_id(std::string_view piece) const;
  /// The turn format of encode_chat: "gemma3", "gemma4" or "gemma4-interleaved".
  std::string_view chat_format() const;
  /// Whether the model's files ship a chat template. Pretrained models do not: they continue texts and cannot converse.
  bool has_chat_template() const;

  int context_length() const;
  int vocab_size() const;
  /// Ids that end generation: those of the configuration, the generation configuration and the tokenizer together.
  const std::vector<int>& stop_tokens() const;
  /// temperature, top_k and top_p that the model's files recommend; greedy where they say nothing.
  SamplingParams recommended_sampling() const;
  /// "gemma3, 18 layers, CPU, AVX2, 2 threads": for people.
  std::string description() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat

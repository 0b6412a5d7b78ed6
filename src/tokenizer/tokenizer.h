// Text <-> token ids, for Gemma 3 and Gemma 4 vocabularies.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

class Checkpoint;
class GgufFile;

/// A BPE tokenizer with byte fallback. Immutable; safe to use from many threads.
class Tokenizer {
 public:
  /// From a directory's tokenizer.json (and tokenizer_config.json) or a GGUF file's vocabulary. Throws Error.
  static std::shared_ptr<const Tokenizer> load(const Checkpoint& checkpoint);
  static std::shared_ptr<const Tokenizer> from_json(const std::filesystem::path& tokenizer_json);
  static std::shared_ptr<const Tokenizer> from_json_text(std::string_view json, std::string_view origin);
  static std::shared_ptr<const Tokenizer> from_gguf(const GgufFile& file);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  enum class Specials : uint8_t {
    kParse,  // "<|turn>" in the text becomes the control token (rendered chats)
    kText,   // it is ordinary text (untrusted content)
  };

  /// Ids of `text`, which may be any bytes (invalid UTF-8 goes through byte fallback). Adds no BOS.
  std::vector<int> encode(std::string_view text, Specials specials = Specials::kParse) const;

  /// `text` with every control token in it marked as ordinary text, for encode_marked(). Marked texts may be pasted
  /// into a larger one whose own control tokens count. The mark is U+FDD0, which is no character; one in `text` becomes
  /// U+FFFD.
  std::string mark_specials(std::string_view text) const;
  /// encode(…, kParse), but control tokens that mark_specials() marked are text.
  std::vector<int> encode_marked(std::string_view text) const;

  /// The text of `ids`: pieces joined, byte tokens as raw bytes. Control tokens are written only when `with_specials`.
  /// Unknown ids are an Error.
  std::string decode(const std::vector<int>& ids, bool with_specials = false) const;

  int vocab_size() const;
  /// The raw piece ("▁the", "<0x0A>", "<|turn>"); Error for an id outside the vocabulary.
  std::string_view piece(int id) const;
  /// The id of a raw piece, special or not.
  std::optional<int> id(std::string_view piece) const;
  bool is_special(int id) const;
  /// What the token adds to the text: bytes; empty for control tokens.
  std::string token_bytes(int id) const;

  int bos_id() const;
  /// End-of-sequence ids that the tokenizer files name (eos, end of turn).
  const std::vector<int>& eos_ids() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::vector<int> encode(std::string_view text, Specials specials, const std::vector<size_t>& literal) const;
  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of tokens into a stream of text that is valid UTF-8 at every step: an incomplete character is held
/// back (at most 3 bytes) until it is complete; bytes that can never become valid turn into one U+FFFD each maximal
/// ill-formed sequence. One per generation; not thread-safe.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool with_specials = false);
  /// The text that this token completes; may be empty.
  std::string push(int id);
  /// What is still held back, as U+FFFD; call once at the end.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool with_specials_;
  std::string pending_;
};

}  // namespace carat

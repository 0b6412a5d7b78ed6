// What the readers of tokenizer files hand to Tokenizer.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/merges.h"
#include "tokenizer/vocabulary.h"

namespace carat {

class GgufFile;

struct TokenizerParts {
  std::string origin;  // for errors
  Vocabulary vocabulary;
  Merges merges;
  BpeOptions bpe;
  bool marks_spaces = true;                               // the normaliser replaces spaces by kSpaceMark
  AddedTokens added;                                      // found in the text as it is
  AddedTokens added_normalized;                           // found in the normalised text between those
  std::map<std::string, int, std::less<>> outside_model;  // added tokens that BPE never makes: no pieces of the model
  std::vector<bool> special;                              // by id
  int bos_id = Vocabulary::kNone;
  std::vector<int> eos_ids;  // sorted, without duplicates

  /// The id of a piece, of the model or added; kNone when there is none.
  int find(std::string_view piece) const {
    if (const int id = vocabulary.find(piece); id != Vocabulary::kNone) return id;
    const auto added_only = outside_model.find(piece);
    return added_only == outside_model.end() ? Vocabulary::kNone : added_only->second;
  }
};

/// tokenizer.json as Hugging Face's `tokenizers` writes it. Throws Error for what is damaged or not supported.
/// REQUIRES `capacity` readable bytes at json.data(), at least json.size() + kJsonPadding of them.
TokenizerParts read_tokenizer_json(std::string_view json, size_t capacity, std::string origin);
extern const size_t kJsonPadding;

/// Takes bos_token and eos_token from a tokenizer_config.json's text. Same requirements.
void read_tokenizer_config(std::string_view json, size_t capacity, const std::string& origin, TokenizerParts& parts);

/// The vocabulary among a GGUF file's metadata.
TokenizerParts read_gguf_vocabulary(const GgufFile& file);

/// Fills in what the files left open: the beginning-of-sequence token by its usual name, and the end tokens that
/// Gemma's vocabularies name. Throws Error when there is no beginning-of-sequence token.
void complete(TokenizerParts& parts);

}  // namespace carat

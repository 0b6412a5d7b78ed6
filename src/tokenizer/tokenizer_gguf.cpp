// Reads the vocabulary among a GGUF file's metadata: Gemma 3 stores SentencePiece scores, Gemma 4 stores merges.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer_parts.h"

namespace carat {
namespace {

// tokenizer.ggml.token_type
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

/// Whether Gemma 3's tokenizer.json calls the piece special. GGUF's types say something else: they call all unused
/// pieces control tokens, and the image markers user-defined like newlines and HTML tags.
bool is_special_in_gemma3(std::string_view piece, int64_t type) {
  if (piece == "<start_of_image>" || piece == "<end_of_image>") return true;
  return type == kControl && !piece.starts_with("<unused") && piece != "<mask>";
}

Merges read_merges(const std::vector<std::string_view>& lines, const TokenizerParts& parts) {
  Merges::RankedBuilder builder(parts.vocabulary);
  builder.reserve(lines.size());
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    // The sides are never empty and hold no space (they have marks).
    const size_t space = line.find(' ', 1);
    if (space == line.npos || space + 1 == line.size() || line.find(' ', space + 1) != line.npos) {
      fail("{}: tokenizer.ggml.merges[{}] is \"{}\", expected two pieces with a space between", parts.origin, rank,
           line);
    }
    // Converters keep merges whose result the vocabulary lacks; they never apply.
    builder.add(line.substr(0, space), line.substr(space + 1));
  }
  return builder.build();
}

}  // namespace

TokenizerParts read_gguf_vocabulary(const GgufFile& file) {
  TokenizerParts parts;
  parts.origin = file.origin();
  const auto model = file.string("tokenizer.ggml.model");
  if (!model) fail("{}: no tokenizer.ggml.model: the file has no vocabulary", parts.origin);
  if (*model != "llama" && *model != "gemma4") {
    fail("{}: tokenizer.ggml.model is \"{}\", expected \"llama\" or \"gemma4\"", parts.origin, *model);
  }
  const auto tokens = file.strings("tokenizer.ggml.tokens");
  if (!tokens || tokens->empty()) fail("{}: tokenizer.ggml.tokens is missing or empty", parts.origin);
  if (tokens->size() > static_cast<size_t>(Vocabulary::kMaxIds)) {
    fail("{}: tokenizer.ggml.tokens has {} entries; up to {} are supported", parts.origin, tokens->size(),
         Vocabulary::kMaxIds);
  }
  const auto types = file.integers("tokenizer.ggml.token_type");
  if (!types || types->size() != tokens->size()) {
    fail("{}: tokenizer.ggml.token_type has {} entries, expected {} as tokenizer.ggml.tokens", parts.origin,
         types ? types->size() : 0, tokens->size());
  }
  const auto merges = file.strings("tokenizer.ggml.merges");
  const bool is_scored = *model == "llama" && !merges;
  if (!is_scored && !merges) fail("{}: tokenizer.ggml.merges is missing", parts.origin);

  size_t bytes = 0;
  for (const std::string_view piece : *tokens) bytes += piece.size();
  parts.vocabulary.reserve(tokens->size(), bytes + 4096);
  parts.special.assign(tokens->size(), false);
  std::string marked;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const int id = static_cast<int>(i);
    const int64_t type = (*types)[i];
    std::string_view piece = (*tokens)[i];
    if (type == kUserDefined && piece.find(' ') != piece.npos) {
      // Converters write the space marks of user-defined pieces as spaces; the vocabulary proper has marks.
      marked.clear();
      for (const char c : piece) marked += c == ' ' ? kSpaceMark : std::string_view(&c, 1);
      piece = marked;
    }
    parts.vocabulary.add(id, piece);
    if (type != kControl && type != kUserDefined) continue;
    // In Gemma 4's files the user-defined pieces are <|channel>, <|tool_call> and their like: marked so only to be
    // printed, and as little to be had from a user's text as the rest.
    const bool is_special = !is_scored || is_special_in_gemma3(piece, type);
    parts.special[i] = is_special;
    parts.added.add(piece, id, is_special);
  }
  parts.added.build();

  parts.bpe = {.unknown_id = Vocabulary::kNone, .fuse_unknown = true, .byte_fallback = true, .ignore_merges = false};
  const auto token_id = [&](std::string_view key) {
    const auto id = file.integer(key);
    if (!id) return Vocabulary::kNone;
    if (*id < 0 || static_cast<size_t>(*id) >= tokens->size()) {
      fail("{}: {} is {}, outside the vocabulary of {} pieces", parts.origin, key, *id, tokens->size());
    }
    return static_cast<int>(*id);
  };
  parts.bpe.unknown_id = token_id("tokenizer.ggml.unknown_token_id");
  parts.bos_id = token_id("tokenizer.ggml.bos_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const int id = token_id(key); id != Vocabulary::kNone) parts.eos_ids.push_back(id);
  }

  if (!is_scored) {
    parts.merges = read_merges(*merges, parts);
    return parts;
  }
  auto scores = file.floats("tokenizer.ggml.scores");
  if (!scores || scores->size() != tokens->size()) {
    fail("{}: tokenizer.ggml.scores has {} entries, expected {} as tokenizer.ggml.tokens", parts.origin,
         scores ? scores->size() : 0, tokens->size());
  }
  // SentencePiece gives user-defined pieces the best score there is; converters write -1000.
  for (size_t i = 0; i < scores->size(); ++i) {
    if ((*types)[i] == kUserDefined) (*scores)[i] = 0.0f;
  }
  parts.merges = Merges::scored(std::move(*scores));
  return parts;
}

}  // namespace carat

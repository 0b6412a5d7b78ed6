#include "tokenizer/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer_parts.h"

namespace carat {
namespace {

constexpr std::string_view kLiteralMark = "\uFDD0";

/// Calls read(json, capacity) with padding behind the file's text: the rest of its last page when that is enough (the
/// mapping goes on to the end of the page, zero-filled), else a copy.
template <typename Read>
auto with_padding(const MappedFile& file, const Read& read) {
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t slack = (page - text.size() % page) % page;
  if (slack >= kJsonPadding) return read(text, text.size() + slack);
  std::string copy(text);
  copy.resize(text.size() + kJsonPadding);
  return read(std::string_view(copy).substr(0, text.size()), copy.size());
}

}  // namespace

void complete(TokenizerParts& parts) {
  if (parts.bos_id == Vocabulary::kNone) parts.bos_id = parts.find("<bos>");
  if (parts.bos_id == Vocabulary::kNone) {
    fail("{}: names no beginning-of-sequence token and has no \"<bos>\"", parts.origin);
  }
  for (const char* name : {"<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>"}) {
    const int id = parts.find(name);
    if (id != Vocabulary::kNone && parts.special[static_cast<size_t>(id)]) parts.eos_ids.push_back(id);
  }
  std::ranges::sort(parts.eos_ids);
  parts.eos_ids.erase(std::unique(parts.eos_ids.begin(), parts.eos_ids.end()), parts.eos_ids.end());
}

struct Tokenizer::Impl {
  explicit Impl(TokenizerParts parts)
      : origin(std::move(parts.origin)),
        model(std::move(parts.vocabulary), std::move(parts.merges), parts.bpe),
        marks_spaces(parts.marks_spaces),
        added(std::move(parts.added)),
        added_normalized(std::move(parts.added_normalized)),
        outside_model(std::move(parts.outside_model)),
        special(std::move(parts.special)),
        bos_id(parts.bos_id),
        eos_ids(std::move(parts.eos_ids)) {}

  void check(int id) const {
    if (!model.vocabulary().has(id)) {
      fail("token id {} is not in the vocabulary of {} ({} ids)", id, origin, model.vocabulary().size());
    }
  }

  /// What the token's piece says, special or not.
  void append_text(int id, std::string& text) const {
    const std::string_view piece = model.vocabulary().piece(id);
    if (const int byte = byte_of_piece(piece); byte >= 0) {
      text += static_cast<char>(byte);
      return;
    }
    size_t from = 0;
    for (size_t mark; (mark = piece.find(kSpaceMark, from)) != piece.npos; from = mark + kSpaceMark.size()) {
      text.append(piece, from, mark - from);
      text += ' ';
    }
    text.append(piece, from);
  }

  /// Calls plain(text) for the stretches between the added tokens of `text` and appends those tokens' ids, in order.
  /// Control tokens that begin at a place of `literal` (ascending) are text.
  template <typename Plain>
  static void cut(const AddedTokens& tokens, std::string_view text, Specials specials,
                  const std::vector<size_t>& literal, std::vector<int>& ids, const Plain& plain) {
    size_t done = 0;
    size_t from = 0;
    while (const auto match = tokens.find(text, from)) {
      from = match->end;
      // A control token that counts as text is passed over whole: nothing inside it is looked for.
      if (match->special &&
          (specials == Specials::kText || std::binary_search(literal.begin(), literal.end(), match->begin))) {
        continue;
      }
      if (match->begin > done) plain(text.substr(done, match->begin - done));
      ids.push_back(match->id);
      done = match->end;
    }
    if (done < text.size()) plain(text.substr(done));
  }

  const std::string origin;
  const BpeModel model;
  const bool marks_spaces;
  const AddedTokens added, added_normalized;
  const std::map<std::string, int, std::less<>> outside_model;
  const std::vector<bool> special;
  const int bos_id;
  const std::vector<int> eos_ids;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const Checkpoint& checkpoint) {
  if (const GgufFile* file = checkpoint.gguf()) return from_gguf(*file);
  return from_json(checkpoint.path() / "tokenizer.json");
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(const std::filesystem::path& tokenizer_json) {
  const auto file = MappedFile::open(tokenizer_json);
  TokenizerParts parts = with_padding(*file, [&](std::string_view json, size_t capacity) {
    return read_tokenizer_json(json, capacity, tokenizer_json.string());
  });
  const auto config = tokenizer_json.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    with_padding(*MappedFile::open(config), [&](std::string_view json, size_t capacity) {
      read_tokenizer_config(json, capacity, config.string(), parts);
    });
  }
  complete(parts);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(parts))));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json_text(std::string_view json, std::string_view origin) {
  std::string padded(json);
  padded.resize(json.size() + kJsonPadding);
  TokenizerParts parts =
      read_tokenizer_json(std::string_view(padded).substr(0, json.size()), padded.size(), std::string(origin));
  complete(parts);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(parts))));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  TokenizerParts parts = read_gguf_vocabulary(file);
  complete(parts);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(parts))));
}

std::vector<int> Tokenizer::encode(std::string_view text, Specials specials) const {
  return encode(text, specials, {});
}

std::string Tokenizer::mark_specials(std::string_view text) const {
  std::string marked;
  const auto append = [&](std::string_view part) {
    for (size_t from = 0; from < part.size();) {
      const size_t mark = std::min(part.find(kLiteralMark, from), part.size());
      marked.append(part, from, mark - from);
      if (mark < part.size()) marked += "\uFFFD";
      from = mark + kLiteralMark.size();
    }
  };
  size_t done = 0;
  size_t from = 0;
  while (const auto match = impl_->added.find(text, from)) {
    from = match->end;
    if (!match->special) continue;
    append(text.substr(done, match->begin - done));
    marked += kLiteralMark;
    marked.append(text, match->begin, match->end - match->begin);
    done = match->end;
  }
  append(text.substr(done));
  return marked;
}

std::vector<int> Tokenizer::encode_marked(std::string_view text) const {
  std::string plain;
  std::vector<size_t> literal;
  for (size_t from = 0; from < text.size();) {
    const size_t mark = std::min(text.find(kLiteralMark, from), text.size());
    plain.append(text, from, mark - from);
    if (mark < text.size()) literal.push_back(plain.size());
    from = mark + kLiteralMark.size();
  }
  return encode(plain, Specials::kParse, literal);
}

std::vector<int> Tokenizer::encode(std::string_view text, Specials specials, const std::vector<size_t>& literal) const {
  std::vector<int> ids;
  ids.reserve(text.size() / 3 + 8);
  BpeEncoder encoder(impl_->model, text.size());
  std::string normalized;
  Impl::cut(impl_->added, text, specials, literal, ids, [&](std::string_view plain) {
    if (impl_->marks_spaces) {
      normalized.clear();
      for (size_t from = 0; from < plain.size();) {
        const size_t space = std::min(plain.find(' ', from), plain.size());
        normalized.append(plain, from, space - from);
        if (space < plain.size()) normalized += kSpaceMark;
        from = space + 1;
      }
      plain = normalized;
    }
    Impl::cut(impl_->added_normalized, plain, specials, {}, ids,
              [&](std::string_view words) { encoder.encode(words, ids); });
  });
  return ids;
}

std::string Tokenizer::decode(const std::vector<int>& ids, bool with_specials) const {
  std::string text;
  for (const int id : ids) {
    impl_->check(id);
    if (with_specials || !is_special(id)) impl_->append_text(id, text);
  }
  return text;
}

int Tokenizer::vocab_size() const {
  return impl_->model.vocabulary().size();
}

std::string_view Tokenizer::piece(int id) const {
  impl_->check(id);
  return impl_->model.vocabulary().piece(id);
}

std::optional<int> Tokenizer::id(std::string_view piece) const {
  if (const int id = impl_->model.vocabulary().find(piece); id != Vocabulary::kNone) return id;
  const auto added_only = impl_->outside_model.find(piece);
  return added_only == impl_->outside_model.end() ? std::nullopt : std::optional<int>(added_only->second);
}

bool Tokenizer::is_special(int id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() && impl_->special[static_cast<size_t>(id)];
}

std::string Tokenizer::token_bytes(int id) const {
  impl_->check(id);
  std::string text;
  if (!is_special(id)) impl_->append_text(id, text);
  return text;
}

int Tokenizer::bos_id() const {
  return impl_->bos_id;
}

const std::vector<int>& Tokenizer::eos_ids() const {
  return impl_->eos_ids;
}

}  // namespace carat

// Reads tokenizer.json. 33 MB for Gemma: one pass, nothing is copied but the pieces.
#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

namespace carat {

const size_t kJsonPadding = simdjson::SIMDJSON_PADDING;

namespace {

namespace ondemand = simdjson::ondemand;

struct AddedToken {
  std::string content;
  int id = Vocabulary::kNone;
  bool special = false;
  bool normalized = false;
};

/// A section small enough for a tree.
nlohmann::json tree(ondemand::value value) {
  switch (value.type()) {
    case ondemand::json_type::object:
      return nlohmann::json::parse(std::string_view(value.get_object().value().raw_json()));
    case ondemand::json_type::array:
      return nlohmann::json::parse(std::string_view(value.get_array().value().raw_json()));
    default:
      return nlohmann::json::parse(value.raw_json_token());
  }
}

int checked_id(int64_t id, const std::string& origin, std::string_view what) {
  if (id < 0 || id >= Vocabulary::kMaxIds) {
    fail("{}: {} has the id {}; ids from 0 to {} are supported", origin, what, id, Vocabulary::kMaxIds - 1);
  }
  return static_cast<int>(id);
}

class JsonReader {
 public:
  explicit JsonReader(std::string origin) { parts_.origin = std::move(origin); }

  TokenizerParts read(std::string_view json, size_t capacity) {
    // The file's usual density, so that little is moved while growing.
    parts_.vocabulary.reserve(json.size() / 128, json.size() / 16);
    ondemand::parser parser;
    ondemand::document document = parser.iterate(json.data(), json.size(), capacity);
    read_sections(document);
    if (merges_came_first_) {
      document.rewind();
      merges_came_first_ = false;
      read_sections(document);
    }
    if (!has_model_) fail("{}: no \"model\" section", origin());
    if (!has_vocabulary_) fail("{}: model has no \"vocab\"", origin());
    finish_unknown();
    finish_added_tokens();
    return std::move(parts_);
  }

 private:
  const std::string& origin() const { return parts_.origin; }

  void read_sections(ondemand::document& document) {
    for (ondemand::field field : document.get_object()) {
      const std::string_view key = field.unescaped_key();
      if (key == "added_tokens") {
        read_added_tokens(field.value());
      } else if (key == "normalizer") {
        read_normalizer(tree(field.value()));
      } else if (key == "pre_tokenizer") {
        check_pre_tokenizer(tree(field.value()));
      } else if (key == "decoder") {
        check_decoder(tree(field.value()));
      } else if (key == "model") {
        has_model_ = true;
        read_model(field.value().get_object());
      }
      // post_processor only adds tokens around the text; truncation and padding shape batches: no business of ids.
    }
    // A split at spaces does nothing once they are marks; without marks it would cut words.
    if (splits_at_spaces_ && !parts_.marks_spaces) {
      fail(
          "{}: pre_tokenizer splits at spaces that the normalizer keeps; only vocabularies that replace spaces by "
          "U+2581 are supported",
          origin());
    }
  }

  void read_added_tokens(ondemand::array array) {
    added_.clear();
    for (ondemand::object object : array) {
      AddedToken token;
      bool single_word = false, strips = false;
      for (ondemand::field field : object) {
        const std::string_view key = field.unescaped_key();
        if (key == "id") token.id = checked_id(field.value().get_int64(), origin(), "an added token");
        if (key == "content") token.content = std::string_view(field.value().get_string());
        if (key == "special") token.special = field.value().get_bool();
        if (key == "normalized") token.normalized = field.value().get_bool();
        if (key == "single_word") single_word = field.value().get_bool();
        if (key == "lstrip" || key == "rstrip") strips |= bool(field.value().get_bool());
      }
      if (token.id == Vocabulary::kNone) fail("{}: added_tokens has an entry without an id", origin());
      if (single_word || strips) {
        fail("{}: added token \"{}\" has single_word, lstrip or rstrip set, which is not supported", origin(),
             token.content);
      }
      added_.push_back(std::move(token));
    }
  }

  void read_normalizer(const nlohmann::json& normalizer) {
    const nlohmann::json* step = &normalizer;
    if (normalizer.is_object() && normalizer.value("type", "") == "Sequence") {
      const auto steps = normalizer.find("normalizers");
      if (steps != normalizer.end() && steps->is_array() && steps->size() == 1) step = &steps->front();
    }
    parts_.marks_spaces = !step->is_null();
    static const nlohmann::json kMarksSpaces = {
        {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}};
    if (!step->is_null() && *step != kMarksSpaces) {
      fail("{}: normalizer {} is not supported; expected one that replaces spaces by U+2581", origin(),
           shown(normalizer));
    }
  }

  void check_pre_tokenizer(const nlohmann::json& pre_tokenizer) {
    static const nlohmann::json kSplitsAtSpaces = {
        {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
    splits_at_spaces_ = pre_tokenizer == kSplitsAtSpaces;
    if (!pre_tokenizer.is_null() && !splits_at_spaces_) {
      fail("{}: pre_tokenizer {} is not supported; expected none or a split at spaces", origin(), shown(pre_tokenizer));
    }
  }

  void check_decoder(const nlohmann::json& decoder) {
    static const nlohmann::json kExpected = {
        {"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}};
    if (!decoder.is_null() && decoder != kExpected) {
      fail("{}: decoder {} is not supported; expected U+2581 to space, byte fallback, fuse", origin(), shown(decoder));
    }
  }

  static std::string shown(const nlohmann::json& section) {
    std::string text = section.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > 200) text = text.substr(0, 200) + "…";
    return text;
  }

  void read_model(ondemand::object model) {
    for (ondemand::field field : model) {
      const std::string_view key = field.unescaped_key();
      if (key == "vocab") {
        if (!has_vocabulary_) read_vocabulary(field.value().get_object());
      } else if (key == "merges") {
        if (has_vocabulary_) {
          read_merges(field.value().get_array());
        } else {
          merges_came_first_ = true;  // a second pass reads them
        }
      } else {
        read_option(key, tree(field.value()));
      }
    }
  }

  void read_option(std::string_view key, const nlohmann::json& value) {
    const auto flag = [&](bool& option) {
      if (!value.is_boolean()) fail("{}: model.{} is {}, expected true or false", origin(), key, shown(value));
      option = value.get<bool>();
    };
    if (key == "type" && value != "BPE")
      fail("{}: model type {} is not supported; expected BPE", origin(), shown(value));
    if (key == "byte_fallback") flag(parts_.bpe.byte_fallback);
    if (key == "fuse_unk") flag(parts_.bpe.fuse_unknown);
    if (key == "ignore_merges") flag(parts_.bpe.ignore_merges);
    if (key == "unk_token" && !value.is_null()) {
      if (!value.is_string()) fail("{}: model.unk_token is {}, expected a string or null", origin(), shown(value));
      unknown_ = value.get<std::string>();
    }
    const bool is_blank = value.is_string() && value.get_ref<const std::string&>().empty();
    const bool is_off = value.is_null() || is_blank || value == 0;
    if ((key == "dropout" || key == "continuing_subword_prefix" || key == "end_of_word_suffix") && !is_off) {
      fail("{}: model.{} is {}, which is not supported", origin(), key, shown(value));
    }
  }

  void read_vocabulary(ondemand::object vocabulary) {
    has_vocabulary_ = true;
    for (ondemand::field field : vocabulary) {
      const std::string_view piece = field.unescaped_key();
      const int id = checked_id(field.value().get_int64(), origin(), "a piece of model.vocab");
      if (const auto added = parts_.vocabulary.add(id, piece); added != Vocabulary::Added::kNew) {
        fail("{}: model.vocab has two entries with the {} of \"{}\" (id {})", origin(),
             added == Vocabulary::Added::kIdTaken ? "id" : "text", piece, id);
      }
    }
  }

  void read_merges(ondemand::array merges) {
    Merges::RankedBuilder builder(parts_.vocabulary);
    size_t rank = 0;
    for (ondemand::value merge : merges) {
      std::string_view left, right;
      if (merge.type() == ondemand::json_type::string) {
        const std::string_view line = merge.get_string();
        const size_t space = line.find(' ');
        if (space == line.npos || line.find(' ', space + 1) != line.npos) {
          fail("{}: merge {} is \"{}\", expected two pieces with a space between", origin(), rank, line);
        }
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else {
        std::optional<std::string_view> sides[2];
        size_t count = 0;
        for (ondemand::value side : merge.get_array()) {
          if (count < 2) sides[count] = side.get_string();
          ++count;
        }
        if (count != 2) fail("{}: merge {} has {} sides, expected 2", origin(), rank, count);
        left = *sides[0];
        right = *sides[1];
      }
      // Bytes and unknown characters are known by their place in the text here, not by the name of their token.
      if (byte_of_piece(left) >= 0 || byte_of_piece(right) >= 0) {
        fail("{}: merge {} (\"{}\" \"{}\") joins a byte token, which is not supported", origin(), rank, left, right);
      }
      if (!builder.add(left, right)) {
        fail("{}: merge {} makes \"{}{}\", which model.vocab lacks", origin(), rank, left, right);
      }
      ++rank;
    }
    parts_.merges = builder.build();
    has_merges_ = true;
  }

  void finish_unknown() {
    if (!has_merges_) parts_.merges = Merges::RankedBuilder(parts_.vocabulary).build();
    if (!unknown_) return;
    parts_.bpe.unknown_id = parts_.vocabulary.find(*unknown_);
    if (parts_.bpe.unknown_id == Vocabulary::kNone) {
      fail("{}: model.unk_token \"{}\" is not in model.vocab", origin(), *unknown_);
    }
  }

  void finish_added_tokens() {
    Vocabulary& vocabulary = parts_.vocabulary;
    for (const AddedToken& token : added_) {
      const int known = parts_.find(token.content);
      if (known == token.id) continue;
      if (known != Vocabulary::kNone) {
        fail("{}: added token \"{}\" has the id {}, but {} elsewhere in the file", origin(), token.content, token.id,
             known);
      }
      if (vocabulary.add_unlisted(token.id, token.content) == Vocabulary::Added::kIdTaken) {
        fail("{}: added token \"{}\" has the id {}, which belongs to \"{}\"", origin(), token.content, token.id,
             vocabulary.piece(token.id));
      }
      parts_.outside_model.emplace(token.content, token.id);
    }
    parts_.special.assign(static_cast<size_t>(vocabulary.size()), false);
    for (const AddedToken& token : added_) {
      if (token.special) parts_.special[static_cast<size_t>(token.id)] = true;
    }
    for (const AddedToken& token : added_) {
      const bool special = parts_.special[static_cast<size_t>(token.id)];
      if (!token.normalized) {
        parts_.added.add(token.content, token.id, special);
        continue;
      }
      std::string content;
      for (const char c : token.content) {
        content += parts_.marks_spaces && c == ' ' ? kSpaceMark : std::string_view(&c, 1);
      }
      parts_.added_normalized.add(content, token.id, special);
    }
    parts_.added.build();
    parts_.added_normalized.build();
  }

  TokenizerParts parts_;
  std::vector<AddedToken> added_;
  std::optional<std::string> unknown_;
  bool splits_at_spaces_ = false;
  bool has_model_ = false;
  bool has_vocabulary_ = false;
  bool has_merges_ = false;
  bool merges_came_first_ = false;
};

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view json, size_t capacity, std::string origin) {
  try {
    return JsonReader(origin).read(json, capacity);
  } catch (const simdjson::simdjson_error& error) {
    fail("{}: not a tokenizer file: {}", origin, error.what());
  } catch (const nlohmann::json::exception& error) {
    fail("{}: not a tokenizer file: {}", origin, error.what());
  }
}

void read_tokenizer_config(std::string_view json, size_t capacity, const std::string& origin, TokenizerParts& parts) {
  try {
    ondemand::parser parser;
    ondemand::document document = parser.iterate(json.data(), json.size(), capacity);
    for (ondemand::field field : document.get_object()) {
      const std::string_view key = field.unescaped_key();
      const bool is_bos = key == "bos_token";
      if (!is_bos && key != "eos_token") continue;
      nlohmann::json token = tree(field.value());
      if (token.is_object()) token = token.value("content", nlohmann::json());
      if (token.is_null()) continue;
      if (!token.is_string()) fail("{}: {} is not a string", origin, is_bos ? "bos_token" : "eos_token");
      const int id = parts.find(token.get_ref<const std::string&>());
      if (id == Vocabulary::kNone) {
        fail("{}: {} is \"{}\", which is not in {}", origin, is_bos ? "bos_token" : "eos_token",
             token.get_ref<const std::string&>(), parts.origin);
      }
      if (is_bos) {
        parts.bos_id = id;
      } else {
        parts.eos_ids.push_back(id);
      }
    }
  } catch (const simdjson::simdjson_error& error) {
    fail("{}: not a tokenizer configuration: {}", origin, error.what());
  } catch (const nlohmann::json::exception& error) {
    fail("{}: not a tokenizer configuration: {}", origin, error.what());
  }
}

}  // namespace carat

// Constrained decoding: which tokens may come next, so that what a model says is in a language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"

namespace carat {

class Tokenizer;

/// A vocabulary prepared for constraints: the bytes of all tokens as a trie. Built once a model; immutable.
class GrammarVocabulary;
/// `vocab`: rows of the logits, at least the tokenizer's ids; ids without a piece are never allowed. `stop_ids` end a
/// generation: they are allowed exactly where the language allows an end.
std::shared_ptr<const GrammarVocabulary> make_grammar_vocabulary(const Tokenizer& tokenizer, int vocab,
                                                                 std::vector<int> stop_ids);

/// A language over tokens: bytes and control tokens. Immutable; shared by generations and threads.
class Grammar;
/// What it takes of the memory now: masks are added while it is used.
size_t grammar_bytes(const Grammar& grammar);

/// What comes before the constrained part.
enum class Prelude : uint8_t {
  kNone,           // constrained from the first token
  kMayThink,       // a thought (<|channel> … <channel|>) may come first; Gemma 4 only
  kThoughtIsOpen,  // the prompt has opened a thought: free until <channel|>
};

/// JSON text that the schema accepts; any JSON object for a null schema. docs/structured-output.md states the subset.
/// Throws Error naming the keyword (and where it stands) for what is not supported or contradicts itself.
std::shared_ptr<const Grammar> json_grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Json& schema,
                                            Prelude prelude = Prelude::kNone);

struct CallGrammarOptions {
  ChatFormat format = ChatFormat::kGemma4;
  std::string name;      // only this tool; empty for any of them
  bool parallel = true;  // more than one call
  Prelude prelude = Prelude::kNone;
};
/// One or more calls of `tools` (OpenAI function tools) with arguments that their schemas accept, in the syntax of the
/// format, and nothing else. Throws Error when no tool has the name, or for a schema that is not supported.
std::shared_ptr<const Grammar> call_grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Json& tools,
                                            const CallGrammarOptions& options);

/// Any text and thoughts, with any calls of `tools` in them. Text is free; what begins as a call of one of the tools is
/// gone on with as one, with arguments that its schema accepts, and behind it text is free again. In Gemma 4's syntax a
/// call begins with its control token; in Gemma 3's where its block has named a tool and the key of its arguments.
///
/// A tool with `"strict": false`, and one whose schema is not supported, keeps arguments of any kind. Null when no tool
/// is left that binds anything. Throws Error for a tool with `"strict": true` whose schema is not supported.
std::shared_ptr<const Grammar> free_call_grammar(const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                                                 const Json& tools, ChatFormat format);

/// Where one generation stands in a language. Not thread-safe.
class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const Grammar> grammar);
  Constraint(Constraint&&) noexcept;
  Constraint& operator=(Constraint&&) noexcept;
  ~Constraint();

  /// Bit t of word t / 64 is set where token t may come next; [(vocab + 63) / 64] words. Never without any: where
  /// nothing else is possible the stop ids are set. In a thought before what is bound: every token with text, and
  /// <channel|>. No words at all where the next token is as free as without a constraint. Valid until the next call.
  std::span<const uint64_t> allowed();
  /// Goes on past a token. REQUIRES: allowed() had it. One that leads out of the language is an Error and changes
  /// nothing.
  void accept(int token);
  /// Takes back the last `count` accepted tokens (speculation). Throws Error when fewer were accepted.
  void rollback(int count);
  /// Whether what was accepted is complete: the stop ids are allowed.
  bool complete();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace carat

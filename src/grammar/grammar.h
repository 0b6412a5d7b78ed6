// A compiled language and the masks of its states.
#pragma once

#include <memory>
#include <utility>

#include "grammar/automaton.h"
#include "grammar/constraint.h"
#include "grammar/vocabulary.h"

namespace carat {

/// What is around the part that is bound.
enum class Around : uint8_t {
  kNothing,
  /// Text of the root rule, which takes whatever comes until it calls another rule; tokens without bytes for which it
  /// has no edge leave it where it is. It must be deterministic: one state at a time.
  kText,
};

class Grammar {
 public:
  /// The language of rule `root`. Throws Error like make_automaton, and when the vocabulary has no thoughts and the
  /// prelude has.
  Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Rules& rules, int root, Prelude prelude,
          Around around = Around::kNothing);

  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  const Automaton::Rule& root() const { return automaton_.rules[root_]; }
  Prelude prelude() const { return prelude_; }
  Around around() const { return around_; }
  /// <|channel> and <channel|>; -1 where the prelude has no thoughts.
  int thought_open() const { return thought_open_; }
  int thought_close() const { return thought_close_; }

  std::shared_ptr<const LocalMask> mask(LocalState state) const;
  size_t bytes() const;

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  Automaton automaton_;
  size_t root_;
  Prelude prelude_;
  Around around_;
  int thought_open_ = -1;
  int thought_close_ = -1;
  mutable LocalMaskCache masks_;
};

}  // namespace carat

#include <utility>

#include "grammar/grammar.h"
#include "grammar/schema_compiler.h"

namespace carat {

std::shared_ptr<const Grammar> json_grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Json& schema,
                                            Prelude prelude) {
  const SchemaDocument document(schema.is_null() ? Json{{"type", "object"}} : schema);
  Rules rules;
  const int root = rules.add();
  const Rules::Rule rule = rules.rules.front();
  SchemaCompiler compiler(rules, document, Syntax::kJson, -1);
  compiler.value(rule.start, rule.end, document.root(), "the schema");
  compiler.finish();
  return std::make_shared<const Grammar>(std::move(vocabulary), rules, root, prelude);
}

}  // namespace carat

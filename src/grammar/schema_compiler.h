// JSON schemas to rules, in one of the two ways in which values are written.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/schema.h"

namespace carat {

/// Adds the rules of one document's schemas to a grammar. Values are written
/// - kJson: with at most one space behind ':' and ',', or a line end and up to 16 spaces around the parts of objects
/// and
///   arrays; properties in the order of `properties`;
/// - kCall: as Gemma 4 writes tool calls, without white space, properties as its template sorts them.
class SchemaCompiler {
 public:
  /// `quote`: the string delimiter's token, for kCall. `rules` outlives the compiler.
  SchemaCompiler(Rules& rules, const SchemaDocument& document, Syntax syntax, int quote);

  /// Takes a value of `schema` between the nodes.
  void value(Nfa::Node from, Nfa::Node to, const Json& schema, const std::string& where);
  /// The braces and what is between them, of object values only. Throws Error when the schema allows no object.
  void object_value(Nfa::Node from, Nfa::Node to, const Json& schema, const std::string& where);
  /// Writes the rules of all schemas that were met; call once, at the end.
  void finish();

  /// White space that may stand between two parts of an object or array: also none.
  void gap(Nfa::Node from, Nfa::Node to, bool space);

 private:
  using Node = Nfa::Node;
  struct Pending {
    int rule = 0;
    std::vector<FlatSchema> alternatives;
    std::string where;
  };

  /// False when it takes nothing because no value of its enum is left.
  bool alternative(Node from, Node to, const FlatSchema& flat, const std::string& where);
  void literal(Node from, Node to, const Json& value);
  void strings(Node from, Node to, const FlatSchema& flat);
  void characters(Node from, Node to, const CharDfa& dfa, bool as_string);
  void character(Node from, Node to, uint32_t first, uint32_t last);
  void delimiter(Node from, Node to);
  void numbers(Node from, Node to, const FlatSchema& flat, const std::string& where);
  void array(Node from, Node to, const FlatSchema& flat, const std::string& where);
  void object(Node from, Node to, const FlatSchema& flat, const std::string& where);
  void key(Node from, Node to, const std::string& name);
  void other_key(Node from, Node to, const std::vector<std::string>& taken);
  void after_key(Node from, Node to, const Json& schema, const std::string& where);
  void comma(Node from, Node to);
  int rule_of(const Json& schema, const std::string& where);

  Rules& rules_;
  const SchemaDocument& document_;
  Syntax syntax_;
  int quote_;
  int gap_rule_ = -1;
  std::map<std::string, int> rule_ids_;  // by SchemaDocument::name_of
  std::vector<Pending> pending_;
};

}  // namespace carat

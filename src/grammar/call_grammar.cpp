#include <algorithm>
#include <utility>

#include "base/error.h"
#include "chat/call_syntax.h"
#include "grammar/grammar.h"
#include "grammar/schema_compiler.h"

namespace carat {
namespace {

using Node = Nfa::Node;

constexpr int kMaxCalls = 32;  // in one reply

struct Tool {
  std::string name;
  Json parameters;
};

bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::vector<Tool> read_tools(const Json& tools, const std::string& only) {
  if (!tools.is_array() || tools.empty()) fail("tools: a call is asked for, but there are no tools");
  std::vector<Tool> out;
  for (const Json& tool : tools) {
    const Json* function = find(tool, "function");
    const Json* name = function == nullptr ? nullptr : find(*function, "name");
    if (name == nullptr || !name->is_string())
      fail("tools: every tool must be an object with a function that has a name");
    const std::string& text = name->get_ref<const std::string&>();
    if (!only.empty() && text != only) continue;
    if (text.empty() || text.size() > 256 || !std::ranges::all_of(text, may_be_in_name)) {
      fail("tools: a tool is named '{}'; calls can be asked for by names of letters, digits and _-.:/", text);
    }
    const Json* parameters = find(*function, "parameters");
    out.push_back({text, parameters == nullptr ? Json{{"type", "object"}} : *parameters});
  }
  if (out.empty()) fail("tools: no tool is named '{}'", only);
  return out;
}

/// A rule for the arguments of a tool: an object in braces.
int arguments_rule(Rules& rules, const Tool& tool, Syntax syntax, int quote) {
  const int id = rules.add();
  const Rules::Rule rule = rules.rules[static_cast<size_t>(id)];
  const SchemaDocument document(tool.parameters);
  SchemaCompiler compiler(rules, document, syntax, quote);
  compiler.object_value(rule.start, rule.end, document.root(), "parameters of tool '" + tool.name + "'");
  compiler.finish();
  return id;
}

/// <|tool_call>call:name{key:value}<tool_call|>, up to kMaxCalls times.
int gemma4_calls(Rules& rules, const GrammarVocabulary& vocabulary, const std::vector<Tool>& tools, bool parallel) {
  const int open = vocabulary.require_control("<|tool_call>");
  const int close = vocabulary.require_control("<tool_call|>");
  const int quote = vocabulary.require_control(kQuoteMarker);
  Nfa& nfa = rules.nfa;
  const int root = rules.add();
  const int call = rules.add();
  const Rules::Rule calls = rules.rules[static_cast<size_t>(root)];
  const Rules::Rule one = rules.rules[static_cast<size_t>(call)];
  const Node opened = nfa.add(), written = nfa.add();
  nfa.token(one.start, opened, open);
  const Node named = nfa.literal(opened, "call:");
  for (const Tool& tool : tools) {
    nfa.call(nfa.literal(named, tool.name), written, arguments_rule(rules, tool, Syntax::kCall, quote));
  }
  nfa.token(written, one.end, close);
  Node at = calls.start;
  for (int i = 0; i < (parallel ? kMaxCalls : 1); ++i) {
    const Node behind = nfa.add();
    nfa.call(at, behind, call);
    nfa.empty(behind, calls.end);
    at = behind;
  }
  return root;
}

/// A fenced block of JSON: {"name": ..., "arguments": {...}}, or a list of such objects.
int gemma3_calls(Rules& rules, const std::vector<Tool>& tools, bool parallel) {
  Nfa& nfa = rules.nfa;
  const int root = rules.add();
  const int call = rules.add();
  const Rules::Rule block = rules.rules[static_cast<size_t>(root)];
  const Rules::Rule one = rules.rules[static_cast<size_t>(call)];
  const SchemaDocument none(true);
  SchemaCompiler gaps(rules, none, Syntax::kJson, -1);
  const auto gap = [&](Node from, bool space) {
    const Node to = nfa.add();
    gaps.gap(from, to, space);
    return to;
  };
  const auto space = [&](Node from) {
    const Node to = nfa.add();
    nfa.empty(from, to);
    nfa.bytes(from, to, ' ', ' ');
    return to;
  };
  const Node named = space(nfa.literal(gap(nfa.literal(one.start, "{"), false), "\"name\":"));
  const Node written = nfa.add();
  for (const Tool& tool : tools) {
    const Node comma = nfa.literal(named, "\"" + tool.name + "\",");
    const Node arguments = space(nfa.literal(gap(comma, true), "\"arguments\":"));
    nfa.call(arguments, written, arguments_rule(rules, tool, Syntax::kJson, -1));
  }
  nfa.literal(gap(written, false), one.end, "}");

  const Node inside = nfa.literal(block.start, "```json\n");
  const Node behind = nfa.add();
  nfa.call(inside, behind, call);
  if (parallel) {
    const Node last = nfa.add();
    Node at = gap(nfa.literal(inside, "["), false);
    for (int i = 0; i < kMaxCalls; ++i) {
      const Node item = nfa.add();
      nfa.call(at, item, call);
      nfa.empty(item, last);
      at = gap(nfa.literal(item, ","), true);
    }
    nfa.literal(gap(last, false), behind, "]");
  }
  nfa.literal(behind, block.end, "\n```");
  return root;
}

}  // namespace

std::shared_ptr<const Grammar> call_grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Json& tools,
                                            const CallGrammarOptions& options) {
  const std::vector<Tool> known = read_tools(tools, options.name);
  Rules rules;
  const int root = options.format == ChatFormat::kGemma3 ? gemma3_calls(rules, known, options.parallel)
                                                         : gemma4_calls(rules, *vocabulary, known, options.parallel);
  return std::make_shared<const Grammar>(std::move(vocabulary), rules, root, options.prelude);
}

}  // namespace carat

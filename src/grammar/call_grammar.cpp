#include <algorithm>
#include <optional>
#include <string_view>
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
  bool strict = false;  // said to be
  bool bound = true;    // its arguments must be what the schema accepts
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

Tool read_tool(const Json& tool) {
  const Json* function = find(tool, "function");
  const Json* name = function == nullptr ? nullptr : find(*function, "name");
  if (name == nullptr || !name->is_string()) {
    fail("tools: every tool must be an object with a function that has a name");
  }
  const Json* parameters = find(*function, "parameters");
  const Json* strict = find(*function, "strict");
  Tool read{.name = name->get<std::string>(),
            .parameters = parameters == nullptr ? Json{{"type", "object"}} : *parameters};
  read.strict = strict != nullptr && *strict == true;
  read.bound = strict == nullptr || *strict != false;
  return read;
}

bool can_be_named(const Tool& tool) {
  return !tool.name.empty() && tool.name.size() <= 256 && std::ranges::all_of(tool.name, may_be_in_name);
}

[[noreturn]] void refuse_name(const Tool& tool) {
  fail("tools: a tool is named '{}'; calls can be asked for by names of letters, digits and _-.:/", tool.name);
}

/// Those that a call may be asked of; their arguments are bound whatever they say of `strict`.
std::vector<Tool> read_tools(const Json& tools, const std::string& only) {
  if (!tools.is_array() || tools.empty()) fail("tools: a call is asked for, but there are no tools");
  std::vector<Tool> out;
  for (const Json& json : tools) {
    Tool tool = read_tool(json);
    if (!only.empty() && tool.name != only) continue;
    if (!can_be_named(tool)) refuse_name(tool);
    tool.bound = true;
    out.push_back(std::move(tool));
  }
  if (out.empty()) fail("tools: no tool is named '{}'", only);
  return out;
}

/// A rule for the arguments of a tool: an object in braces.
int arguments_rule(Rules& rules, const Tool& tool, Syntax syntax, int quote) {
  const int id = rules.add();
  const Rules::Rule rule = rules.rules[static_cast<size_t>(id)];
  const std::string where = "parameters of tool '" + tool.name + "'";
  rules.rules[static_cast<size_t>(id)].needed = "the schema in the " + where;
  const SchemaDocument document(tool.bound ? tool.parameters : Json{{"type", "object"}});
  SchemaCompiler compiler(rules, document, syntax, quote);
  compiler.object_value(rule.start, rule.end, document.root(), where);
  compiler.finish();
  return id;
}

/// call:name{key:value}<tool_call|>
void gemma4_call(Rules& rules, const GrammarVocabulary& vocabulary, const std::vector<Tool>& tools, Node from,
                 Node to) {
  const int close = vocabulary.require_control("<tool_call|>");
  const int quote = vocabulary.require_control(kQuoteMarker);
  Nfa& nfa = rules.nfa;
  const Node written = nfa.add();
  const Node named = nfa.literal(from, "call:");
  for (const Tool& tool : tools) {
    const Node name = nfa.literal(named, tool.name);
    if (tool.bound) {
      nfa.call(name, written, arguments_rule(rules, tool, Syntax::kCall, quote));
    } else {
      const Node anything = nfa.literal(name, "{");
      nfa.bytes(anything, anything, 0, 255);
      nfa.token(anything, anything, quote);
      nfa.empty(anything, written);
    }
  }
  nfa.token(written, to, close);
}

/// <|tool_call>call:name{key:value}<tool_call|>, up to kMaxCalls times.
int gemma4_calls(Rules& rules, const GrammarVocabulary& vocabulary, const std::vector<Tool>& tools, bool parallel) {
  const int open = vocabulary.require_control("<|tool_call>");
  Nfa& nfa = rules.nfa;
  const int root = rules.add();
  const int call = rules.add();
  const Rules::Rule calls = rules.rules[static_cast<size_t>(root)];
  const Rules::Rule one = rules.rules[static_cast<size_t>(call)];
  const Node opened = nfa.add();
  nfa.token(one.start, opened, open);
  gemma4_call(rules, vocabulary, tools, opened, one.end);
  Node at = calls.start;
  for (int i = 0; i < (parallel ? kMaxCalls : 1); ++i) {
    const Node behind = nfa.add();
    nfa.call(at, behind, call);
    nfa.empty(behind, calls.end);
    at = behind;
  }
  return root;
}

/// Text of any kind, in which the control token begins a call. The root's text ends behind a stop token only, so that
/// no state on the way counts as an end of the rule.
int gemma4_text(Rules& rules, const GrammarVocabulary& vocabulary, const std::vector<Tool>& tools) {
  Nfa& nfa = rules.nfa;
  const int root = rules.add();
  const int call = rules.add();
  const Rules::Rule text = rules.rules[static_cast<size_t>(root)];
  const Rules::Rule one = rules.rules[static_cast<size_t>(call)];
  nfa.bytes(text.start, text.start, 0, 255);
  nfa.token(text.start, text.end, vocabulary.stop_ids().front());
  const Node opened = nfa.add();
  nfa.token(text.start, opened, vocabulary.require_control("<|tool_call>"));
  nfa.call(opened, text.start, call);
  gemma4_call(rules, vocabulary, tools, one.start, one.end);
  return root;
}

/// Gemma 3's calls, a fenced block of JSON: {"name": ..., "arguments": {...}}, or a list of such objects.
class FencedCalls {
 public:
  FencedCalls(Rules& rules, const std::vector<Tool>& tools)
      : rules_(rules), nfa_(rules.nfa), tools_(tools), gaps_(rules, none_, Syntax::kJson, -1) {
    for (const Tool& tool : tools) arguments_.push_back(arguments_rule(rules, tool, Syntax::kJson, -1));
    call_ = rules_.add();
    const Rules::Rule one = rules_.rules[static_cast<size_t>(call_)];
    const Node named = space(nfa_.literal(gap(nfa_.literal(one.start, "{"), false), "\"name\":"));
    for (size_t i = 0; i < tools.size(); ++i) {
      const Node comma = nfa_.literal(named, quoted(tools[i].name) + ",");
      arguments(nfa_.literal(gap(comma, true), "\"arguments\":"), one.end, i);
    }
  }

  /// The block and nothing else.
  int calls(bool parallel) {
    const int root = rules_.add();
    const Rules::Rule block = rules_.rules[static_cast<size_t>(root)];
    const Node inside = nfa_.literal(block.start, "```json\n");
    const Node behind = nfa_.add();
    nfa_.call(inside, behind, call_);
    if (parallel) {
      const Node first = nfa_.add();
      nfa_.call(gap(nfa_.literal(inside, "["), false), first, call_);
      more(first, behind, kMaxCalls - 1);
    }
    nfa_.literal(behind, block.end, "\n```");
    return root;
  }

  /// Text of any kind; a block is bound from where it has named a tool and the key of its arguments. What the parser of
  /// replies reads is not quite the same: it takes the two keys in any order, and names with escapes.
  int text(const GrammarVocabulary& vocabulary) {
    const int root = rules_.add();
    const Rules::Rule text = rules_.rules[static_cast<size_t>(root)];
    const Node any = nfa_.add(), line = nfa_.add(), before = nfa_.add(), object = nfa_.add(), list = nfa_.add();
    nfa_.empty(text.start, any);
    nfa_.empty(text.start, line);
    nfa_.bytes(any, any, 0, 255);
    nfa_.token(any, text.end, vocabulary.stop_ids().front());
    nfa_.bytes(any, line, '\n', '\n');
    for (const char* fence : {"```json", "```tool_code"}) nfa_.literal(line, before, fence);
    spaces(before);
    nfa_.bytes(before, object, '{', '{');
    const Node items = nfa_.literal(before, "[");
    spaces(items);
    nfa_.bytes(items, list, '{', '{');
    const int list_end = rules_.add();
    const Rules::Rule behind_first = rules_.rules[static_cast<size_t>(list_end)];
    more(behind_first.start, behind_first.end, kMaxCalls - 1);
    for (const Node opened : {object, list}) {
      const Node named = then(then(opened, "\"name\""), ":");
      spaces(named);
      for (size_t i = 0; i < tools_.size(); ++i) {
        if (!tools_[i].bound) continue;
        const Node due = then(then(named, quoted(tools_[i].name)), ",");
        const Node bound = nfa_.add();
        for (const char* key : {"\"arguments\"", "\"parameters\""}) nfa_.empty(then(then(due, key), ":"), bound);
        nfa_.commit(bound);
        nfa_.call(bound, any, rest(i, opened == list ? std::optional(list_end) : std::nullopt));
      }
    }
    return root;
  }

 private:
  static std::string quoted(const std::string& name) { return "\"" + name + "\""; }

  Node gap(Node from, bool space) {
    const Node to = nfa_.add();
    gaps_.gap(from, to, space);
    return to;
  }
  Node space(Node from) {
    const Node to = nfa_.add();
    nfa_.empty(from, to);
    nfa_.bytes(from, to, ' ', ' ');
    return to;
  }
  /// Any white space.
  void spaces(Node at) {
    for (const char c : std::string_view(" \t\n\r"))
      nfa_.bytes(at, at, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  }
  /// The node behind white space and `text`.
  Node then(Node from, std::string_view text) {
    const Node at = nfa_.add();
    nfa_.empty(from, at);
    spaces(at);
    return nfa_.literal(at, text);
  }
  /// The arguments of tool `i` and the end of its object.
  void arguments(Node from, Node to, size_t i) {
    const Node written = nfa_.add();
    nfa_.call(space(from), written, arguments_[i]);
    nfa_.literal(gap(written, false), to, "}");
  }
  /// The list's end, or up to `most` more calls before it.
  void more(Node item, Node to, int most) {
    const Node last = nfa_.add();
    for (int i = 0; i < most; ++i) {
      nfa_.empty(item, last);
      const Node next = nfa_.add();
      nfa_.call(gap(nfa_.literal(item, ","), true), next, call_);
      item = next;
    }
    nfa_.empty(item, last);
    nfa_.literal(gap(last, false), to, "]");
  }
  /// What follows the key of the arguments of tool `i`, up to the end of the block. `list_end`: the rule of what is
  /// left of the list that it is in.
  int rest(size_t i, std::optional<int> list_end) {
    const int id = rules_.add();
    const Rules::Rule rule = rules_.rules[static_cast<size_t>(id)];
    const Node first = nfa_.add(), behind = nfa_.add();
    arguments(rule.start, first, i);
    list_end ? nfa_.call(first, behind, *list_end) : nfa_.empty(first, behind);
    nfa_.literal(behind, rule.end, "\n```");
    return id;
  }

  Rules& rules_;
  Nfa& nfa_;
  const std::vector<Tool>& tools_;
  SchemaDocument none_{true};
  SchemaCompiler gaps_;
  std::vector<int> arguments_;  // a rule for each tool
  int call_ = 0;                // the rule of one object
};

std::shared_ptr<const Grammar> text_with_calls(const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                                               const std::vector<Tool>& tools, ChatFormat format) {
  Rules rules;
  const int root = format == ChatFormat::kGemma3 ? FencedCalls(rules, tools).text(*vocabulary)
                                                 : gemma4_text(rules, *vocabulary, tools);
  return std::make_shared<const Grammar>(vocabulary, rules, root, Prelude::kNone, Around::kText);
}

bool binds_any(const std::vector<Tool>& tools) {
  return std::ranges::any_of(tools, &Tool::bound);
}

}  // namespace

std::shared_ptr<const Grammar> call_grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const Json& tools,
                                            const CallGrammarOptions& options) {
  const std::vector<Tool> known = read_tools(tools, options.name);
  Rules rules;
  const int root = options.format == ChatFormat::kGemma3 ? FencedCalls(rules, known).calls(options.parallel)
                                                         : gemma4_calls(rules, *vocabulary, known, options.parallel);
  return std::make_shared<const Grammar>(std::move(vocabulary), rules, root, options.prelude);
}

std::shared_ptr<const Grammar> free_call_grammar(const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                                                 const Json& tools, ChatFormat format) {
  std::vector<Tool> known;
  for (const Json& json : tools.is_array() ? tools : Json::array()) {
    Tool tool = read_tool(json);
    if (tool.strict && !can_be_named(tool)) refuse_name(tool);
    if (can_be_named(tool)) known.push_back(std::move(tool));
  }
  const auto compiled = [&](const std::vector<Tool>& some) -> std::shared_ptr<const Grammar> {
    return binds_any(some) ? text_with_calls(vocabulary, some, format) : nullptr;
  };
  // All at once as a rule; where that fails, without those that are to blame, or that need not be bound.
  try {
    return compiled(known);
  } catch (const Error&) {
    for (Tool& tool : known) {
      if (tool.strict || !tool.bound) continue;
      try {
        compiled({tool});
      } catch (const Error&) {
        tool.bound = false;
      }
    }
  }
  try {
    return compiled(known);
  } catch (const Error&) {
    for (Tool& tool : known) tool.bound = tool.bound && tool.strict;
  }
  return compiled(known);
}

}  // namespace carat

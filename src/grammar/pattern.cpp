#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "chat/unicode.h"
#include "grammar/char_dfa.h"

namespace carat {
namespace {

constexpr uint32_t kLast = CharDfa::kLastCharacter;
constexpr size_t kMaxNodes = 50'000;
constexpr size_t kMaxWork = 5'000'000;
constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxRepeat = 1000;

struct Range {
  uint32_t first = 0, last = 0;
};
using Set = std::vector<Range>;

Set normal(Set set) {
  std::ranges::sort(set, {}, &Range::first);
  Set out;
  for (const Range& range : set) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

Set complement(const Set& set) {
  Set out;
  uint32_t from = 0;
  for (const Range& range : normal(set)) {
    if (range.first > from) out.push_back({from, range.first - 1});
    from = range.last + 1;
  }
  if (from <= kLast) out.push_back({from, kLast});
  return out;
}

const Set kDigits = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kSpace = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

struct Fragment {
  uint32_t start = 0, end = 0;
};

/// Thompson's construction, straight from the text; repetitions read their operand again.
class PatternReader {
 public:
  PatternReader(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  CharDfa read() {
    const uint32_t start = add();
    const uint32_t end = add();
    do {
      const uint32_t open = add();
      empty(start, open);
      if (!take('^')) edge(open, {0, kLast}, open);
      const uint32_t begin = add();
      empty(open, begin);
      ends_line_ = false;
      const Fragment branch = sequence(true);
      empty(begin, branch.start);
      if (!ends_line_) edge(branch.end, {0, kLast}, branch.end);
      empty(branch.end, end);
    } while (take('|'));
    if (at_ < pattern_.size()) refuse("a closing parenthesis without an opening one");
    return determinise(start, end);
  }

 private:
  struct Node {
    std::vector<uint32_t> empties;
    std::vector<std::pair<Range, uint32_t>> edges;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    fail("{}: the pattern '{}' has {} at byte {}, which is not supported", where_, pattern_, what, at_);
  }

  uint32_t add() {
    if (nodes_.size() >= kMaxNodes) fail("{}: the pattern is too large", where_);
    nodes_.emplace_back();
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  void empty(uint32_t from, uint32_t to) { nodes_[from].empties.push_back(to); }
  void edge(uint32_t from, Range range, uint32_t to) { nodes_[from].edges.emplace_back(range, to); }

  bool take(char c) {
    if (at_ >= pattern_.size() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool done() const { return at_ >= pattern_.size() || pattern_[at_] == '|' || pattern_[at_] == ')'; }

  Fragment alternatives() {
    if (++depth_ > kMaxDepth) refuse("groups nested too deeply");
    const Fragment all{add(), add()};
    do {
      const Fragment branch = sequence(false);
      empty(all.start, branch.start);
      empty(branch.end, all.end);
    } while (take('|'));
    --depth_;
    return all;
  }

  Fragment sequence(bool outermost) {
    Fragment all{add(), 0};
    all.end = all.start;
    while (!done()) {
      if (pattern_[at_] == '$') {
        ++at_;
        if (!outermost || !done() || (at_ < pattern_.size() && pattern_[at_] == ')')) refuse("'$' before the end");
        ends_line_ = true;
        break;
      }
      const Fragment next = repeated();
      empty(all.end, next.start);
      all.end = next.end;
    }
    const uint32_t end = add();
    empty(all.end, end);
    all.end = end;
    return all;
  }

  Fragment repeated() {
    const size_t begin = at_;
    Fragment once = atom();
    uint32_t least = 1;
    uint32_t most = 1;
    bool endless = false;
    if (take('*')) {
      least = 0;
      endless = true;
    } else if (take('+')) {
      endless = true;
    } else if (take('?')) {
      least = 0;
    } else if (at_ < pattern_.size() && pattern_[at_] == '{') {
      ++at_;
      least = most = count();
      if (take(',')) {
        endless = at_ < pattern_.size() && pattern_[at_] == '}';
        if (!endless) most = count();
      }
      if (!take('}') || most < least) refuse("a malformed repetition");
    } else {
      return once;
    }
    take('?');  // lazy or greedy, the texts are the same
    if (at_ < pattern_.size() && std::string_view("*+?{").find(pattern_[at_]) != std::string_view::npos) {
      refuse("a repetition of a repetition");
    }
    const size_t behind = at_;
    const auto again = [&] {
      at_ = begin;
      const Fragment copy = atom();
      at_ = behind;
      return copy;
    };
    const uint32_t copies = endless ? std::max(least, 1u) : most;
    Fragment all{add(), add()};
    uint32_t end = all.start;
    for (uint32_t i = 0; i < copies; ++i) {
      const Fragment copy = i == 0 ? once : again();
      if (i >= least) empty(end, all.end);
      empty(end, copy.start);
      if (endless && i + 1 == copies) empty(copy.end, copy.start);
      end = copy.end;
    }
    empty(end, all.end);
    return all;
  }

  uint32_t count() {
    uint32_t value = 0;
    const size_t begin = at_;
    for (; at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(pattern_[at_] - '0');
      if (value > kMaxRepeat) refuse("a repetition of more than 1000");
    }
    if (at_ == begin) refuse("a malformed repetition");
    return value;
  }

  Fragment characters(const Set& set) {
    const Fragment all{add(), add()};
    for (const Range& range : normal(set)) edge(all.start, range, all.end);
    return all;
  }

  Fragment atom() {
    const char c = pattern_[at_];
    if (c == '(') {
      ++at_;
      if (take('?')) {
        if (take('<')) {
          if (at_ < pattern_.size() && (pattern_[at_] == '=' || pattern_[at_] == '!')) refuse("a lookbehind");
          const size_t close = pattern_.find('>', at_);
          if (close == pattern_.npos) refuse("a malformed group");
          at_ = close + 1;
        } else if (!take(':')) {
          refuse("a lookahead or flag");
        }
      }
      const Fragment all = alternatives();
      if (!take(')')) refuse("a group without its end");
      return all;
    }
    if (c == '[') return characters(set());
    if (c == '.') {
      ++at_;
      return characters(complement(kLineEnds));
    }
    if (c == '^') refuse("'^' behind the start");
    if (std::string_view("*+?{}]").find(c) != std::string_view::npos) refuse("a character that must be escaped");
    if (c == '\\') {
      ++at_;
      return characters(escape(false));
    }
    const uint32_t code = unicode::next(pattern_, at_);
    if (code == unicode::kInvalid) refuse("bytes that are not UTF-8");
    return characters({{code, code}});
  }

  /// Behind a backslash.
  Set escape(bool in_set) {
    if (at_ >= pattern_.size()) refuse("a backslash at its end");
    const char c = pattern_[at_++];
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 't':
        return {{'\t', '\t'}};
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'f':
        return {{'\f', '\f'}};
      case '0':
        return {{0, 0}};
      case 'x':
        return single(hex(2));
      case 'u':
        return single(unicode_escape());
      case 'b':
        if (in_set) return {{'\b', '\b'}};
        break;
      default:
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) && (c & 0x80) == 0) {
          return single(static_cast<uint32_t>(c));
        }
    }
    --at_;
    refuse("an escape");
  }

  static Set single(uint32_t code) { return {{code, code}}; }

  uint32_t hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < pattern_.size() ? pattern_[at_] : ' ';
      const auto lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + static_cast<uint32_t>(lower - 'a' + 10);
      } else {
        refuse("a malformed escape");
      }
    }
    return value;
  }

  uint32_t unicode_escape() {
    uint32_t code = 0;
    if (take('{')) {
      size_t digits = 0;
      while (at_ + digits < pattern_.size() && pattern_[at_ + digits] != '}') ++digits;
      if (digits == 0 || digits > 6) refuse("a malformed escape");
      code = hex(digits);
      take('}');
    } else {
      code = hex(4);
      if (code >= 0xd800 && code <= 0xdbff && take('\\') && take('u')) {
        const uint32_t low = hex(4);
        if (low < 0xdc00 || low > 0xdfff) refuse("half a character");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    if (code > kLast || (code >= 0xd800 && code <= 0xdfff)) refuse("half a character");
    return code;
  }

  /// [...]
  Set set() {
    ++at_;
    const bool negated = take('^');
    Set out;
    while (!take(']')) {
      if (at_ >= pattern_.size()) refuse("a set without its end");
      const Set low = set_member();
      const bool range = at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']';
      if (!range) {
        out.insert(out.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      const Set high = set_member();
      const bool simple =
          low.size() == 1 && high.size() == 1 && low[0].first == low[0].last && high[0].first == high[0].last;
      if (!simple || low[0].first > high[0].first) refuse("a malformed range");
      out.push_back({low[0].first, high[0].first});
    }
    return negated ? complement(out) : out;
  }

  Set set_member() {
    if (take('\\')) return escape(true);
    if (pattern_[at_] == '[') refuse("a set inside a set");
    const uint32_t code = unicode::next(pattern_, at_);
    if (code == unicode::kInvalid) refuse("bytes that are not UTF-8");
    return single(code);
  }

  std::vector<uint32_t> closed(std::vector<uint32_t> nodes) {
    std::vector<uint32_t> pending = nodes;
    std::vector<bool>& seen = seen_;
    seen.assign(nodes_.size(), false);
    for (const uint32_t node : nodes) seen[node] = true;
    while (!pending.empty()) {
      const uint32_t node = pending.back();
      pending.pop_back();
      for (const uint32_t to : nodes_[node].empties) {
        if (++work_ > kMaxWork) fail("{}: the pattern '{}' is too large", where_, pattern_);
        if (seen[to]) continue;
        seen[to] = true;
        nodes.push_back(to);
        pending.push_back(to);
      }
    }
    std::ranges::sort(nodes);
    return nodes;
  }

  CharDfa determinise(uint32_t start, uint32_t end) {
    CharDfa out;
    std::map<std::vector<uint32_t>, uint32_t> ids;
    std::vector<const std::vector<uint32_t>*> subsets;
    const auto state_of = [&](std::vector<uint32_t> nodes) {
      work_ += nodes_.size() / 16;
      const auto [it, added] = ids.try_emplace(closed(std::move(nodes)), static_cast<uint32_t>(subsets.size()));
      if (added) {
        if (subsets.size() >= CharDfa::kMaxStates) fail("{}: the pattern '{}' needs too many states", where_, pattern_);
        subsets.push_back(&it->first);
      }
      return it->second;
    };
    state_of({start});
    for (size_t i = 0; i < subsets.size(); ++i) {
      CharDfa::State state;
      std::map<uint32_t, std::vector<std::pair<uint32_t, bool>>> cuts;  // where edges begin (true) and have ended
      for (const uint32_t node : *subsets[i]) {
        state.accepting |= node == end;
        for (const auto& [range, to] : nodes_[node].edges) {
          cuts[range.first].emplace_back(to, true);
          cuts[range.last + 1].emplace_back(to, false);
          ++work_;
        }
      }
      std::map<uint32_t, int> open;
      for (auto cut = cuts.begin(); cut != cuts.end(); ++cut) {
        for (const auto& [to, begins] : cut->second) {
          if ((open[to] += begins ? 1 : -1) == 0) open.erase(to);
        }
        if (open.empty()) continue;
        std::vector<uint32_t> targets;
        for (const auto& [to, times] : open) targets.push_back(to);
        const uint32_t next = state_of(std::move(targets));
        const uint32_t last = std::next(cut)->first - 1;
        if (!state.edges.empty() && state.edges.back().to == next && state.edges.back().last + 1 == cut->first) {
          state.edges.back().last = last;
        } else {
          state.edges.push_back({cut->first, last, next});
        }
      }
      out.states.push_back(std::move(state));
    }
    trim(out);
    return out;
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ends_line_ = false;  // the branch being read ends in '$'
  std::vector<Node> nodes_;
  std::vector<bool> seen_;
  size_t work_ = 0;
};

constexpr std::string_view kDate =
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))";
constexpr std::string_view kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kDuration =
    "P(?:[0-9]{1,4}W|[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D|"
    "(?:[0-9]{1,4}D)?T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))";
constexpr std::string_view kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
constexpr std::string_view kOctet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// The whole of a text of this format; empty for formats that constrain nothing.
std::string format_pattern(std::string_view format) {
  const std::string host = fmt::format("{0}(?:\\.{0}){{0,3}}", kLabel);
  if (format == "date") return std::string(kDate);
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "duration") return std::string(kDuration);
  if (format == "uuid") return "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
  if (format == "ipv4") return fmt::format("{0}(?:\\.{0}){{3}}", kOctet);
  if (format == "ipv6") return "[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}";
  if (format == "hostname") return host;
  if (format == "email") {
    return fmt::format("[A-Za-z0-9_+-]{{1,32}}(?:\\.[A-Za-z0-9_+-]{{1,32}}){{0,3}}@{0}(?:\\.{0}){{1,3}}", kLabel);
  }
  if (format == "uri") {
    return fmt::format(
        "[a-z][a-z0-9+]{{0,15}}://{}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,64}}){{0,8}}"
        "(?:\\?[A-Za-z0-9._~=&-]{{0,128}})?",
        host);
  }
  return {};
}

}  // namespace

CharDfa pattern_dfa(std::string_view pattern, const std::string& where) {
  if (pattern.size() > 4096) fail("{}: the pattern has {} bytes; at most 4096 are supported", where, pattern.size());
  return PatternReader(pattern, where).read();
}

std::shared_ptr<const CharDfa> format_dfa(std::string_view format) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const CharDfa>, std::less<>> known;
  const std::string pattern = format_pattern(format);
  if (pattern.empty()) return nullptr;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const CharDfa>& dfa = known[std::string(format)];
  if (!dfa) dfa = std::make_shared<const CharDfa>(pattern_dfa("^(?:" + pattern + ")$", "format"));
  return dfa;
}

}  // namespace carat

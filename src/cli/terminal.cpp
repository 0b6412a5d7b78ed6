#include "cli/terminal.h"

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <system_error>

namespace carat {
namespace {

constexpr int kHistoryLines = 1000;

struct CloseEditor {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct CloseHistory {
  void operator()(History* history) const { history_end(history); }
};

}  // namespace

struct LineReader::Editor {
  explicit Editor(const std::filesystem::path& history_path) : path(history_path) {
    // The editor takes bytes apart by the locale: without UTF-8 every umlaut would count as two characters.
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    history.reset(history_init());
    HistEvent event;
    history_w(event, H_SETSIZE, kHistoryLines);
    history_w(event, H_SETUNIQUE, 1);
    if (!path.empty()) {
      std::error_code ignored;
      std::filesystem::create_directories(path.parent_path(), ignored);
      history_w(event, H_LOAD, path.c_str());
    }
    line.reset(el_init("carat", stdin, stdout, stderr));
    if (!line) return;
    el_set(line.get(), EL_CLIENTDATA, this);
    el_set(line.get(), EL_PROMPT, &Editor::show_prompt);
    el_set(line.get(), EL_EDITOR, "emacs");
    el_set(line.get(), EL_HIST, &::history, history.get());
    el_source(line.get(), nullptr);  // ~/.editrc
    // While a line is being typed these are keys like others, and no signals.
    el_set(line.get(), EL_SETTY, "-d", "-isig", nullptr);
    el_wset(line.get(), EL_ADDFN, L"carat-drop-line", L"Drop the line", &Editor::drop_line);
    el_set(line.get(), EL_BIND, "^C", "carat-drop-line", nullptr);
    el_wset(line.get(), EL_ADDFN, L"carat-suspend", L"Suspend the program", &Editor::suspend);
    el_set(line.get(), EL_BIND, "^Z", "carat-suspend", nullptr);
  }

  template <typename... Args>
  void history_w(HistEvent& event, int operation, Args... args) {
    if (history) ::history(history.get(), &event, operation, args...);
  }

  static Editor* of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return static_cast<Editor*>(self);
  }
  static char* show_prompt(EditLine* line) { return of(line)->prompt.data(); }
  static unsigned char drop_line(EditLine* line, wint_t) {
    of(line)->interrupted = true;
    return CC_EOF;
  }

  static unsigned char suspend(EditLine* line, wint_t) {
    el_set(line, EL_PREP_TERM, 0);
    std::raise(SIGTSTP);
    el_set(line, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }

  void remember(const char* text) {
    HistEvent event;
    history_w(event, H_ENTER, text);
    if (!path.empty()) history_w(event, H_SAVE, path.c_str());
  }

  std::filesystem::path path;
  std::string prompt;
  bool interrupted = false;
  std::unique_ptr<History, CloseHistory> history;
  std::unique_ptr<EditLine, CloseEditor> line;
};

LineReader::LineReader(const std::filesystem::path& history) {
  if (!is_terminal(0) || !is_terminal(1)) return;
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::strcmp(term, "dumb") == 0) return;
  auto editor = std::make_unique<Editor>(history);
  if (editor->line) editor_ = std::move(editor);
}

LineReader::~LineReader() = default;

LineReader::Outcome LineReader::read(const std::string& prompt, std::string& line) {
  line.clear();
  if (editor_ == nullptr) {
    return std::getline(std::cin, line) ? Outcome::kLine : Outcome::kEnd;
  }
  editor_->prompt = prompt;
  editor_->interrupted = false;
  int count = 0;
  const char* text = el_gets(editor_->line.get(), &count);
  if (editor_->interrupted) {
    el_reset(editor_->line.get());
    std::cout << "^C\n" << std::flush;
    return Outcome::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Outcome::kEnd;
  line.assign(text, static_cast<size_t>(count));
  if (line.find_first_not_of(" \t\r\n") != std::string::npos) editor_->remember(line.c_str());
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Outcome::kLine;
}

bool is_terminal(int fd) {
  return isatty(fd) == 1;
}

std::string terminal_safe(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x7f || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      safe += '^';
      safe += static_cast<char>(byte ^ 0x40);
      continue;
    }
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {  // the control characters U+0080 to U+009F
      safe += fmt::format("<U+00{:02X}>", next);
      ++i;
      continue;
    }
    safe += text[i];
  }
  return safe;
}

std::filesystem::path history_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return std::filesystem::path(state) / "carat" / "history";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::filesystem::path(home) / ".local" / "state" / "carat" / "history";
  }
  return {};
}

}  // namespace carat

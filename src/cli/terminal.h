// What a person's terminal asks for: whether it is there, text that cannot command it, and lines typed with an editor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace carat {

/// Whether file descriptor 0, 1 or 2 is a terminal.
bool is_terminal(int fd);

/// `text` with control characters spelled out ("^[" for escape), so that what a model says cannot move the cursor,
/// change colours or retitle the window. Line feeds and tabs stay; valid UTF-8 stays valid.
std::string terminal_safe(std::string_view text);

/// Reads lines: with editing and history when standard input and output are a terminal, plainly otherwise.
class LineReader {
 public:
  /// `history`: a file that keeps the lines typed at a terminal; missing directories are made, and what cannot be read
  /// or written is left alone. Empty: no history beyond this session.
  explicit LineReader(const std::filesystem::path& history);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Outcome : uint8_t { kLine, kInterrupted, kEnd };

  /// The next line, without its line feed. `prompt` is shown only when interactive. kInterrupted: Ctrl-C was typed, and
  /// what stood in the line is gone.
  Outcome read(const std::string& prompt, std::string& line);

  bool interactive() const { return editor_ != nullptr; }

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null when plain
};

/// $XDG_STATE_HOME/carat/history, else ~/.local/state/carat/history; empty when there is no home directory.
std::filesystem::path history_file();

}  // namespace carat

#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/error.h"

#if !defined(__linux__)
extern char** environ;  // which POSIX leaves to the program to declare
#endif

namespace carat {
namespace {

constexpr size_t kOutputLimit = 64 * 1024;
constexpr int kTickMilliseconds = 200;

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& extra) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    bool replaced = false;
    for (const auto& [name, value] : extra) {
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    }
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [name, value] : extra) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

/// A pipe that programs started meanwhile by other threads do not inherit.
int open_pipe(std::array<int, 2>& ends) {
#if defined(__linux__)
  return ::pipe2(ends.data(), O_CLOEXEC);
#else
  // Not in one step: a program started in between keeps the pipe open as long as it runs.
  if (::pipe(ends.data()) != 0) return -1;
  for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  return 0;
#endif
}

/// Reads until the other end closes.
std::string drain(int fd, const std::function<void()>& on_tick) {
  std::string output;
  std::array<char, 4096> chunk{};
  while (true) {
    pollfd waiting{fd, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, on_tick ? kTickMilliseconds : -1);
    if (ready < 0 && errno != EINTR) break;
    if (on_tick) on_tick();
    if (ready <= 0) continue;
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    output.append(chunk.data(), static_cast<size_t>(got));
    if (output.size() > 2 * kOutputLimit) output.erase(0, output.size() - kOutputLimit);
  }
  if (output.size() > kOutputLimit) output.erase(0, output.size() - kOutputLimit);
  return output;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          const std::function<void()>& on_tick) {
  std::array<int, 2> pipe{};
  if (open_pipe(pipe) != 0) fail("cannot start {}: {}", arguments.at(0), std::strerror(errno));
  FileActions actions;
  posix_spawn_file_actions_addopen(actions.get(), 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(actions.get(), pipe[1], 1);
  posix_spawn_file_actions_adddup2(actions.get(), pipe[1], 2);
  std::vector<std::string> words = arguments;
  std::vector<std::string> variables = merged_environment(environment);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, words.at(0).c_str(), actions.get(), nullptr, pointers(words).data(),
                                   pointers(variables).data());
  ::close(pipe[1]);
  ProcessResult result;
  if (error != 0) {
    ::close(pipe[0]);
    if (error == ENOENT || error == EACCES || error == ENOEXEC) return result;
    fail("cannot start {}: {}", arguments[0], std::strerror(error));
  }
  result.started = true;
  try {
    result.output = drain(pipe[0], on_tick);
  } catch (...) {
    ::close(pipe[0]);  // the child gets SIGPIPE when it next speaks; it is waited for so that no zombie stays
    wait_for(child);
    throw;
  }
  ::close(pipe[0]);
  result.status = wait_for(child);
  return result;
}

std::string ProcessResult::last_line(std::string_view prefix) const {
  std::string fallback;
  std::string_view rest = output;
  while (!rest.empty()) {
    const size_t end = rest.find_last_of('\n');
    std::string_view line = end == std::string_view::npos ? rest : rest.substr(end + 1);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (!prefix.empty() && line.starts_with(prefix)) {
      line.remove_prefix(prefix.size());
      while (line.starts_with(' ')) line.remove_prefix(1);
      return std::string(line);
    }
    if (fallback.empty()) fallback = line;
  }
  return fallback;
}

}  // namespace carat

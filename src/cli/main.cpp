// The carat command: parses the command line and runs the verb that it names.
// Exit status: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "cli/version.h"

namespace {

/// Sentences may quote names that a file made up.
void complain(const std::exception& error) {
  std::fprintf(stderr, "carat: %s\n", carat::terminal_safe(error.what()).c_str());
}

/// Whether standard output is a pipe that nobody reads any more. The failed write itself may be long past, and its
/// errno gone.
bool reader_left() {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

/// What an action printed may still fail to arrive: a full disk is an error, a reader that went away is not.
int flush_output(int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  const int error = errno;
  if (error == EPIPE || reader_left()) return status;
  std::fprintf(stderr, "carat: cannot write to standard output%s%s\n", error == 0 ? "" : ": ",
               error == 0 ? "" : std::strerror(error));
  return 1;
}

bool is_verb(const CLI::App& app, const char* name) {
  const auto same = [name](const CLI::App* verb) { return verb->check_name(name); };
  return !app.get_subcommands(same).empty();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"carat runs Google's Gemma models on your machine."};
  app.name("carat");
  app.set_version_flag("--version", "carat " + carat::version());
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help for all verbs");
  app.footer(
      "First steps:\n"
      "  carat get gemma3-270m\n"
      "  carat generate gemma3-270m --raw \"Once upon a time\"\n"
      "\"carat VERB --help\" explains a verb.");
  carat::Action action;
  carat::add_generate(app, action);
  carat::add_chat(app, action);
  carat::add_serve(app, action);
  carat::add_get(app, action);
  carat::add_ls(app, action);
  carat::add_rm(app, action);
  carat::add_inspect(app, action);
  carat::add_fit(app, action);
  carat::add_tokenize(app, action);
  carat::add_render(app, action);
  carat::add_logits(app, action);
  carat::add_perplexity(app, action);
  carat::add_bench(app, action);
  carat::add_kv_calibrate(app, action);
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  if (argv[1][0] != '-' && !is_verb(app, argv[1])) {
    std::fprintf(stderr, "carat: there is no verb \"%s\"; \"carat --help\" lists them\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return flush_output(app.exit(error));  // --help, --version
    const auto verbs = app.get_subcommands();
    const std::string verb = verbs.empty() ? "" : " " + verbs.front()->get_name();
    std::fprintf(stderr, "carat: %s; \"carat%s --help\" explains\n", error.what(), verb.c_str());
    return 2;
  }
  try {
    return flush_output(action());
  } catch (const carat::UsageError& error) {
    complain(error);
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("carat: out of memory\n", stderr);
  } catch (const std::exception& error) {
    complain(error);
  }
  return 1;
}

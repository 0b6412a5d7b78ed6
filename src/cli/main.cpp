// The carat command: parses the command line and runs the verb that it names.
// Exit status: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/verbs.h"
#include "cli/version.h"

int main(int argc, char** argv) {
  CLI::App app{"carat runs Google's Gemma models on your machine."};
  app.name("carat");
  app.set_version_flag("--version", "carat " + carat::version());
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help for all verbs");
  app.footer("First steps:\n"
             "  carat get gemma3-270m\n"
             "  carat generate gemma3-270m \"Tell me a story.\"\n"
             "\"carat VERB --help\" explains a verb.");
  carat::Action action;
  carat::add_generate(app, action);
  carat::add_chat(app, action);
  carat::add_get(app, action);
  carat::add_ls(app, action);
  carat::add_rm(app, action);
  carat::add_inspect(app, action);
  carat::add_tokenize(app, action);
  carat::add_render(app, action);
  carat::add_logits(app, action);
  carat::add_perplexity(app, action);
  carat::add_bench(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return action();
  } catch (const std::bad_alloc&) {
    std::fputs("carat: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "carat: %s\n", error.what());
  }
  return 1;
}

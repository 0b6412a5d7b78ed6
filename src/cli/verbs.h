// The verbs of the carat command. Each adds its subcommand to the app and, when it is the one on the command line, sets
// the action that main then runs. An action returns the exit status: 0, or 1 after printing one sentence to stderr
// itself; it may throw Error, which main prints.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace carat {

using Action = std::function<int()>;

void add_generate(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_get(CLI::App& app, Action& action);
void add_ls(CLI::App& app, Action& action);
void add_rm(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_fit(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_render(CLI::App& app, Action& action);
void add_logits(CLI::App& app, Action& action);
void add_perplexity(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_kv_calibrate(CLI::App& app, Action& action);

}  // namespace carat

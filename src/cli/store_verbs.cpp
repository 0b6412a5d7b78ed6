// carat get, ls, rm: the model store.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "chat/chat.h"
#include "checkpoint/fetch.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace carat {
namespace {

void list(bool json) {
  const std::vector<StoredModel> models = list_models();
  if (json) {
    Json array = Json::array();
    for (const StoredModel& model : models) {
      array.push_back({{"name", model.name},
                       {"path", model.path.string()},
                       {"bytes", model.bytes},
                       {"kind", model.kind == StoredModel::Kind::kGguf ? "gguf" : "safetensors"},
                       {"in_store", model.in_store}});
    }
    std::puts(array.dump(2).c_str());
    return;
  }
  if (models.empty()) {
    fmt::print("No models yet. \"carat get gemma3-270m\" fetches the first one into {}.\n", store_directory().string());
    return;
  }
  size_t width = 5;
  for (const StoredModel& model : models) width = std::max(width, model.name.size());
  fmt::print("{:<{}}  {:>9}  {:<11}  WHERE\n", "MODEL", width, "SIZE", "KIND");
  for (const StoredModel& model : models) {
    fmt::print("{:<{}}  {:>9}  {:<11}  {}\n", model.name, width, format_bytes(model.bytes),
               model.kind == StoredModel::Kind::kGguf ? "GGUF" : "safetensors",
               model.in_store ? "store" : "Hugging Face cache");
  }
}

}  // namespace

void add_get(CLI::App& app, Action& action) {
  struct Flags {
    std::string name;
    std::string file;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("get", "Fetch a model into the store and print its path");
  verb->add_option("NAME", flags->name, "gemma3-270m, or a Hugging Face id: owner/name or owner/name@revision")
      ->required();
  verb->add_option("--file", flags->file, "Which GGUF file of a repository that has several");
  add_examples(*verb,
               "  carat get gemma3-270m\n"
               "  carat get mlx-community/gemma-4-e2b-it-4bit\n"
               "  carat get owner/name-GGUF --file name-Q4_K_M.gguf\n"
               "Interrupted downloads resume. HF_ENDPOINT and HF_TOKEN are honoured.");
  verb->callback([flags, &action] {
    action = [flags] {
      const auto path = get_model(
          flags->name, {.file = flags->file, .say = [](std::string_view news) { fmt::print(stderr, "{}\n", news); }});
      std::puts(path.c_str());
      return 0;
    };
  });
}

void add_ls(CLI::App& app, Action& action) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("ls", "List the models of the store and the Hugging Face cache");
  verb->add_flag("--json", *json, "As JSON");
  add_examples(*verb, "  carat ls");
  verb->callback([json, &action] {
    action = [json] {
      list(*json);
      return 0;
    };
  });
}

void add_rm(CLI::App& app, Action& action) {
  const auto name = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("rm", "Delete a model from the store");
  verb->add_option("NAME", *name, "As carat ls prints it")->required();
  add_examples(*verb, "  carat rm gemma3-270m");
  verb->callback([name, &action] {
    action = [name] {
      fmt::print("Freed {}.\n", format_bytes(remove_model(*name)));
      return 0;
    };
  });
}

}  // namespace carat

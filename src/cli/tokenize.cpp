// carat tokenize and carat render: what a model is given.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "chat/chat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/prompt_format.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  bool as_text = false;
  bool bos = false;
  bool json = false;
};

/// A tokenizer.json alone will do; anything else must be a model.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (std::filesystem::path(name).extension() == ".json") return Tokenizer::from_json(name);
  return Tokenizer::load(*Checkpoint::open(resolve_model(name)));
}

/// The piece as one line that a terminal can show.
std::string one_line(std::string_view piece) {
  std::string line;
  for (const char c : terminal_safe(piece)) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else {
      line += c;
    }
  }
  return line;
}

int tokenize(const TokenizeFlags& flags) {
  const std::string text = text_input(flags.text, flags.file, "the text");
  const auto tokenizer = open_tokenizer(flags.model);
  const auto specials = flags.as_text ? Tokenizer::Specials::kText : Tokenizer::Specials::kParse;
  std::vector<int> ids = tokenizer->encode(text, specials);
  if (flags.bos && (ids.empty() || ids.front() != tokenizer->bos_id())) ids.insert(ids.begin(), tokenizer->bos_id());
  if (flags.json) {
    Json pieces = Json::array();
    for (const int id : ids) pieces.push_back(tokenizer->piece(id));
    std::puts(Json{{"ids", ids}, {"pieces", pieces}}.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    return 0;
  }
  for (const int id : ids) fmt::print("{:>7}  {}\n", id, one_line(tokenizer->piece(id)));
  return 0;
}

struct RenderFlags {
  std::string format;
  std::string file;
  std::string model;
  std::string thinking = "default";
  bool no_generation_prompt = false;
};

/// The "options" of a request file, named as the templates name them.
ChatOptions options_of(const Json& request, const std::string& file) {
  ChatOptions options;
  const auto found = request.find("options");
  if (found == request.end()) return options;
  if (!found->is_object()) fail("{}: \"options\" is not an object", file);
  for (const auto& [name, value] : found->items()) {
    if (value.is_null()) continue;
    if (!value.is_boolean()) fail("{}: the option \"{}\" is not true or false", file, name);
    if (name == "enable_thinking") {
      options.enable_thinking = value.get<bool>();
    } else if (name == "preserve_thinking") {
      options.preserve_thinking = value.get<bool>();
    } else if (name == "add_generation_prompt") {
      options.add_generation_prompt = value.get<bool>();
    } else {
      fail("{}: unknown option \"{}\"; known are enable_thinking, preserve_thinking and add_generation_prompt", file,
           name);
    }
  }
  return options;
}

int render(const RenderFlags& flags) {
  const ChatFormat format = flags.model.empty() ? find_chat_format(flags.format).value_or(ChatFormat::kGemma4)
                                                : chat_format_of(*Checkpoint::open(resolve_model(flags.model)));
  const Json request = Json::parse(read_input(flags.file, "the conversation"), nullptr, false);
  if (request.is_discarded()) fail("{} is not valid JSON", flags.file);
  const bool whole = request.is_object();
  if (whole && !request.contains("messages")) fail("{} has no \"messages\"", flags.file);
  ChatOptions options = whole ? options_of(request, flags.file) : ChatOptions();
  if (flags.thinking != "default") options.enable_thinking = flags.thinking == "on";
  if (flags.no_generation_prompt) options.add_generation_prompt = false;
  const std::string text = render_chat(format, whole ? request["messages"] : request,
                                       whole ? request.value("tools", Json()) : Json(), options);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* verb = app.add_subcommand("tokenize", "Show the tokens of a text");
  verb->add_option("MODEL", flags->model, "A model, or a tokenizer.json")->required();
  verb->add_option("TEXT", flags->text, "The text; read from standard input when left out");
  verb->add_option("--file", flags->file, "Read the text from a file");
  verb->add_flag("--as-text", flags->as_text, "Control tokens written in the text are ordinary text");
  verb->add_flag("--bos", flags->bos, "Put the beginning-of-sequence token in front");
  verb->add_flag("--json", flags->json, "As JSON: ids and pieces");
  add_examples(*verb,
               "  carat tokenize gemma3-270m \"Hello, world\"\n"
               "  carat tokenize gemma3-270m --json --file notes.txt");
  verb->callback([flags, &action] { action = [flags] { return tokenize(*flags); }; });
}

void add_render(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<RenderFlags>();
  CLI::App* verb = app.add_subcommand("render", "Show the prompt text of a conversation");
  verb->add_option(
          "FILE", flags->file,
          "JSON: an array of messages, or {\"messages\": …, \"tools\": …, \"options\": …} (\"-\": standard input)")
      ->required();
  CLI::Option_group* format = verb->add_option_group("format");
  format->add_option("--format", flags->format, "The turn format")
      ->check(CLI::IsMember({"gemma3", "gemma4", "gemma4-interleaved"}));
  format->add_option("--model", flags->model, "The turn format of this model");
  format->require_option(1);
  verb->add_option("--thinking", flags->thinking, "on, off or default")->check(CLI::IsMember({"on", "off", "default"}));
  verb->add_flag("--no-generation-prompt", flags->no_generation_prompt, "Do not open the model's turn at the end");
  add_examples(*verb,
               "  carat render --format gemma4 conversation.json\n"
               "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | carat render --model gemma3-270m -");
  verb->callback([flags, &action] { action = [flags] { return render(*flags); }; });
}

}  // namespace carat

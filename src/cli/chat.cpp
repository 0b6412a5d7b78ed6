// carat chat: a conversation at the terminal, or with lines from a pipe.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "carat/engine.h"
#include "checkpoint/store.h"
#include "cli/conversation.h"
#include "cli/options.h"
#include "cli/prompt_cache.h"
#include "cli/settings.h"
#include "cli/speech_output.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace carat {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

constexpr std::string_view kHelp =
    "/help               this list\n"
    "/clear              begin a new conversation\n"
    "/system TEXT        set the system message (without TEXT: remove it)\n"
    "/set NAME VALUE     change a sampling parameter or max_tokens (without NAME: show them)\n"
    "/thinking on|off    let the model think first (Gemma 4)\n"
    "/regenerate         answer the last message again\n"
    "/undo               take back the last message and its answer\n"
    "/save FILE          write the conversation as JSON\n"
    "/load FILE          go on with a saved conversation\n"
    "/tokens             show how much of the context is used\n"
    "/quit               leave (also Ctrl-D)\n"
    "\"\"\" begins and ends a message of several lines. Ctrl-C stops an answer.\n";

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  std::string load;
  std::string prompt_cache;
  std::optional<size_t> prefix_cache;
  int max_tokens = 4096;
  bool thinking = false;
  bool quiet = false;
};

std::atomic<bool> interrupted{false};

/// While it lives Ctrl-C sets `interrupted` instead of ending the program.
class CatchInterrupt {
 public:
  explicit CatchInterrupt(bool active) : active_(active) {
    if (!active_) return;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &before_);
  }
  ~CatchInterrupt() {
    if (active_) sigaction(SIGINT, &before_, nullptr);
  }
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  bool active_;
  struct sigaction before_ {};
};

/// Thrown out of the reading of a prompt.
struct Interrupted {};

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// Cuts the first word off `text`.
std::string_view take_word(std::string_view& text) {
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view word = text.substr(0, end);
  text = trimmed(text.substr(end));
  return word;
}

/// What was typed: a command when it begins with "/" and did not stand in quotes.
struct Message {
  std::string text;
  bool quoted = false;
};

class Chat {
 public:
  Chat(const Flags& flags, Engine engine, bool interactive)
      : engine_(std::move(engine)),
        conversation_(flags.system),
        sampling_(flags.sampling.resolve(engine_.recommended_sampling())),
        max_tokens_(flags.max_tokens),
        interactive_(interactive),
        quiet_(flags.quiet || !interactive) {
    if (flags.thinking) thinking_ = true;
    if (!flags.load.empty()) load(flags.load);
  }

  /// Does what one message or command asks for; false ends the conversation. Throws Error, after which the conversation
  /// is as it was before.
  bool take(const Message& message) {
    if (!message.quoted && message.text.starts_with("/")) return command(message.text);
    if (trimmed(message.text).empty()) return true;
    conversation_.add_user(trimmed(message.text));
    answer();
    return true;
  }

  const Engine& engine() const { return engine_; }
  Engine& engine() { return engine_; }

 private:
  bool command(std::string_view text) {
    text = trimmed(text);
    const std::string_view name = take_word(text);
    const std::string argument(text);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      say(kHelp);
    } else if (name == "/clear") {
      conversation_.clear();
      news("A new conversation.");
    } else if (name == "/system") {
      conversation_.set_system(argument);
      news(argument.empty() ? "No system message." : "The system message is set.");
    } else if (name == "/set") {
      set(text);
    } else if (name == "/thinking") {
      if (argument != "on" && argument != "off") fail("/thinking is \"{}\"; expected on or off", argument);
      thinking_ = argument == "on";
      news("Thinking is " + argument + ".");
    } else if (name == "/regenerate") {
      regenerate();
    } else if (name == "/undo") {
      if (!conversation_.drop_turn()) fail("there is no message to take back");
      news("The last message is taken back.");
    } else if (name == "/save") {
      save(argument);
    } else if (name == "/load") {
      load(argument);
      news(fmt::format("{} messages from {}.", conversation_.size(), argument));
    } else if (name == "/tokens") {
      const size_t used = conversation_.empty() ? 0 : engine_.encode(rendered(conversation_)).size();
      say(fmt::format("{} of {} tokens of context\n", used, engine_.context_length()));
    } else {
      fail("there is no command {}; /help lists them, and a space in front makes it a message", name);
    }
    return true;
  }

  void set(std::string_view text) {
    if (text.empty()) {
      say(fmt::format("{}, max_tokens {}\n", describe_sampling(sampling_), max_tokens_));
      return;
    }
    const std::string_view name = take_word(text);
    if (text.empty()) fail("/set {} has no value", name);
    if (name == "max_tokens" || name == "max-tokens") {
      const int value = parse_integer(name, text);
      if (value < 1) fail("max_tokens is {}; expected 1 or more", value);
      max_tokens_ = value;
    } else {
      set_sampling(sampling_, name, text);
      if (name == "seed") turn_ = 0;
    }
    news(fmt::format("{} is {}.", name, text));
  }

  void regenerate() {
    const Conversation before = conversation_;
    if (!conversation_.drop_answer()) fail("there is no message to answer");
    try {
      if (!answer()) conversation_ = before;
    } catch (const Error&) {
      conversation_ = before;
      throw;
    }
  }

  void save(const std::string& path) {
    if (path.empty()) fail("/save has no file name");
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << conversation_.dump(2) << '\n';
    file.close();
    if (!file) fail("cannot write {}", path);
    news(fmt::format("{} messages are in {}.", conversation_.size(), path));
  }

  void load(const std::string& path) {
    if (path.empty()) fail("/load has no file name");
    if (path == "-") fail("a conversation is loaded from a file");
    Conversation loaded;
    loaded.parse(read_input(path), path);
    rendered(loaded);  // throws when the model's turn format cannot say it
    conversation_ = std::move(loaded);
  }

  std::string rendered(const Conversation& conversation) const {
    return engine_.render_chat({.messages = conversation.dump(), .tools = "", .thinking = thinking_});
  }

  /// Answers the conversation, which ends with a user message. When nothing comes of it that message is taken back:
  /// false.
  bool answer() {
    try {
      if (generate()) return true;
    } catch (const Error&) {
      conversation_.drop_turn();
      throw;
    }
    conversation_.drop_turn();
    return false;
  }

  /// False when the answer was stopped before its first word.
  bool generate() {
    const std::string prompt = rendered(conversation_);
    GenerateRequest request;
    request.prompt = engine_.encode(prompt);
    request.sampling = sampling_;
    request.sampling.seed += turn_++;  // each answer its own numbers, the whole session reproducible
    request.max_tokens = max_tokens_;
    interrupted = false;
    Progress progress("reading", request.prompt.size(), ProgressUnit::kItems);
    request.on_prefill = [&](int64_t done, int64_t total) {
      if (interrupted) throw Interrupted{};
      if (done < total) {
        progress.set(static_cast<uint64_t>(done));
      } else {
        progress.finish();
      }
    };
    SpeechOutput speech(engine_, prompt, true);
    GenerateResult result;
    try {
      result = engine_.generate(request, [&](const Piece& piece) { return speech.push(piece) && !interrupted; });
    } catch (const Interrupted&) {
      result.finish = FinishReason::kCancelled;
    }
    speech.finish();
    const bool stopped = result.finish == FinishReason::kCancelled;
    if (!stopped || !speech.empty()) conversation_.add(speech.message());
    statistics(result);
    return !stopped || !speech.empty();
  }

  void statistics(const GenerateResult& result) const {
    const size_t count = result.tokens.size();
    if (result.finish == FinishReason::kMaxTokens) {
      fmt::print(stderr, "[stopped after {} tokens; /set max_tokens N allows more]\n", count);
    } else if (result.finish == FinishReason::kContext) {
      fmt::print(stderr, "[the context is full; /clear begins a new conversation]\n");
    } else if (result.finish == FinishReason::kCancelled) {
      if (interactive_) fmt::print(stderr, "[stopped]\n");
    } else if (!quiet_ && count > 1 && result.decode_seconds > 0.0) {
      fmt::print(stderr, "\033[2m[{} of {} prompt tokens read, {} generated at {:.1f}/s]\033[0m\n",
                 result.prompt_tokens - result.reused_tokens, result.prompt_tokens, count,
                 static_cast<double>(count - 1) / result.decode_seconds);
    }
  }

  /// What a command was asked to print.
  void say(std::string_view text) const {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  /// What a person may want to know, and a pipe does not.
  void news(const std::string& text) const {
    if (interactive_) say(text + "\n");
  }

  Engine engine_;
  Conversation conversation_;
  SamplingParams sampling_;
  std::optional<bool> thinking_;
  int max_tokens_;
  uint64_t turn_ = 0;
  bool interactive_;
  bool quiet_;
};

/// The next message or command; several lines between """ and """ are one message.
LineReader::Outcome read_message(LineReader& reader, Message& message) {
  const auto read = [&](const std::string& prompt, std::string& line) {
    const LineReader::Outcome outcome = reader.read(prompt, line);
    while (!line.empty() && line.back() == '\r') line.pop_back();
    return outcome;
  };
  LineReader::Outcome outcome = read("> ", message.text);
  message.quoted = outcome == LineReader::Outcome::kLine && message.text.starts_with(kQuotes);
  if (!message.quoted) return outcome;
  message.text.erase(0, kQuotes.size());
  std::string line;
  while (!std::string_view(message.text).ends_with(kQuotes)) {  // they may stand on the first line already
    outcome = read(". ", line);
    if (outcome == LineReader::Outcome::kInterrupted) return outcome;
    if (outcome == LineReader::Outcome::kEnd) fail("a message that begins with \"\"\" never ends");
    message.text += '\n' + line;
  }
  message.text.resize(message.text.size() - kQuotes.size());
  return LineReader::Outcome::kLine;
}

/// Takes messages until they end. The exit status.
int converse(Chat& chat, LineReader& reader) {
  int status = 0;
  while (true) {
    Message message;
    try {
      const LineReader::Outcome outcome = read_message(reader, message);
      if (outcome == LineReader::Outcome::kEnd) break;
      if (outcome == LineReader::Outcome::kInterrupted) continue;
      if (!chat.take(message)) return status;
    } catch (const Error& error) {
      fmt::print(stderr, "carat: {}\n", terminal_safe(error.what()));
      if (!reader.interactive()) status = 1;  // a person has seen it; a script must learn of it
    }
    if (std::ferror(stdout) != 0) return status;
  }
  if (reader.interactive()) std::putchar('\n');
  return status;
}

int run(const Flags& flags) {
  flags.sampling.choice();  // bad values are found before the model is loaded
  LineReader reader(history_file());
  EngineOptions options = flags.model.engine_options();
  options.prefix_cache_bytes = flags.prefix_cache;
  Chat chat(flags, Engine::load(resolve_model(flags.model.model), options), reader.interactive());
  const bool saves = load_prompt_cache(chat.engine(), flags.prompt_cache);
  if (reader.interactive()) fmt::print("{}. /help lists the commands.\n", chat.engine().description());
  if (reader.interactive() && !chat.engine().has_chat_template()) {
    fmt::print("Its files ship no chat template: a pretrained model, which knows no turns?\n");
  }
  const CatchInterrupt catching(reader.interactive());
  const int status = converse(chat, reader);
  if (saves) chat.engine().save_prompt_cache(flags.prompt_cache);
  return status;
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("chat", "Talk with a model");
  add_model_flags(*verb, flags->model);
  add_adapter_flag(*verb, flags->model.adapters);
  verb->add_option("--system", flags->system, "System message");
  verb->add_option("--load", flags->load, "Go on with a conversation that /save has written");
  add_prompt_cache_flag(*verb, flags->prompt_cache);
  verb->add_option("--prefix-cache", flags->prefix_cache,
                   "Most bytes kept of earlier prompts, such as 512MB; 0 for none (default: a tenth of the memory, at "
                   "most 1 GiB)")
      ->transform(CLI::AsSizeValue(false));
  verb->add_flag("--thinking", flags->thinking, "Let the model think first (Gemma 4)");
  verb->add_option("--max-tokens", flags->max_tokens, "Most tokens of one answer")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  verb->add_flag("--quiet,-q", flags->quiet, "No line of statistics after an answer");
  add_sampling_flags(*verb, flags->sampling);
  add_examples(*verb,
               "  carat chat gemma3-270m\n"
               "  carat chat gemma3-270m --system \"Answer in rhymes.\" --temperature 0.7\n"
               "  printf 'Hello.\\nAnd again?\\n' | carat chat gemma3-270m --greedy\n"
               "Each line of a pipe is a message; /help inside lists the commands.");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

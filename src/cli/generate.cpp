// carat generate: one prompt, one answer, streamed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/memory.h"
#include "base/progress.h"
#include "carat/engine.h"
#include "chat/chat.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/prompt_cache.h"
#include "cli/speech_output.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace carat {
namespace {

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::string file;
  std::string system;
  std::string prompt_cache;
  std::vector<std::string> stop;
  int max_tokens = 512;
  int logprobs = -1;
  bool raw = false;
  bool thinking = false;
  bool specials = false;
  bool json = false;
  bool quiet = false;
};

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopText:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kMaxTokens:
    case FinishReason::kContext:
      break;
  }
  return "length";
}

/// The prompt as the model reads it.
std::string prompt_text(const Engine& engine, const Flags& flags, const std::string& prompt) {
  if (flags.raw) return prompt;
  Json messages = Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  // Not a byte of the prompt is lost: what is not UTF-8 becomes U+FFFD, as JSON cannot hold it.
  return engine.render_chat({.messages = messages.dump(-1, ' ', false, Json::error_handler_t::replace),
                             .tools = "",
                             .thinking = flags.thinking ? std::optional(true) : std::nullopt});
}

Json token_json(const Engine& engine, const Piece& piece) {
  const auto entry = [&](int token, float logprob) {
    return Json{{"token", token}, {"text", engine.decode({token})}, {"logprob", logprob}};
  };
  Json json = entry(piece.token, piece.logprob);
  json["top"] = Json::array();
  for (const TokenLogprob& other : piece.top) json["top"].push_back(entry(other.token, other.logprob));
  return json;
}

int run(const Flags& flags) {
  flags.sampling.choice();  // bad values are found before the model is loaded
  const std::string prompt = text_input(flags.prompt, flags.file, "the prompt");
  // With --raw an empty text is a beginning too: that of any text.
  if (prompt.find_first_not_of(" \t\r\n") == std::string::npos && !flags.raw) fail("the prompt is empty");
  EngineOptions options = flags.model.engine_options();
  if (flags.prompt_cache.empty()) options.prefix_cache_bytes = 0;  // there is no other prompt
  Engine engine = Engine::load(resolve_model(flags.model.model), options);
  const bool saves = load_prompt_cache(engine, flags.prompt_cache);
  GenerateRequest request;
  const std::string text = prompt_text(engine, flags, prompt);
  request.prompt = engine.encode(text);
  request.sampling = flags.sampling.resolve(engine.recommended_sampling());
  request.max_tokens = flags.max_tokens;
  request.stop = flags.stop;
  request.show_specials = flags.specials;
  if (flags.logprobs >= 0) {
    request.sampling.logprobs = true;
    request.sampling.top_logprobs = flags.logprobs;
  }
  Progress progress("reading the prompt", request.prompt.size(), ProgressUnit::kItems);
  request.on_prefill = [&](int64_t done, int64_t total) {
    progress.set(static_cast<uint64_t>(done));
    if (done == total) progress.finish();
  };

  // Text that is asked for as it is written, or continued, is not taken apart into thoughts, calls and answer.
  const bool plain = flags.raw || flags.specials;
  const bool terminal = is_terminal(1);
  SpeechOutput speech(engine, text, !flags.json && !plain);
  Json logprobs = Json::array();
  const GenerateResult result = engine.generate(request, [&](const Piece& piece) {
    if (flags.logprobs >= 0 && piece.token >= 0) logprobs.push_back(token_json(engine, piece));
    if (!plain) return speech.push(piece);
    if (flags.json) return true;
    const std::string shown = terminal ? terminal_safe(piece.text) : std::string(piece.text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    return std::fflush(stdout) == 0;  // a reader that went away ends the work
  });
  if (!plain) speech.finish();
  if (saves) engine.save_prompt_cache(flags.prompt_cache);

  const double decoded = static_cast<double>(result.tokens.size()) - 1;
  if (flags.json) {
    Json json{{"model", flags.model.model},
              {"text", plain ? result.text : speech.text()},
              {"tokens", result.tokens},
              {"finish_reason", finish_name(result.finish)},
              {"seed", request.sampling.seed},
              {"prompt_tokens", result.prompt_tokens},
              {"reused_tokens", result.reused_tokens},
              {"generated_tokens", result.tokens.size()},
              {"prefill_seconds", result.prefill_seconds},
              {"decode_seconds", result.decode_seconds},
              {"peak_rss_bytes", peak_resident_memory()}};
    if (!speech.reasoning().empty()) json["reasoning"] = speech.reasoning();
    if (!plain && speech.message().contains("tool_calls")) json["tool_calls"] = speech.message()["tool_calls"];
    if (flags.logprobs >= 0) json["logprobs"] = logprobs;
    std::puts(json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return 0;
  }
  if (plain) std::putchar('\n');
  if (flags.logprobs >= 0) std::puts(logprobs.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);  // before the statistics, where both go the same way
  if (!flags.quiet) {
    const bool length = finish_name(result.finish) == "length";
    const int64_t computed = result.prompt_tokens - result.reused_tokens;
    fmt::print(stderr, "[{} prompt tokens{} at {:.1f}/s, {} generated at {:.1f}/s, seed {}{}{}]\n",
               result.prompt_tokens,
               result.reused_tokens > 0 ? fmt::format(", {} of them cached, {}", result.reused_tokens, computed) : "",
               static_cast<double>(computed) / result.prefill_seconds, result.tokens.size(),
               decoded > 0 ? decoded / result.decode_seconds : 0.0, request.sampling.seed,
               length ? fmt::format(", stopped at {} tokens", result.tokens.size()) : "",
               flags.raw || engine.has_chat_template() ? "" : "; a pretrained model? --raw continues a text");
  }
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("generate", "Answer one prompt");
  add_model_flags(*verb, flags->model);
  add_adapter_flag(*verb, flags->model.adapters);
  verb->add_option("PROMPT", flags->prompt, "What to answer; read from standard input when left out");
  verb->add_option("--file", flags->file, "Read the prompt from a file");
  verb->add_option("--system", flags->system, "System message");
  add_prompt_cache_flag(*verb, flags->prompt_cache);
  verb->add_flag("--raw", flags->raw, "Continue the text itself, without the chat format");
  verb->add_flag("--thinking", flags->thinking, "Let the model think first (Gemma 4)");
  verb->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  verb->add_option("--stop", flags->stop, "End before this text; may be repeated")->allow_extra_args(false);
  verb->add_option("--logprobs", flags->logprobs, "Print log-probabilities with this many alternatives a token")
      ->check(CLI::Range(0, 100));
  verb->add_flag("--specials", flags->specials, "Show control tokens in the text");
  verb->add_flag("--json", flags->json, "Print one JSON object at the end instead of the text");
  verb->add_flag("--quiet,-q", flags->quiet, "No line of statistics on stderr");
  add_sampling_flags(*verb, flags->sampling);
  add_examples(*verb,
               "  carat generate gemma3-270m --raw \"Once upon a time\" --max-tokens 100 --temperature 0.8 --seed 7\n"
               "  carat generate MODEL \"Why is the sky blue?\"\n"
               "  cat notes.txt | carat generate MODEL --system \"Summarise what you are given.\"\n"
               "  carat generate MODEL --file book.txt --prompt-cache book.cache\n"
               "  carat generate MODEL --json --logprobs 3 \"Name a colour.\"\n"
               "gemma3-270m is a pretrained model: it continues texts (--raw) and answers no questions.");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

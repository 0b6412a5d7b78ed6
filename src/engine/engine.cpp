#include "carat/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "chat/chat.h"
#include "compute/cpu/cpu_device.h"
#include "engine/cached_sequence.h"
#include "engine/model_identity.h"
#include "engine/prompt_format.h"
#include "model/kv_choice.h"
#include "model/model.h"
#include "sampling/sampling.h"
#include "sampling/stop.h"
#include "tokenizer/tokenizer.h"

namespace carat {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

/// A ChatRequest with its JSON parsed. Throws Error where it is none.
struct Conversation {
  explicit Conversation(const ChatRequest& chat)
      : messages(parse(chat.messages, "chat messages")),
        tools(chat.tools.empty() ? Json() : parse(chat.tools, "tools")),
        options{.enable_thinking = chat.thinking} {}

  Json messages;
  Json tools;
  ChatOptions options;

 private:
  static Json parse(const std::string& text, std::string_view what) {
    Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded()) fail("the {} are not valid JSON", what);
    return json;
  }
};

}  // namespace

struct Engine::Impl {
  Impl(std::shared_ptr<const Checkpoint> opened, const EngineOptions& options)
      : checkpoint(std::move(opened)),
        tokenizer(Tokenizer::load(*checkpoint)),
        device(make_cpu_device({.threads = options.threads, .precision = options.precision})),
        model(checkpoint, device, options.chunk),
        adapter(load_adapters(options.adapters, model)),
        cache(*device, model.cache_spec(kv_choice_for(options, model.checkpoint()))),
        chat_format(chat_format_of(*checkpoint)),
        stop_ids(stop_ids_of(*checkpoint, *tokenizer)),
        sampler(merged(stop_ids, tokenizer->encode("\n"))),
        sequence(cache, options.prefix_cache_bytes.value_or(default_prefix_cache_bytes()),
                 adapter ? adapter->fingerprint() : ""),
        precision(options.precision) {
    if (adapter) batch.adapters = {adapter.get()};
  }

  std::string identity() const {
    return model_identity(*checkpoint, precision, adapter ? adapter->fingerprint() : std::string_view());
  }

  /// Appends tokens; leaves the logits after the last one in `result`.
  void append(std::span<const int> tokens, const std::function<void(int64_t, int64_t)>& on_progress) {
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = std::min(tokens.size() - done, static_cast<size_t>(model.max_rows()));
      batch.rows.clear();
      batch.add(sequence.id(), tokens.subspan(done, count), done + count == tokens.size(), adapter ? 0 : -1);
      model.forward(batch, cache, result);
      sequence.append(tokens.subspan(done, count));
      done += count;
      if (on_progress) on_progress(static_cast<int64_t>(done), static_cast<int64_t>(tokens.size()));
    }
  }

  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<Device> device;
  Model model;
  std::shared_ptr<const Adapter> adapter;  // null for none
  KvCache cache;
  ChatFormat chat_format;
  std::vector<int> stop_ids;  // sorted
  Sampler sampler;
  CachedSequence sequence;
  Precision precision;
  Batch batch;
  ForwardResult result;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::load(const std::filesystem::path& model, const EngineOptions& options) {
  if (options.chunk < 1) fail("the chunk is {} tokens; expected at least 1", options.chunk);
  return Engine(std::make_unique<Impl>(Checkpoint::open(model), options));
}

std::vector<int> Engine::encode(std::string_view text) const {
  return encode_with_bos(*impl_->tokenizer, text);
}

std::string Engine::render_chat(const ChatRequest& chat) const {
  const Conversation c(chat);
  return carat::render_chat(impl_->chat_format, c.messages, c.tools, c.options);
}

std::vector<int> Engine::encode_chat(const ChatRequest& chat) const {
  const Conversation c(chat);
  return encode_conversation(*impl_->tokenizer, impl_->chat_format, c.messages, c.tools, c.options);
}

std::string Engine::decode(const std::vector<int>& ids) const {
  return impl_->tokenizer->decode(ids);
}

GenerateResult Engine::generate(const GenerateRequest& request, const std::function<bool(const Piece&)>& on_piece) {
  Impl& e = *impl_;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) fail("the prompt has no tokens");
  if (prompt_tokens > context_length()) {
    fail("the prompt has {} tokens; the model's context is {}", prompt_tokens, context_length());
  }
  if (request.max_tokens < 0) fail("max_tokens is {}; expected 0 or more", request.max_tokens);
  validate(request.sampling, vocab_size());
  const std::vector<int> stop_ids = merged(e.stop_ids, request.stop_tokens);

  GenerateResult result;
  result.prompt_tokens = prompt_tokens;
  const Clock::time_point start = Clock::now();
  result.reused_tokens = e.sequence.begin(request.prompt);
  e.append(std::span(request.prompt).subspan(static_cast<size_t>(result.reused_tokens)), request.on_prefill);
  result.prefill_seconds = seconds_since(start);

  StreamDecoder decoder(e.tokenizer, request.show_specials);
  StopFilter filter(request.stop);
  std::vector<int> history = request.prompt;
  const size_t most = history.size() + static_cast<size_t>(std::min(request.max_tokens, context_length()));
  history.reserve(most);
  e.sequence.reserve(most);
  const Clock::time_point decode_start = Clock::now();
  result.finish = FinishReason::kMaxTokens;
  std::string shown;
  const auto end_of_text = [&] {  // what the filters still hold, once nothing can follow
    shown = filter.stopped() ? "" : filter.push(decoder.finish());
    shown += filter.finish();
    result.text += shown;
  };
  for (int i = 0; i < request.max_tokens; ++i) {
    const auto position = static_cast<int64_t>(history.size());
    const Sampled next = e.sampler.sample(e.result.logits, request.sampling, history, position);
    if (contains(stop_ids, next.token)) {
      result.finish = FinishReason::kStopToken;
      break;
    }
    history.push_back(next.token);
    result.tokens.push_back(next.token);
    shown = filter.push(decoder.push(next.token));
    result.text += shown;
    if (on_piece && !on_piece({next.token, shown, next.logprob, next.top})) {
      result.finish = FinishReason::kCancelled;
      break;
    }
    if (filter.stopped()) {
      result.finish = FinishReason::kStopText;
      break;
    }
    if (i + 1 == request.max_tokens) break;
    if (position >= context_length()) {
      result.finish = FinishReason::kContext;
      break;
    }
    e.append(std::span(history).last(1), {});
  }
  end_of_text();
  if (!shown.empty() && on_piece && result.finish != FinishReason::kCancelled) {
    on_piece({-1, shown, 0.0f, {}});
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

void Engine::save_prompt_cache(const std::filesystem::path& file) {
  if (impl_->sequence.tokens().empty()) return;
  save_cache_file(file, impl_->cache, impl_->sequence.contents(), impl_->identity());
}

int64_t Engine::load_prompt_cache(const std::filesystem::path& file) {
  CacheContents contents = load_cache_file(file, impl_->cache, impl_->identity());
  const auto length = static_cast<int64_t>(contents.tokens.size());
  if (length > context_length()) {
    fail("{} holds {} tokens; the model's context is {}", file.string(), length, context_length());
  }
  impl_->sequence.restore(std::move(contents));
  return length;
}

PrefixCacheStats Engine::prefix_cache() const {
  const PrefixTreeStats s = impl_->sequence.stats();
  return {s.entries, s.bytes, s.max_bytes, s.hits, s.misses, s.tokens_reused};
}

std::optional<int> Engine::token_id(std::string_view piece) const {
  return impl_->tokenizer->id(piece);
}

std::string_view Engine::chat_format() const {
  return chat_format_name(impl_->chat_format);
}

bool Engine::has_chat_template() const {
  return carat::has_chat_template(*impl_->checkpoint);
}

int Engine::context_length() const {
  return impl_->model.config().max_positions;
}
int Engine::vocab_size() const {
  return impl_->model.config().vocab;
}
const std::vector<int>& Engine::stop_tokens() const {
  return impl_->stop_ids;
}

SamplingParams Engine::recommended_sampling() const {
  SamplingParams params;
  const Checkpoint::SamplingDefaults& defaults = impl_->checkpoint->sampling_defaults();
  if (defaults.temperature) params.temperature = static_cast<float>(*defaults.temperature);
  if (defaults.top_k) params.top_k = *defaults.top_k;
  if (defaults.top_p) params.top_p = static_cast<float>(*defaults.top_p);
  return params;
}

std::string Engine::description() const {
  std::string text = fmt::format("{}, {} layers, {}", impl_->model.config().model_type,
                                 impl_->model.config().layer_count(), impl_->device->description());
  if (impl_->adapter) text += fmt::format(", an adapter of {} projections", impl_->adapter->modules());
  return text;
}

}  // namespace carat

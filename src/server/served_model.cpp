#include "server/served_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "chat/gemma3_tools.h"
#include "checkpoint/checkpoint.h"
#include "engine/prompt_format.h"
#include "model/kv_choice.h"

namespace carat::server {
namespace {

using Clock = std::chrono::steady_clock;

/// Tokens of a prompt's end that tell what the reply begins in: a turn's header and what the template opens after it.
constexpr size_t kPromptTail = 512;

/// What adapters must leave of `kv_bytes`: room for a conversation.
size_t most_for_adapters(const KvCache& cache, size_t kv_bytes) {
  const size_t least = std::max(kLeastKvBytes, 8 * cache.bytes_for(1));
  return kv_bytes - std::min(kv_bytes, least);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string_view end_name(FinishReason reason, bool failed) {
  if (failed) return "error";
  switch (reason) {
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kStopText:
      return "stop_text";
    case FinishReason::kMaxTokens:
      return "max_tokens";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      break;
  }
  return "cancelled";
}

/// One reply on its way from the engine to a dialect.
class ReplyStream final : public GenerationListener {
 public:
  /// `prompt` where its log-probabilities will be reported; empty else.
  ReplyStream(int index, ReplyReader reader, std::shared_ptr<const Tokenizer> tokenizer, std::vector<int> prompt,
              int64_t prompt_tokens, std::shared_ptr<ReplyListener> listener, Metrics& metrics)
      : index_(index),
        reader_(std::move(reader)),
        tokenizer_(std::move(tokenizer)),
        prompt_(std::move(prompt)),
        listener_(std::move(listener)),
        metrics_(metrics),
        prompt_tokens_(prompt_tokens) {}

  ~ReplyStream() override {
    if (!counted_) metrics_.generation("cancelled", prompt_tokens_, 0, generated_, 0.0);
  }
  ReplyStream(const ReplyStream&) = delete;
  ReplyStream& operator=(const ReplyStream&) = delete;

  /// It was never begun.
  void dismiss() { counted_ = true; }

  Verdict on_token(const GeneratedToken& token) override {
    ++generated_;
    const double seconds = seconds_since(last_);
    first_ ? metrics_.first_token(seconds) : metrics_.next_token(seconds);
    first_ = false;
    last_ = Clock::now();
    const Verdict verdict = reader_.push(token);
    pass_on();
    return verdict;
  }

  void on_end(GenerationEnd end) override {
    counted_ = true;
    metrics_.generation(end_name(end.finish, !end.error.empty()), end.prompt_tokens, end.reused_tokens,
                        end.generated_tokens, end.queued_seconds);
    ReplyEnd reply;
    reader_.finish(end, reply);
    if (end.error.empty()) {
      pass_on();
    } else {
      reply.error = ApiError{.status = 500, .message = end.error, .code = "generation_failed", .param = {}};
    }
    reply.prompt_seconds = end.prompt_seconds;
    reply.generation_seconds = end.generation_seconds;
    for (size_t i = 0; i < end.prompt_logprobs.size(); ++i) {
      const PromptLogprob& report = end.prompt_logprobs[i];
      reply.prompt_reports.push_back(report_of(*tokenizer_, prompt_[i + 1], report.logprob, report.top));
    }
    listener_->on_end(index_, reply);
  }

 private:
  void pass_on() {
    if (reader_.events().empty() && reader_.tokens().empty()) return;
    listener_->on_reply(index_, reader_.events(), reader_.tokens());
  }

  int index_;
  ReplyReader reader_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int> prompt_;  // with prompt_logprobs
  std::shared_ptr<ReplyListener> listener_;
  Metrics& metrics_;
  int64_t prompt_tokens_;
  int64_t generated_ = 0;
  bool counted_ = false;
  bool first_ = true;
  Clock::time_point last_ = Clock::now();
};

class Handle final : public TaskHandle {
 public:
  explicit Handle(EngineThread& engine) : engine_(engine) {}
  void add(uint64_t id) { ids_.push_back(id); }
  void cancel() override {
    for (const uint64_t id : ids_) engine_.cancel(id);
  }

 private:
  EngineThread& engine_;
  std::vector<uint64_t> ids_;
};

/// Collects the embeddings of a request's inputs.
class EmbeddingSet {
 public:
  using Done = std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)>;
  EmbeddingSet(size_t count, Done done) : left_(count), results_(count), done_(std::move(done)) {}

  /// On the engine's thread.
  void add(size_t index, GenerationEnd end) {
    if (!end.error.empty() && !error_) error_ = ApiError{.status = 500, .message = end.error, .code = {}, .param = {}};
    double square = 0.0;
    for (const float value : end.embedding) square += static_cast<double>(value) * static_cast<double>(value);
    const auto scale = static_cast<float>(square > 0.0 ? 1.0 / std::sqrt(square) : 1.0);
    for (float& value : end.embedding) value *= scale;
    results_[index] = {.values = std::move(end.embedding), .tokens = end.prompt_tokens};
    if (--left_ == 0) done_(std::move(results_), std::move(error_));
  }

 private:
  size_t left_;
  std::vector<EmbeddingResult> results_;
  std::optional<ApiError> error_;
  Done done_;
};

class EmbeddingListener final : public GenerationListener {
 public:
  EmbeddingListener(std::shared_ptr<EmbeddingSet> set, size_t index) : set_(std::move(set)), index_(index) {}
  Verdict on_token(const GeneratedToken& /*token*/) override { return {}; }
  void on_end(GenerationEnd end) override { set_->add(index_, std::move(end)); }

 private:
  std::shared_ptr<EmbeddingSet> set_;
  size_t index_;
};

}  // namespace

ServedModel::ServedModel(const NamedModel& named, std::shared_ptr<const Checkpoint> checkpoint,
                         std::shared_ptr<Device> device, std::shared_ptr<FairMutex> turn, size_t kv_bytes,
                         const ServingOptions& options, Metrics& metrics)
    : id_(named.id),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      options_(options),
      metrics_(metrics),
      checkpoint_(std::move(checkpoint)),
      tokenizer_(Tokenizer::load(*checkpoint_)),
      device_(std::move(device)),
      turn_(turn),
      model_(checkpoint_, device_, options.engine.chunk),
      cache_(*device_, model_.cache_spec(kv_choice_for(options.engine, *checkpoint_))),
      format_(chat_format_of(*checkpoint_)),
      markers_(find_markers([&](std::string_view piece) { return tokenizer_->id(piece); })),
      stop_ids_(stop_ids_of(*checkpoint_, *tokenizer_)),
      adapters_(model_, options.engine.chunk, most_for_adapters(cache_, kv_bytes)) {
  SchedulerOptions scheduling{
      .kv_bytes = kv_bytes,
      .reserved = [this] { return adapters_.bytes(); },
      .prefix_cache_bytes = std::min(kv_bytes, options.engine.prefix_cache_bytes.value_or(kv_bytes)),
      .max_running = options.max_running,
      .max_waiting = options.max_waiting,
      .mixed_rows = options.mixed_rows,
      .threads = options.engine.threads,
      .on_step = [this](int64_t rows, int64_t generations,
                        double seconds) { metrics_.step(rows, generations, seconds); }};
  engine_ = std::make_unique<EngineThread>(
      std::make_unique<Scheduler>(model_, cache_, merged(stop_ids_, tokenizer_->encode("\n")), std::move(scheduling)),
      std::move(turn));
}

ModelInfo ServedModel::info() const {
  return {.id = id_,
          .created = created_,
          .context_window = static_cast<int>(std::min<int64_t>(engine_->longest(), model_.config().max_positions)),
          .chat = has_chat_template(*checkpoint_),
          .thinking = markers_.channel_open >= 0,
          .adapters = adapters()};
}

// --- prompts ---------------------------------------------------------------------------------------------------------

ServedModel::Prompt ServedModel::prompt_of(const ChatTask& task) const {
  const bool with_tools =
      task.tools.is_array() && !task.tools.empty() && task.tool_choice.kind != ToolChoice::Kind::kNone;
  const ChatOptions options{.enable_thinking = task.thinking ? task.thinking : options_.thinking};
  const Json& tools = with_tools ? task.tools : Json();
  Prompt prompt;
  try {
    // Gemma 3 has no words for tools: a convention in plain text stands in.
    const bool plain = format_ == ChatFormat::kGemma3;
    prompt.ids =
        encode_conversation(*tokenizer_, format_, plain ? gemma3_messages(task.messages, tools) : task.messages,
                            plain ? Json() : tools, options);
  } catch (const Error& error) {
    refuse(400, error.what(), "invalid_messages", "messages");
  }
  Prelude prelude = Prelude::kNone;
  if (format_ == ChatFormat::kGemma3) {
    if (with_tools) prompt.parser.emplace<JsonCallParser>(tools);
  } else {
    const size_t tail = std::min(kPromptTail, prompt.ids.size());
    const std::vector<int> last(prompt.ids.end() - static_cast<std::ptrdiff_t>(tail), prompt.ids.end());
    const auto& parser = prompt.parser.emplace<SpeechParser>(markers_, tokenizer_->decode(last, true), format_);
    if (parser.thought_open()) {
      prelude = Prelude::kThoughtIsOpen;
    } else if (options.enable_thinking.value_or(false)) {
      prelude = Prelude::kMayThink;
    }
  }
  try {
    prompt.grammar = grammar_of(task, prelude);
  } catch (const Error& error) {
    const bool of_format = task.response_format.kind == ResponseFormat::Kind::kJsonSchema;
    refuse(400, error.what(), "invalid_schema", of_format ? "response_format" : "tools");
  }
  return prompt;
}

const std::shared_ptr<const GrammarVocabulary>& ServedModel::grammar_vocabulary() const {
  std::call_once(vocabulary_once_,
                 [&] { vocabulary_ = make_grammar_vocabulary(*tokenizer_, model_.config().vocab, stop_ids_); });
  return vocabulary_;
}

/// What binds the reply; null for nothing.
std::shared_ptr<const Grammar> ServedModel::grammar_of(const ChatTask& task, Prelude prelude) const {
  using Choice = ToolChoice::Kind;
  if (task.tool_choice.kind == Choice::kRequired || task.tool_choice.kind == Choice::kNamed) {
    return call_grammar(
        grammar_vocabulary(), task.tools,
        {.format = format_, .name = task.tool_choice.name, .parallel = task.parallel_tool_calls, .prelude = prelude});
  }
  if (task.response_format.kind == ResponseFormat::Kind::kText) {
    if (task.tool_choice.kind == Choice::kNone || !task.tools.is_array() || task.tools.empty()) return nullptr;
    return free_calls_.get(task.tools.dump(-1, ' ', false, Json::error_handler_t::replace),
                           [&] { return free_call_grammar(grammar_vocabulary(), task.tools, format_); });
  }
  return json_grammar(grammar_vocabulary(), task.response_format.schema, prelude);
}

int64_t ServedModel::count_prompt(const ChatTask& task) const {
  return static_cast<int64_t>(prompt_of(task).ids.size());
}

SamplingParams ServedModel::sampling_of(const SamplingChoice& asked) const {
  // What the makers of the models recommend, where a model's own files say nothing.
  const Checkpoint::SamplingDefaults& files = checkpoint_->sampling_defaults();
  thread_local std::mt19937_64 random{std::random_device{}()};
  SamplingParams params;
  params.temperature = static_cast<float>(files.temperature.value_or(1.0));
  params.top_k = files.top_k.value_or(64);
  params.top_p = static_cast<float>(files.top_p.value_or(0.95));
  params.presence_context = 0;  // the whole text, as OpenAI documents it
  params.frequency_context = 0;
  params.seed = random();
  options_.sampling.apply_to(params);
  asked.apply_to(params);
  return params;
}

// --- generations -----------------------------------------------------------------------------------------------------

uint64_t ServedModel::submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt > engine_->longest()) {
    refuse(400,
           "the prompt has " + std::to_string(prompt) + " tokens; this server holds " +
               std::to_string(engine_->longest()) + " tokens of prompt and answer together",
           "context_length_exceeded", "messages");
  }
  try {
    return engine_->submit(std::move(request), std::move(listener));
  } catch (const QueueFull& full) {
    const SchedulerStats now = stats();
    throw ApiFailure({.status = 429,
                      .message = "the server is busy: " + std::to_string(now.running) + " requests are running and " +
                                 std::to_string(now.waiting) + " are waiting",
                      .code = "queue_full",
                      .param = {},
                      .retry_after = static_cast<int>(std::clamp<int64_t>(now.waiting / 8, 1, 60))});
  } catch (const Error& error) {
    refuse(400, error.what());
  }
}

std::shared_ptr<TaskHandle> ServedModel::start(const GenerationTask& task, GenerationRequest request,
                                               const ReplyParser& parser, ReplyOptions reply,
                                               const std::shared_ptr<ReplyListener>& listener) {
  request.sampling = sampling_of(task.sampling);
  request.sampling.logprobs = task.logprobs || request.prompt_logprobs;
  request.sampling.top_logprobs = task.top_logprobs;
  if (!task.ignore_eos) request.stop_tokens = stop_ids_;
  request.stop_tokens = merged(std::move(request.stop_tokens), task.stop_tokens);
  request.adapter = adapters_.find(task.adapter);
  request.priority = task.priority;
  reply.stop = task.stop;
  reply.logprobs = task.logprobs;

  listener->on_prompt(static_cast<int64_t>(request.prompt.size()));
  auto handle = std::make_shared<Handle>(*engine_);
  const uint64_t seed = request.sampling.seed;
  try {
    for (int i = 0; i < task.n; ++i) {
      // Each choice draws from its own stream; the first is the one that a request for one alone gets.
      request.sampling.seed = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15U;
      auto stream = std::make_shared<ReplyStream>(i, ReplyReader(tokenizer_, parser, markers_, reply), tokenizer_,
                                                  request.prompt_logprobs ? request.prompt : std::vector<int>(),
                                                  static_cast<int64_t>(request.prompt.size()), listener, metrics_);
      try {
        handle->add(submit(request, stream));
      } catch (...) {
        stream->dismiss();
        throw;
      }
    }
  } catch (...) {
    handle->cancel();
    throw;
  }
  return handle;
}

std::shared_ptr<TaskHandle> ServedModel::chat(const ChatTask& task, const std::shared_ptr<ReplyListener>& listener) {
  Prompt prompt = prompt_of(task);
  GenerationRequest request;
  request.prompt = std::move(prompt.ids);
  request.grammar = std::move(prompt.grammar);
  const std::optional<int> most = task.max_tokens ? task.max_tokens : options_.max_tokens;
  request.max_tokens = most.value_or(model_.config().max_positions);
  return start(task, std::move(request), prompt.parser,
               {.stop = {},
                .logprobs = task.logprobs,
                .parallel_calls = task.parallel_tool_calls,
                .thinking_budget = task.thinking_budget},
               listener);
}

std::shared_ptr<TaskHandle> ServedModel::complete(const CompletionTask& task,
                                                  const std::shared_ptr<ReplyListener>& listener) {
  GenerationRequest request;
  request.prompt = task.prompt_ids.empty() ? encode_with_bos(*tokenizer_, task.prompt) : task.prompt_ids;
  request.prompt_logprobs = task.prompt_logprobs;
  request.max_tokens = task.max_tokens.value_or(16);
  return start(task, std::move(request), {}, {}, listener);
}

void ServedModel::embed(std::vector<std::vector<int>> inputs,
                        std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done) {
  auto set = std::make_shared<EmbeddingSet>(inputs.size(), std::move(done));
  Handle handle(*engine_);
  try {
    for (size_t i = 0; i < inputs.size(); ++i) {
      GenerationRequest request;
      request.prompt = std::move(inputs[i]);
      request.embedding = true;
      request.adapter = adapters_.find("");
      handle.add(submit(std::move(request), std::make_shared<EmbeddingListener>(set, i)));
    }
  } catch (...) {
    handle.cancel();
    throw;
  }
}

// --- adapters --------------------------------------------------------------------------------------------------------

AdapterInfo ServedModel::load_adapter(const std::string& id, const std::string& path) {
  AdapterInfo info = adapters_.load(id, path);
  engine_->memory_changed();
  return info;
}

}  // namespace carat::server

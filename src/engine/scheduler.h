// Many generations at once over one model: continuous batching.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cache/kv_cache.h"
#include "cache/prefix_tree.h"
#include "carat/engine.h"
#include "grammar/constraint.h"
#include "model/adapter.h"
#include "model/model.h"
#include "sampling/sampling.h"

namespace carat {

struct GenerationRequest {
  std::vector<int> prompt;  // token ids, BOS included; not empty
  SamplingParams sampling;
  int max_tokens = 256;          // >= 0
  std::vector<int> stop_tokens;  // any of them ends the generation
  std::shared_ptr<const Adapter> adapter;
  std::shared_ptr<const Grammar> grammar;  // what the answer must be in; null for anything
  int priority = 0;                        // higher goes first; equal ones in the order in which they came
  bool prompt_logprobs = false;            // GenerationEnd::prompt_logprobs is wanted
  bool embedding = false;                  // GenerationEnd::embedding is wanted, and no token
};

struct GeneratedToken {
  int token = 0;
  bool ends = false;     // a stop token: it belongs to no text
  float logprob = 0.0f;  // with sampling.logprobs
  std::span<const TokenLogprob> top;
};

/// What becomes of a generation after a token.
struct Verdict {
  bool stop = false;
  std::optional<int> next;  // the next token, instead of a drawn one
};

struct PromptLogprob {
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

struct GenerationEnd {
  FinishReason finish = FinishReason::kMaxTokens;
  std::string error;  // a sentence when something failed; empty else
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;     // of the prompt: their keys and values were cached
  int64_t generated_tokens = 0;  // the stop token included
  double queued_seconds = 0.0;
  double prompt_seconds = 0.0;                      // from its start to the first token
  double generation_seconds = 0.0;                  // after the first token
  std::vector<PromptLogprob> prompt_logprobs = {};  // of every prompt token but the first
  std::vector<float> embedding = {};  // [hidden]: mean over the positions of the hidden states after the final norm
};

/// Receives a generation, on the scheduler's thread. Must be quick and not throw.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  virtual Verdict on_token(const GeneratedToken& token) = 0;
  /// Last, and exactly once, unless the generation was cancelled.
  virtual void on_end(GenerationEnd end) = 0;
};

/// submit() finds the queue full.
class QueueFull : public Error {
 public:
  using Error::Error;
};

struct SchedulerOptions {
  size_t kv_bytes = size_t{1} << 30;  // most bytes of keys and values, those kept for later prompts included
  /// Bytes of kv_bytes that something else takes now, such as adapters. Called often, by any thread.
  std::function<size_t()> reserved = {};
  size_t prefix_cache_bytes = size_t{256} << 20;  // most of them kept for later prompts
  int max_running = 64;                           // generations in progress at once
  int max_waiting = 256;
  int mixed_rows = 128;  // most rows of a step in which some generation waits for its next token
  int threads = 0;       // that draw tokens; 0: one a physical core
  /// Called after each step with its number of rows and the seconds that it took.
  std::function<void(int64_t rows, int64_t generations, double seconds)> on_step = {};
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t waiting = 0;
  uint64_t preempted = 0;  // times that a generation gave its memory to others and was computed anew
  size_t kv_bytes_in_use = 0;
  size_t kv_bytes_taken = 0;
  size_t kv_bytes_limit = 0;
  PrefixTreeStats prefixes;
};

/// A queue of generations and the set of those in progress. Each step computes one batch: the next token of every
/// generation that has read its prompt, and chunks of the prompts of others. Half of the room for prompts goes to the
/// one that waits longest, half to the shortest: long prompts do not hold up short ones, and are not starved by them.
///
/// Memory: a generation starts when its prompt fits beside what runs. When a step would need more than kv_bytes(),
/// prefixes kept for later are dropped first; then the youngest generation of the lowest priority gives up its keys and
/// values and is computed anew later, which changes no bit of it. One that is alone and still does not fit ends with
/// FinishReason::kContext.
///
/// A prompt that begins like one that is just being read waits for it, and then goes on from where they part.
///
/// A generation's tokens depend on its request alone, whatever runs beside it (law 2). Not thread-safe.
class Scheduler {
 public:
  /// `cache` has `model`'s layout; both outlive the scheduler.
  Scheduler(Model& model, KvCache& cache, const std::vector<int>& xtc_protected, SchedulerOptions options);
  ~Scheduler();

  /// Throws Error for a request that is wrong or can never fit. May be called from any thread.
  void check(const GenerationRequest& request) const;
  /// `id` is the caller's and must be greater than all before it. Throws QueueFull, and what check() throws.
  void submit(uint64_t id, GenerationRequest request, std::shared_ptr<GenerationListener> listener);
  /// Forgets a generation; its listener hears no more. Harmless for ids that have ended.
  void cancel(uint64_t id);

  /// Ends all generations with an error.
  void abandon(const std::string& error);

  /// Computes one batch. Returns false when there was nothing to do; memory beyond kv_bytes() goes back in any case.
  bool step();

  /// What there is for keys and values now. May be called from any thread.
  size_t kv_bytes() const;
  /// Tokens of prompt and answer together that one generation can reach: of the model's context, what memory holds now.
  /// May be called from any thread.
  int64_t longest() const;
  /// Generations waiting and in progress together.
  int64_t most_open() const { return int64_t{options_.max_running} + options_.max_waiting; }
  SchedulerStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Generation {
    uint64_t id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationListener> listener;
    std::vector<int> tokens;     // of the prompt and generated
    int sequence = -1;           // of the cache; -1 while it waits
    int64_t computed = 0;        // of `tokens`: their keys and values are in the cache
    std::vector<int64_t> marks;  // lengths of the prompt at which others branch off, ascending
    int rows = 0;                // in the step's batch
    int bypassed = 0;            // times that a younger one was started first
    std::optional<Constraint> constraint;
    std::optional<int> forced;
    std::vector<double> sum;  // of hidden states
    GenerationEnd end;
    Clock::time_point submitted, started, first_token;

    int64_t pending() const { return static_cast<int64_t>(tokens.size()) - computed; }
    int64_t generated() const { return static_cast<int64_t>(tokens.size() - request.prompt.size()); }
    bool wants_all_rows() const { return request.prompt_logprobs && generated() == 0; }
    bool keeps_prefix() const { return !request.prompt_logprobs && !request.embedding; }
  };

  size_t limit() const;
  bool drop_prefixes(size_t bytes);
  void keep_within_memory();
  void admit();
  bool waits_for_prefix(const Generation& generation);
  void start(Generation& generation);
  bool plan();
  void grant(Generation& generation, int64_t rows);
  int64_t rows_within(const Generation& generation, int64_t rows) const;
  bool make_room();
  void preempt(Generation& generation);
  void compute();
  void take_results();
  void draw(Generation& generation, std::span<float> logits, Sampler& sampler, Sampled& sampled);
  void deliver(Generation& generation, const Sampled& sampled);
  void remember(Generation& generation, int64_t before);
  void finish(Generation& generation, FinishReason reason, std::string error = {});
  void sweep();

  std::string_view name_space(const Generation& generation) const;
  size_t bytes_to_start(const Generation& generation) const;

  Model& model_;
  KvCache& cache_;
  SchedulerOptions options_;
  PrefixTree tree_;
  ThreadPool pool_;
  std::vector<Sampler> samplers_;                     // one a thread
  std::vector<std::unique_ptr<Generation>> waiting_;  // by priority, then by age
  std::vector<std::unique_ptr<Generation>> running_;  // likewise
  uint64_t preempted_ = 0;
  size_t block_bytes_ = 0;  // of one block of every layer
  Batch batch_;
  ForwardResult result_;
  std::vector<Generation*> planned_;  // in batch order
  std::vector<Generation*> prompts_;  // scratch of plan()
  struct Draw {
    Generation* generation = nullptr;
    size_t logits = 0;  // row of the result
    Sampled sampled = {};
    std::string error = {};
  };
  std::vector<Draw> draws_;
};

}  // namespace carat

#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "base/search.h"
#include "sampling/distribution.h"

namespace carat {
namespace {

/// Rows of a step whose logits are all wanted, and so stay in memory together.
constexpr int64_t kScoredRows = 32;
/// After how many younger ones the first in the queue is waited for.
constexpr int kMostBypassed = 64;
/// A generation starts when there is room for its prompt and so many tokens more.
constexpr int64_t kHeadroom = 64;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// The log-probability of `token`, and the `top` most probable tokens. `logits` are left as they are.
PromptLogprob logprob_of(std::span<const float> logits, int token, int top) {
  Distribution distribution;
  distribution.start(logits);
  return {.logprob = distribution.logprob(logits[static_cast<size_t>(token)]), .top = distribution.top_logprobs(top)};
}

}  // namespace

Scheduler::Scheduler(Model& model, KvCache& cache, const std::vector<int>& xtc_protected, SchedulerOptions options)
    : model_(model),
      cache_(cache),
      options_(std::move(options)),
      tree_(cache, options_.prefix_cache_bytes),
      pool_(options_.threads) {
  if (options_.max_running < 1) fail("max_running is {}; expected at least 1", options_.max_running);
  if (options_.max_waiting < 0) fail("max_waiting is {}; expected 0 or more", options_.max_waiting);
  options_.max_running = static_cast<int>(std::min<int64_t>(options_.max_running, model.max_rows()));
  for (int i = 0; i < cache.layer_count(); ++i) block_bytes_ += cache.block_bytes(i);
  if (longest() < 2) {
    fail("{} bytes for keys and values are too few: blocks of {} positions take {} bytes, and a few lie idle",
         kv_bytes(), kKvBlock, block_bytes_);
  }
  for (int i = 0; i < pool_.threads(); ++i) samplers_.emplace_back(xtc_protected);
}

Scheduler::~Scheduler() {
  for (const auto& generation : running_) cache_.remove_sequence(generation->sequence);
}

void Scheduler::check(const GenerationRequest& request) const {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) fail("the prompt has no tokens");
  if (prompt_tokens > model_.config().max_positions) {
    fail("the prompt has {} tokens; the model's context is {}", prompt_tokens, model_.config().max_positions);
  }
  if (prompt_tokens > longest()) {
    fail("the prompt has {} tokens; the memory for keys and values holds {}", prompt_tokens, longest());
  }
  for (const int token : request.prompt) {
    if (token < 0 || token >= model_.config().vocab) {
      fail("the prompt has the token {}; the vocabulary has {}", token, model_.config().vocab);
    }
  }
  if (request.max_tokens < 0) fail("max_tokens is {}; expected 0 or more", request.max_tokens);
  validate(request.sampling, model_.config().vocab);
}

void Scheduler::submit(uint64_t id, GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
  check(request);
  if (static_cast<int64_t>(running_.size() + waiting_.size()) >= most_open()) {
    throw QueueFull("the queue is full");
  }

  auto generation = std::make_unique<Generation>();
  generation->id = id;
  generation->submitted = Clock::now();
  generation->end.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  generation->tokens = request.prompt;
  if (request.grammar) generation->constraint.emplace(request.grammar);
  generation->request = std::move(request);
  generation->listener = std::move(listener);
  const int priority = generation->request.priority;
  const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& other) { return other->request.priority < priority; });
  waiting_.insert(place, std::move(generation));
}

void Scheduler::cancel(uint64_t id) {
  std::erase_if(waiting_, [&](const auto& generation) { return generation->id == id; });
  for (const auto& generation : running_) {
    if (generation->id == id) generation->listener = nullptr;
  }
  sweep();
}

void Scheduler::abandon(const std::string& error) {
  for (const auto& generation : running_) finish(*generation, FinishReason::kCancelled, error);
  sweep();
  for (const auto& generation : std::exchange(waiting_, {})) {
    generation->end.finish = FinishReason::kCancelled;
    generation->end.error = error;
    generation->listener->on_end(std::move(generation->end));
  }
}

bool Scheduler::step() {
  keep_within_memory();
  admit();
  if (!plan()) return false;
  const Clock::time_point start = Clock::now();
  const auto rows = static_cast<int64_t>(batch_.rows.size());
  const auto generations = static_cast<int64_t>(planned_.size());
  compute();
  sweep();
  if (options_.on_step) options_.on_step(rows, generations, seconds_between(start, Clock::now()));
  return true;
}

SchedulerStats Scheduler::stats() const {
  return {.running = static_cast<int64_t>(running_.size()),
          .waiting = static_cast<int64_t>(waiting_.size()),
          .preempted = preempted_,
          .kv_bytes_in_use = cache_.bytes_in_use(),
          .kv_bytes_taken = cache_.bytes(),
          .kv_bytes_limit = kv_bytes(),
          .prefixes = tree_.stats()};
}

// --- memory ----------------------------------------------------------------------------------------------------------

size_t Scheduler::kv_bytes() const {
  return options_.kv_bytes - std::min(options_.kv_bytes, options_.reserved ? options_.reserved() : 0);
}

/// Of bytes in use. Slabs are taken whole: a few blocks of each layer may lie idle.
size_t Scheduler::limit() const {
  const size_t bytes = kv_bytes();
  return bytes - std::min(bytes, 4 * block_bytes_);
}

int64_t Scheduler::longest() const {
  return largest(model_.config().max_positions,
                 [this, most = limit()](int64_t length) { return cache_.bytes_for(length) <= most; });
}

/// So many bytes of what is kept for later prompts. Returns false when there was nothing.
bool Scheduler::drop_prefixes(size_t bytes) {
  const size_t kept = tree_.stats().bytes;
  tree_.shrink(kept - std::min(kept, bytes));
  return kept > 0;
}

/// Follows a limit that has sunk.
void Scheduler::keep_within_memory() {
  if (cache_.bytes() <= kv_bytes()) return;
  const size_t most = limit();
  while (cache_.bytes_in_use() > most && drop_prefixes(cache_.bytes_in_use() - most)) {
  }
  cache_.give_back();
}

std::string_view Scheduler::name_space(const Generation& generation) const {
  return generation.request.adapter ? std::string_view(generation.request.adapter->fingerprint()) : std::string_view();
}

/// Bytes that must be free, or can be made free, before a waiting generation starts.
size_t Scheduler::bytes_to_start(const Generation& generation) const {
  return cache_.bytes_for(
      std::min<int64_t>(static_cast<int64_t>(generation.tokens.size()) + kHeadroom, model_.config().max_positions));
}

/// Whether a prompt that is being read will spare this one a good part of its own. Marks where they part, so that
/// sliding layers can be taken up there.
bool Scheduler::waits_for_prefix(const Generation& waiting) {
  constexpr int64_t kWorthWaiting = 2 * kKvBlock;
  if (!waiting.keeps_prefix() || options_.prefix_cache_bytes == 0) return false;
  Generation* best = nullptr;
  int64_t most = kWorthWaiting - 1;
  for (const auto& reading : running_) {
    const auto prompt = static_cast<int64_t>(reading->request.prompt.size());
    if (reading->computed >= prompt || !reading->keeps_prefix() ||
        reading->request.adapter != waiting.request.adapter) {
      continue;
    }
    const auto parted = std::mismatch(waiting.tokens.begin(), waiting.tokens.end(), reading->request.prompt.begin(),
                                      reading->request.prompt.end());
    const int64_t shared = parted.first - waiting.tokens.begin();
    if (shared > most && shared > reading->computed) {
      most = shared;
      best = reading.get();
    }
  }
  if (best == nullptr || tree_.look_up(name_space(waiting), waiting.tokens).length + kWorthWaiting > most) return false;
  const int64_t mark = most / kKvBlock * kKvBlock;
  const auto place = std::lower_bound(best->marks.begin(), best->marks.end(), mark);
  if (place == best->marks.end() || *place != mark) best->marks.insert(place, mark);
  return true;
}

/// Starts waiting generations, the first of the queue first. One that does not fit yet lets smaller ones pass, a
/// limited number of times.
void Scheduler::admit() {
  const auto fits = [this, most = limit()](const Generation& next) {
    if (running_.empty()) return true;
    size_t alone = bytes_to_start(next);  // as if nothing were shared and nothing kept for later prompts
    size_t beside = cache_.bytes_in_use() + alone;
    for (const auto& generation : running_) {
      alone += bytes_to_start(*generation);
      beside += cache_.bytes_to_extend(generation->sequence, generation->pending());
    }
    return alone <= most || beside <= most;
  };
  while (static_cast<int>(running_.size()) < options_.max_running) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const auto& g) { return !waits_for_prefix(*g) && fits(*g); });
    if (next == waiting_.end()) return;
    if (next != waiting_.begin() && waiting_.front()->bypassed++ >= kMostBypassed) return;
    std::unique_ptr<Generation> generation = std::move(*next);
    waiting_.erase(next);
    start(*generation);
    const auto before = [](const auto& a, const auto& b) {
      return a->request.priority != b->request.priority ? a->request.priority > b->request.priority : a->id < b->id;
    };
    running_.insert(std::upper_bound(running_.begin(), running_.end(), generation, before), std::move(generation));
  }
}

void Scheduler::start(Generation& generation) {
  const bool first = generation.end.generated_tokens == 0 && generation.started == Clock::time_point();
  if (generation.keeps_prefix()) {
    const PrefixMatch match = tree_.match(name_space(generation), generation.tokens);
    generation.sequence = match.sequence;
    generation.computed = match.length;
    generation.marks = {match.known};
  }
  if (generation.sequence < 0) generation.sequence = cache_.add_sequence();
  if (!first) return;
  generation.started = Clock::now();
  generation.end.reused_tokens = generation.computed;
  generation.end.queued_seconds = seconds_between(generation.submitted, generation.started);
}

void Scheduler::preempt(Generation& generation) {
  ++preempted_;
  cache_.remove_sequence(std::exchange(generation.sequence, -1));
  generation.computed = 0;
  generation.end.prompt_logprobs.clear();
  generation.sum.clear();
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&](const auto& other) { return other.get() == &generation; });
  std::unique_ptr<Generation> owned = std::move(*place);
  running_.erase(place);
  const auto after = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other->request.priority < owned->request.priority ||
           (other->request.priority == owned->request.priority && other->id > owned->id);
  });
  waiting_.insert(after, std::move(owned));
}

/// Frees what the planned rows need. Returns false when a generation had to go: the step must be planned anew.
bool Scheduler::make_room() {
  const size_t most = limit();
  for (;;) {
    size_t needed = 0;
    for (const Generation* generation : planned_) {
      needed += cache_.bytes_to_extend(generation->sequence, generation->rows);
    }
    const size_t wanted = cache_.bytes_in_use() + needed;
    if (wanted <= most) return true;
    if (!drop_prefixes(wanted - most)) break;
  }
  Generation& last = *running_.back();
  if (running_.size() > 1) {
    preempt(last);
  } else if (last.generated() == 0) {  // it fitted when it came
    finish(last, FinishReason::kCancelled,
           fmt::format("the prompt has {} tokens; the memory for keys and values now holds {}",
                       last.request.prompt.size(), longest()));
    sweep();
  } else {
    finish(last, FinishReason::kContext);
    sweep();
  }
  return false;
}

// --- a step ----------------------------------------------------------------------------------------------------------

void Scheduler::grant(Generation& generation, int64_t rows) {
  if (rows <= 0) return;
  if (generation.rows == 0) planned_.push_back(&generation);
  generation.rows += static_cast<int>(rows);
}

int64_t Scheduler::rows_within(const Generation& generation, int64_t rows) const {
  rows = std::min(rows, generation.pending() - generation.rows);
  // A chunk ends where others branch off: there the rings of sliding layers hold just what a checkpoint needs.
  const auto mark = std::upper_bound(generation.marks.begin(), generation.marks.end(), generation.computed);
  if (mark != generation.marks.end()) rows = std::min(rows, *mark - generation.computed - generation.rows);
  if (generation.wants_all_rows()) rows = std::min(rows, std::max<int64_t>(0, kScoredRows - generation.rows));
  return rows;
}

/// Shares out the rows of the next step. Returns false when there is nothing to compute.
bool Scheduler::plan() {
  while (!running_.empty()) {
    planned_.clear();
    prompts_.clear();
    int64_t scored = 0;
    for (const auto& generation : running_) {
      generation->rows = 0;
      if (generation->pending() == 1) {
        grant(*generation, 1);
      } else if (generation->wants_all_rows() && scored++ > 0) {
        continue;  // one at a time: all its logits are kept
      } else {
        prompts_.push_back(generation.get());
      }
    }
    const auto deciding = static_cast<int64_t>(planned_.size());
    int64_t left = model_.max_rows() - deciding;
    // A prompt by itself may take the whole step. Else somebody waits for the step's end.
    if (deciding > 0 || prompts_.size() > 1)
      left = std::min(left, std::max<int64_t>(options_.mixed_rows - deciding, kScoredRows));
    if (!prompts_.empty()) {
      Generation& oldest = *prompts_.front();
      int64_t share = prompts_.size() == 1 ? left : left / 2;
      share = rows_within(oldest, share);
      grant(oldest, share);
      left -= share;
      std::stable_sort(prompts_.begin(), prompts_.end(), [](const Generation* a, const Generation* b) {
        return a->pending() - a->rows < b->pending() - b->rows;
      });
      for (Generation* generation : prompts_) {
        const int64_t rows = rows_within(*generation, left);
        grant(*generation, rows);
        left -= rows;
      }
    }
    if (make_room()) return true;
  }
  return false;
}

void Scheduler::compute() {
  batch_.rows.clear();
  batch_.adapters.clear();
  batch_.taps.clear();
  for (Generation* g : planned_) {
    int adapter = -1;
    if (g->request.adapter) {
      const Adapter* wanted = g->request.adapter.get();
      const auto known = std::find(batch_.adapters.begin(), batch_.adapters.end(), wanted);
      adapter = static_cast<int>(known - batch_.adapters.begin());
      if (known == batch_.adapters.end()) batch_.adapters.push_back(wanted);
    }
    const bool draws = g->rows == g->pending() && !g->request.embedding && g->request.max_tokens > 0;
    const size_t first = batch_.rows.size();
    batch_.add(g->sequence,
               std::span(g->tokens).subspan(static_cast<size_t>(g->computed), static_cast<size_t>(g->rows)), draws,
               adapter);
    if (g->request.embedding) batch_.taps = {model_.config().layer_count()};
    for (size_t r = first; r < batch_.rows.size(); ++r) {
      batch_.rows[r].wants_taps = g->request.embedding;
      if (g->wants_all_rows()) batch_.rows[r].wants_logits = true;
    }
  }
  try {
    model_.forward(batch_, cache_, result_);
  } catch (const std::exception& error) {
    for (Generation* g : planned_) {
      finish(*g, FinishReason::kCancelled, error.what());
    }
    return;
  }
  take_results();
}

void Scheduler::take_results() {
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  const auto hidden = static_cast<size_t>(model_.config().hidden);
  const auto logits = [&](size_t row) { return std::span(result_.logits).subspan(row * vocab, vocab); };
  size_t logits_row = 0;
  size_t taps_row = 0;
  draws_.clear();
  for (Generation* g : planned_) {
    const int64_t before = g->computed;
    g->computed += g->rows;
    if (g->request.embedding) {
      g->sum.resize(hidden);
      for (int r = 0; r < g->rows; ++r, ++taps_row) {
        for (size_t i = 0; i < hidden; ++i) {
          g->sum[i] += static_cast<double>(result_.taps[0][taps_row * hidden + i]);
        }
      }
    }
    if (g->wants_all_rows()) {
      for (int r = 0; r < g->rows; ++r) {
        const auto next = static_cast<size_t>(before + r + 1);
        if (next >= g->request.prompt.size()) break;
        g->end.prompt_logprobs.push_back(
            logprob_of(logits(logits_row + static_cast<size_t>(r)), g->tokens[next], g->request.sampling.top_logprobs));
      }
      logits_row += static_cast<size_t>(g->rows);
    }
    if (g->keeps_prefix()) remember(*g, before);
    if (g->pending() > 0) continue;
    if (g->request.embedding) {
      for (const double sum : g->sum) {
        g->end.embedding.push_back(static_cast<float>(sum / static_cast<double>(g->tokens.size())));
      }
      finish(*g, FinishReason::kMaxTokens);
    } else if (g->request.max_tokens == 0) {
      finish(*g, FinishReason::kMaxTokens);
    } else {
      draws_.push_back({.generation = g, .logits = g->wants_all_rows() ? logits_row - 1 : logits_row++});
    }
  }
  pool_.run(static_cast<int64_t>(draws_.size()), [&](int64_t i, int thread) {
    Draw& draw = draws_[static_cast<size_t>(i)];
    try {
      this->draw(*draw.generation, logits(draw.logits), samplers_[static_cast<size_t>(thread)], draw.sampled);
    } catch (const std::exception& error) {
      draw.error = error.what();
    }
  });
  for (Draw& draw : draws_) {
    if (draw.error.empty()) {
      deliver(*draw.generation, draw.sampled);
    } else {
      finish(*draw.generation, FinishReason::kCancelled, std::move(draw.error));
    }
  }
}

void Scheduler::draw(Generation& g, std::span<float> logits, Sampler& sampler, Sampled& sampled) {
  const SamplingParams& params = g.request.sampling;
  if (g.forced) {
    sampled.token = *g.forced;
    g.forced.reset();
    if (params.logprobs) {
      PromptLogprob report = logprob_of(logits, sampled.token, params.top_logprobs);
      sampled.logprob = report.logprob;
      sampled.top = std::move(report.top);
    }
    return;
  }
  const std::span<const uint64_t> allowed = g.constraint ? g.constraint->allowed() : std::span<const uint64_t>();
  sampled = sampler.sample(logits, params, g.tokens, static_cast<int64_t>(g.tokens.size()), allowed);
}

void Scheduler::deliver(Generation& g, const Sampled& sampled) {
  if (g.end.generated_tokens == 0) {
    g.first_token = Clock::now();
    g.end.prompt_seconds = seconds_between(g.started, g.first_token);
  }
  ++g.end.generated_tokens;
  const bool ends = contains(g.request.stop_tokens, sampled.token);
  g.tokens.push_back(sampled.token);
  if (g.constraint && !ends) g.constraint->accept(sampled.token);
  const Verdict verdict =
      g.listener->on_token({.token = sampled.token, .ends = ends, .logprob = sampled.logprob, .top = sampled.top});
  if (ends) {
    finish(g, FinishReason::kStopToken);
  } else if (verdict.stop) {
    finish(g, FinishReason::kStopText);
  } else if (g.generated() >= g.request.max_tokens) {
    finish(g, FinishReason::kMaxTokens);
  } else if (static_cast<int64_t>(g.tokens.size()) > model_.config().max_positions) {
    finish(g, FinishReason::kContext);
  } else {
    g.forced = verdict.next;
  }
}

/// Keeps what others may want of the prompt that has been read since `before`: where it leaves what the tree knows and
/// where others that wait branch off, at its end (what is generated may be dropped, edited or made again), and on the
/// way as often as checkpoints pay.
void Scheduler::remember(Generation& g, int64_t before) {
  const auto prompt = static_cast<int64_t>(g.request.prompt.size());
  const int64_t stride = tree_.checkpoint_stride();
  for (int64_t at = before; at < prompt;) {
    int64_t next = prompt;
    const auto mark = std::upper_bound(g.marks.begin(), g.marks.end(), at);
    if (mark != g.marks.end()) next = std::min(next, *mark);
    if (stride > 0) next = std::min(next, (at / stride + 1) * stride);
    at = next;
    if (at > g.computed) break;
    tree_.insert(name_space(g), g.sequence, std::span(g.tokens).first(static_cast<size_t>(at)));
  }
}

void Scheduler::finish(Generation& g, FinishReason reason, std::string error) {
  g.end.finish = reason;
  g.end.error = std::move(error);
  if (g.end.generated_tokens > 0) g.end.generation_seconds = seconds_between(g.first_token, Clock::now());
  if (g.keeps_prefix() && g.end.error.empty() && g.computed > 0) {
    tree_.insert(name_space(g), g.sequence, std::span(g.tokens).first(static_cast<size_t>(g.computed)));
  }
  if (const auto listener = std::exchange(g.listener, nullptr)) listener->on_end(std::move(g.end));
}

/// Removes the generations that have ended.
void Scheduler::sweep() {
  std::erase_if(running_, [&](const auto& generation) {
    if (generation->listener != nullptr) return false;
    cache_.remove_sequence(generation->sequence);
    return true;
  });
}

}  // namespace carat

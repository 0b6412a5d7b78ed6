// One model that is being served: its files, its engine, its adapters.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "carat/options.h"
#include "chat/speech.h"
#include "engine/engine_thread.h"
#include "server/adapter_shelf.h"
#include "server/grammar_cache.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/service.h"

namespace carat::server {

struct ServingOptions {
  EngineOptions engine;
  size_t memory = 0;  // bytes that the process may take; 0: three quarters of what there is
  int max_running = 64;
  int max_waiting = 256;
  int mixed_rows = 128;
  SamplingChoice sampling;        // what requests leave out
  std::optional<int> max_tokens;  // likewise, of conversations
  std::optional<bool> thinking;   // likewise
  bool any_model = false;         // a request may name any model; the first one answers
};

/// Less memory for keys and values holds no conversation worth the name.
constexpr size_t kLeastKvBytes = size_t{32} << 20;

struct NamedModel {
  std::string id;
  std::filesystem::path path;
};

/// Reads requests for one model and hands them to its engine. Thread-safe.
class ServedModel {
 public:
  /// `device` is shared with other models, and so is `turn`, which is held while one of them computes. `kv_bytes`: for
  /// keys and values, those of earlier prompts included, and for adapters; at least kLeastKvBytes.
  ServedModel(const NamedModel& named, std::shared_ptr<const Checkpoint> checkpoint, std::shared_ptr<Device> device,
              std::shared_ptr<FairMutex> turn, size_t kv_bytes, const ServingOptions& options, Metrics& metrics);

  const std::string& id() const { return id_; }
  ModelInfo info() const;
  SchedulerStats stats() const { return engine_->stats(); }
  int64_t longest() const { return engine_->longest(); }
  /// Ends all generations with an error, soon.
  void abandon() { engine_->abandon(); }

  std::shared_ptr<TaskHandle> chat(const ChatTask& task, const std::shared_ptr<ReplyListener>& listener);
  std::shared_ptr<TaskHandle> complete(const CompletionTask& task, const std::shared_ptr<ReplyListener>& listener);
  int64_t count_prompt(const ChatTask& task) const;
  void embed(std::vector<std::vector<int>> inputs,
             std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done);

  const Tokenizer& tokenizer() const { return *tokenizer_; }

  std::vector<AdapterInfo> adapters() const { return adapters_.list(); }
  /// What it takes is no longer there for keys and values.
  AdapterInfo load_adapter(const std::string& id, const std::string& path);
  void remove_adapter(const std::string& id) { adapters_.remove(id); }
  /// Used by requests that name none; empty for none.
  void set_default_adapter(std::string id) { adapters_.set_default(std::move(id)); }

 private:
  struct Prompt {
    std::vector<int> ids;
    ReplyParser parser;  // of the reply
    std::shared_ptr<const Grammar> grammar;
  };

  Prompt prompt_of(const ChatTask& task) const;
  std::shared_ptr<const Grammar> grammar_of(const ChatTask& task, Prelude prelude) const;
  const std::shared_ptr<const GrammarVocabulary>& grammar_vocabulary() const;
  SamplingParams sampling_of(const SamplingChoice& choice) const;
  std::shared_ptr<TaskHandle> start(const GenerationTask& task, GenerationRequest request, const ReplyParser& parser,
                                    ReplyOptions reply, const std::shared_ptr<ReplyListener>& listener);
  uint64_t submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener);

  std::string id_;
  int64_t created_;
  ServingOptions options_;
  Metrics& metrics_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<FairMutex> turn_;
  Model model_;
  KvCache cache_;
  ChatFormat format_;
  SpeechMarkers markers_;
  std::vector<int> stop_ids_;
  mutable std::once_flag vocabulary_once_;
  mutable std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable GrammarCache free_calls_;
  AdapterShelf adapters_;
  std::unique_ptr<EngineThread> engine_;  // last: its thread uses all of the above
};

}  // namespace carat::server

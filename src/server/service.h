// The models that a server serves: what the dialects call.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_task.h"

namespace carat::server {

struct AdapterInfo {
  std::string id;
  std::string path;
  int rank = 0;
  double scale = 0.0;
  size_t bytes = 0;
  int modules = 0;
};

struct ModelInfo {
  std::string id;
  int64_t created = 0;  // Unix time
  int context_window = 0;
  bool chat = false;  // has a chat template
  bool thinking = false;
  std::vector<AdapterInfo> adapters;
};

struct EmbeddingResult {
  std::vector<float> values;  // [hidden], of length 1 unless it was zero
  int64_t tokens = 0;
};

/// Thread-safe. Members that generate return at once; work goes on on the engine's thread. They throw ApiFailure for
/// what can be said at once (unknown model, bad field); what turns up later comes to the listener's on_end.
class Service {
 public:
  virtual ~Service() = default;

  virtual std::vector<ModelInfo> models() const = 0;
  /// The id under which answers name the model that a request asked for. Throws ApiFailure (404, model_not_found).
  virtual std::string model_id(const std::string& asked) const = 0;

  virtual std::shared_ptr<TaskHandle> chat(ChatTask task, std::shared_ptr<ReplyListener> listener) = 0;
  virtual std::shared_ptr<TaskHandle> complete(CompletionTask task, std::shared_ptr<ReplyListener> listener) = 0;

  /// Tokens of the prompt that chat() would read for this task: exactly usage.prompt_tokens.
  virtual int64_t count_prompt(const ChatTask& task) = 0;

  /// Mean over the positions of the hidden states after the final norm. `done` is called on the engine's thread.
  virtual void embed(const std::string& model, std::vector<std::vector<int>> inputs,
                     std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done) = 0;

  virtual std::vector<int> tokenize(const std::string& model, std::string_view text, bool add_special) = 0;
  virtual std::string detokenize(const std::string& model, const std::vector<int>& ids) = 0;
  /// The raw piece of each id.
  virtual std::vector<std::string> pieces(const std::string& model, const std::vector<int>& ids) = 0;

  virtual std::vector<AdapterInfo> adapters(const std::string& model) = 0;
  virtual AdapterInfo load_adapter(const std::string& model, const std::string& id, const std::string& path) = 0;
  /// Generations that use it go on with it. Throws ApiFailure (404) when there is none of that id.
  virtual void remove_adapter(const std::string& model, const std::string& id) = 0;
};

}  // namespace carat::server

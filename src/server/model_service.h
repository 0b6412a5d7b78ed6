// The service over the models of this process.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/served_model.h"

namespace carat::server {

/// Loads the models and divides the memory among them: what is left after weights and activations goes to keys and
/// values and to adapters, in equal shares. They compute in turns, on one device.
class ModelService final : public Service {
 public:
  /// Throws Error when a model cannot be loaded, or when the memory does not hold them.
  ModelService(const std::vector<NamedModel>& models, const ServingOptions& options, Metrics& metrics);

  std::vector<ModelInfo> models() const override;
  std::string model_id(const std::string& asked) const override;
  std::shared_ptr<TaskHandle> chat(ChatTask task, std::shared_ptr<ReplyListener> listener) override;
  std::shared_ptr<TaskHandle> complete(CompletionTask task, std::shared_ptr<ReplyListener> listener) override;
  int64_t count_prompt(const ChatTask& task) override;
  void embed(const std::string& model, std::vector<std::vector<int>> inputs,
             std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done) override;
  std::vector<int> tokenize(const std::string& model, std::string_view text, bool add_special) override;
  std::string detokenize(const std::string& model, const std::vector<int>& ids) override;
  std::vector<std::string> pieces(const std::string& model, const std::vector<int>& ids) override;
  std::vector<AdapterInfo> adapters(const std::string& model) override;
  AdapterInfo load_adapter(const std::string& model, const std::string& id, const std::string& path) override;
  void remove_adapter(const std::string& model, const std::string& id) override;

  /// Refuses new generations from now on (503); those in progress go on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  /// Whether no generation is waiting or in progress.
  bool idle() const;
  /// Ends all generations with an error, soon.
  void abandon();

  /// The first model: what requests that name none get.
  ServedModel& first() { return *models_.front(); }
  const std::vector<std::unique_ptr<ServedModel>>& served() const { return models_; }
  /// Bytes that the process was given, and what of them is not for keys and values.
  size_t memory() const { return memory_; }
  size_t fixed_memory() const { return fixed_memory_; }

 private:
  /// Sets `task.adapter` where the model is named "id:adapter". Throws ApiFailure for an unknown model.
  ServedModel& model_of(const std::string& asked, std::string* adapter) const;
  ServedModel& model_of(const std::string& asked) const { return model_of(asked, nullptr); }
  void check_open() const;

  ServingOptions options_;
  std::atomic<bool> draining_{false};
  size_t memory_ = 0;
  size_t fixed_memory_ = 0;
  std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace carat::server

#include "server/model_service.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "compute/cpu/cpu_device.h"
#include "engine/memory_plan.h"
#include "engine/prompt_format.h"

namespace carat::server {
namespace {

/// Bytes that a model takes beside keys and values: what is read of its files, activations, and the logits of all
/// generations of a step.
size_t fixed_bytes(const Checkpoint& checkpoint, const ServingOptions& options) {
  const MemoryPlan plan = plan_memory(
      checkpoint, {.context = checkpoint.config().max_positions, .sequences = 1, .options = options.engine});
  const size_t logits =
      static_cast<size_t>(options.max_running) * static_cast<size_t>(checkpoint.config().vocab) * 2 * sizeof(float);
  return plan.weights + plan.rows + plan.headers + plan.tokenizer + plan.activations + logits;
}

double gigabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace

ModelService::ModelService(const std::vector<NamedModel>& models, const ServingOptions& options, Metrics& metrics)
    : options_(options), memory_(options.memory != 0 ? options.memory : usable_memory() / 4 * 3) {
  if (models.empty()) fail("no model was given to serve");
  std::vector<std::shared_ptr<const Checkpoint>> checkpoints;
  for (const NamedModel& model : models) {
    const auto same = [&](const NamedModel& other) { return other.id == model.id; };
    if (std::count_if(models.begin(), models.end(), same) > 1) fail("two models have the id \"{}\"", model.id);
    checkpoints.push_back(Checkpoint::open(model.path));
    fixed_memory_ += fixed_bytes(*checkpoints.back(), options);
  }
  const size_t left = memory_ > fixed_memory_ ? memory_ - fixed_memory_ : 0;
  const size_t share = left / models.size();
  if (share < kLeastKvBytes) {
    fail("the memory of {:.2f} GB does not hold the {}: weights and activations take {:.2f} GB; see carat fit",
         gigabytes(memory_), models.size() == 1 ? "model" : "models", gigabytes(fixed_memory_));
  }
  const std::shared_ptr<Device> device =
      make_cpu_device({.threads = options.engine.threads, .precision = options.engine.precision});
  const auto turn = std::make_shared<FairMutex>();
  for (size_t i = 0; i < models.size(); ++i) {
    models_.push_back(std::make_unique<ServedModel>(models[i], checkpoints[i], device, turn, share, options, metrics));
  }
}

ServedModel& ModelService::model_of(const std::string& asked, std::string* adapter) const {
  for (const std::string_view any : {"", "default", "default_model"}) {
    if (asked == any) return *models_.front();
  }
  for (const auto& model : models_) {
    if (model->id() == asked) return *model;
    if (adapter != nullptr && asked.starts_with(model->id() + ":")) {
      if (adapter->empty()) *adapter = asked.substr(model->id().size() + 1);
      return *model;
    }
  }
  if (options_.any_model) return *models_.front();
  std::string known;
  for (const auto& model : models_) known += (known.empty() ? "\"" : ", \"") + model->id() + "\"";
  refuse(404, "there is no model \"" + asked + "\"; this server has " + known + " (--any-model takes any name)",
         "model_not_found", "model");
}

void ModelService::check_open() const {
  if (!draining_) return;
  throw ApiFailure({.status = 503,
                    .message = "the server is shutting down",
                    .code = "shutting_down",
                    .param = {},
                    .retry_after = 5});
}

bool ModelService::idle() const {
  return std::all_of(models_.begin(), models_.end(), [](const auto& model) {
    const SchedulerStats now = model->stats();
    return now.running == 0 && now.waiting == 0;
  });
}

void ModelService::abandon() {
  for (const auto& model : models_) model->abandon();
}

std::vector<ModelInfo> ModelService::models() const {
  std::vector<ModelInfo> infos;
  for (const auto& model : models_) infos.push_back(model->info());
  return infos;
}

std::string ModelService::model_id(const std::string& asked) const {
  std::string adapter;
  const ServedModel& model = model_of(asked, &adapter);
  return adapter.empty() ? model.id() : model.id() + ":" + adapter;
}

std::shared_ptr<TaskHandle> ModelService::chat(ChatTask task, std::shared_ptr<ReplyListener> listener) {
  check_open();
  ServedModel& model = model_of(task.model, &task.adapter);
  return model.chat(task, listener);
}

std::shared_ptr<TaskHandle> ModelService::complete(CompletionTask task, std::shared_ptr<ReplyListener> listener) {
  check_open();
  ServedModel& model = model_of(task.model, &task.adapter);
  return model.complete(task, listener);
}

int64_t ModelService::count_prompt(const ChatTask& task) {
  std::string adapter = task.adapter;
  return model_of(task.model, &adapter).count_prompt(task);
}

void ModelService::embed(const std::string& model, std::vector<std::vector<int>> inputs,
                         std::function<void(std::vector<EmbeddingResult>, std::optional<ApiError>)> done) {
  check_open();
  model_of(model).embed(std::move(inputs), std::move(done));
}

std::vector<int> ModelService::tokenize(const std::string& model, std::string_view text, bool add_special) {
  const Tokenizer& tokenizer = model_of(model).tokenizer();
  return add_special ? encode_with_bos(tokenizer, text) : tokenizer.encode(text);
}

std::string ModelService::detokenize(const std::string& model, const std::vector<int>& ids) {
  try {
    return model_of(model).tokenizer().decode(ids, true);
  } catch (const Error& error) {
    refuse(400, error.what(), "invalid_token", "tokens");
  }
}

std::vector<std::string> ModelService::pieces(const std::string& model, const std::vector<int>& ids) {
  const Tokenizer& tokenizer = model_of(model).tokenizer();
  std::vector<std::string> pieces;
  try {
    for (const int id : ids) pieces.emplace_back(tokenizer.piece(id));
  } catch (const Error& error) {
    refuse(400, error.what(), "invalid_token", "tokens");
  }
  return pieces;
}

std::vector<AdapterInfo> ModelService::adapters(const std::string& model) {
  return model_of(model).adapters();
}

AdapterInfo ModelService::load_adapter(const std::string& model, const std::string& id, const std::string& path) {
  return model_of(model).load_adapter(id, path);
}

void ModelService::remove_adapter(const std::string& model, const std::string& id) {
  model_of(model).remove_adapter(id);
}

}  // namespace carat::server

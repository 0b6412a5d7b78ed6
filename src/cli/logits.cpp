// carat logits: the model's logits for given token ids, as a NumPy file.
#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "checkpoint/store.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "compute/cpu/cpu_device.h"
#include "model/kv_choice.h"
#include "model/model.h"

namespace carat {
namespace {

struct Flags {
  ModelFlags model;
  std::optional<std::string> ids;
  std::string ids_file;
  std::string out;
};

/// The header of a NumPy 1.0 file holding float32 [rows, cols] in C order.
std::string npy_header(size_t rows, size_t cols) {
  std::string description = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  const size_t unpadded = 10 + description.size() + 1;
  description.append((64 - unpadded % 64) % 64, ' ');
  description += '\n';
  const auto length = static_cast<uint16_t>(description.size());
  std::string header = "\x93NUMPY";
  header += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  return header + description;
}

/// A file that appears under its name only when it is whole. Pipes and devices are written to, never replaced, and
/// links stay links.
class PartialOutput {
 public:
  explicit PartialOutput(const std::string& path) : path_(path) {
    namespace fs = std::filesystem;
    if (fs::is_directory(path)) fail("--out {} is a directory; expected the name of a file", path);
    const bool in_place = fs::is_other(path);
    if (!in_place && fs::is_symlink(path)) path_ = fs::weakly_canonical(path).string();
    partial_ = in_place ? path_ : path_ + ".partial";
    file_.open(partial_, std::ios::binary | std::ios::trunc);
    if (!file_) fail("cannot write {}", path);
  }
  ~PartialOutput() {
    if (kept_ || partial_ == path_) return;
    file_.close();
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);
  }
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;

  std::ofstream& file() { return file_; }

  void keep() {
    file_.close();
    if (!file_) fail("cannot write {}: is the disk full?", path_);
    std::error_code error;
    if (partial_ != path_) std::filesystem::rename(partial_, path_, error);
    if (error) fail("cannot write {}: {}", path_, error.message());
    kept_ = true;
  }

 private:
  std::string path_, partial_;
  std::ofstream file_;
  bool kept_ = false;
};

/// Before hours of work are spent on the ids in front of a bad one.
void check(const std::vector<int>& ids, const ModelConfig& config) {
  if (ids.size() > static_cast<size_t>(config.max_positions)) {
    fail("there are {} token ids; the model's context is {}", ids.size(), config.max_positions);
  }
  for (const int id : ids) {
    if (id < 0 || id >= config.vocab) fail("token id {} is outside the vocabulary of {}", id, config.vocab);
  }
}

int run(const Flags& flags) {
  const std::vector<int> ids = flags.ids
                                   ? parse_ids(*flags.ids, "--ids")
                                   : parse_ids(read_input(flags.ids_file, "the list of token ids"), flags.ids_file);
  const EngineOptions options = flags.model.engine_options();
  const std::shared_ptr<Device> device = make_cpu_device({.threads = options.threads, .precision = options.precision});
  Model model(Checkpoint::open(resolve_model(flags.model.model)), device, options.chunk);
  const auto adapter = load_adapters(options.adapters, model);
  check(ids, model.config());
  KvCache cache(*device, model.cache_spec(kv_choice_for(options, model.checkpoint())));
  const int sequence = cache.add_sequence();

  PartialOutput output(flags.out);
  std::ofstream& file = output.file();
  const std::string header = npy_header(ids.size(), static_cast<size_t>(model.config().vocab));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  Progress progress("logits", ids.size(), ProgressUnit::kItems);
  ForwardResult result;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(options.chunk)) {
    Batch batch;
    const size_t end = std::min(ids.size(), begin + static_cast<size_t>(options.chunk));
    if (adapter) batch.adapters = {adapter.get()};
    for (size_t i = begin; i < end; ++i) {
      batch.rows.push_back({.sequence = sequence, .token = ids[i], .wants_logits = true, .adapter = adapter ? 0 : -1});
    }
    model.forward(batch, cache, result);
    file.write(reinterpret_cast<const char*>(result.logits.data()),
               static_cast<std::streamsize>(result.logits.size() * sizeof(float)));
    if (!file) fail("cannot write {}: is the disk full?", flags.out);
    progress.add(end - begin);
  }
  progress.finish();
  output.keep();
  return 0;
}

}  // namespace

void add_logits(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  flags->model.chunk = 64;  // [chunk, vocab] floats are in memory at a time
  CLI::App* verb =
      app.add_subcommand("logits", "Write the logits of token ids to a NumPy file [tokens, vocab], float32");
  add_model_flags(*verb, flags->model);
  add_adapter_flag(*verb, flags->model.adapters);
  CLI::Option_group* ids = verb->add_option_group("ids");
  ids->add_option("--ids", flags->ids, "Token ids, e.g. 2,17,5");
  ids->add_option("--ids-file", flags->ids_file,
                  "A file of token ids separated by spaces, commas or lines (\"-\": standard input)");
  ids->require_option(1);
  verb->add_option("--out", flags->out, "The file to write, .npy")->required();
  add_examples(*verb,
               "  carat logits gemma3-270m --ids 2,4521,1902 --out logits.npy\n"
               "  carat logits gemma3-270m --ids-file text.ids --out exact.npy --precision exact");
  verb->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace carat

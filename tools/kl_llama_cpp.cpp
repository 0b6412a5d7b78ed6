// llama.cpp's logits at every position of a token file, for tools/kl_llama_cpp.py (which compiles this against an
// llama.cpp built elsewhere; carat does not use it).
//
//   kl_llama_cpp MODEL.gguf FILE.ids OUT.raw BATCH f16|f32|q8_0 THREADS
//
// OUT.raw is float32 [tokens, vocabulary], little-endian, row-major; the vocabulary size goes to standard output.

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

ggml_type cache_type(const std::string& name) {
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "f32") return GGML_TYPE_F32;
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "q4_0") return GGML_TYPE_Q4_0;
  throw std::runtime_error("cache type " + name + "; expected f16, f32, q8_0 or q4_0");
}

void log_errors_only(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

void run(const std::vector<std::string>& arguments) {
  std::ifstream ids_file(arguments[1]);
  std::vector<llama_token> ids;
  for (llama_token id; ids_file >> id;) ids.push_back(id);
  if (ids.empty()) throw std::runtime_error(arguments[1] + ": no token ids");
  const auto batch_tokens = static_cast<std::size_t>(std::stoul(arguments[3]));

  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(arguments[0].c_str(), llama_model_default_params()), llama_model_free);
  if (!model) throw std::runtime_error(arguments[0] + ": llama.cpp cannot load it");
  const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(ids.size());
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(batch_tokens);
  params.n_threads = params.n_threads_batch = std::stoi(arguments[5]);
  params.type_k = params.type_v = cache_type(arguments[4]);
  // Flash attention, otherwise automatic, would round a float32 cache to float16.
  if (params.type_k == GGML_TYPE_F32) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model.get(), params),
                                                                      llama_free);
  if (!context) throw std::runtime_error("llama.cpp refuses the context");

  std::ofstream out(arguments[2], std::ios::binary);
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(batch_tokens), 0, 1);
  const std::unique_ptr<llama_batch, void (*)(llama_batch*)> batch_owner(&batch,
                                                                         [](llama_batch* b) { llama_batch_free(*b); });
  for (std::size_t start = 0; start < ids.size(); start += batch_tokens) {
    const std::size_t count = std::min(batch_tokens, ids.size() - start);
    batch.n_tokens = static_cast<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      batch.token[i] = ids[start + i];
      batch.pos[i] = static_cast<llama_pos>(start + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(context.get(), batch) != 0) throw std::runtime_error("llama_decode failed");
    for (std::size_t i = 0; i < count; ++i) {
      const float* row = llama_get_logits_ith(context.get(), static_cast<std::int32_t>(i));
      out.write(reinterpret_cast<const char*>(row), static_cast<std::streamsize>(vocabulary * sizeof(float)));
    }
  }
  if (!out.flush()) throw std::runtime_error(arguments[2] + ": cannot write");
  std::cout << vocabulary << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 6) {
    std::cerr << "usage: kl_llama_cpp MODEL.gguf FILE.ids OUT.raw BATCH f16|f32|q8_0 THREADS\n";
    return 2;
  }
  try {
    llama_log_set(log_errors_only, nullptr);
    llama_backend_init();
    run(arguments);
    llama_backend_free();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "kl_llama_cpp: " << error.what() << '\n';
    return 1;
  }
}

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/half.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Bytes;
using testing::golden;
using testing::SafetensorsBuilder;
using testing::TempDir;

std::vector<float> row(const Matrix& matrix, int64_t index) {
  std::vector<float> out(static_cast<size_t>(matrix.cols));
  decode_row(matrix, index, out.data());
  return out;
}

std::vector<float> all_rows(const Matrix& matrix) {
  std::vector<float> out;
  for (int64_t i = 0; i < matrix.rows; ++i) {
    const auto values = row(matrix, i);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

std::vector<std::string> forms() {
  std::vector<std::string> found;
  for (const auto& variant : fs::directory_iterator(golden(""))) {
    if (!variant.is_directory()) continue;
    for (const auto& form : fs::directory_iterator(variant.path())) {
      if (form.is_directory()) found.push_back(fs::relative(form.path(), golden("")).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Every weight that the config asks for is there, under its canonical name and with its shape.
void expect_complete(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    const auto found = checkpoint.matrix(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->rows, rows) << name;
    EXPECT_EQ(found->cols, cols) << name;
    for (const float value : row(*found, rows - 1)) ASSERT_TRUE(std::isfinite(value)) << name;
  };
  const auto vector = [&](const std::string& name, size_t size) {
    const auto found = checkpoint.vector(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->size(), size) << name;
  };
  const auto stack = [&](const std::string& name, int64_t rows, int64_t cols) {
    const auto found = checkpoint.stack(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->experts, c.experts) << name;
    EXPECT_EQ(found->at(c.experts - 1).rows, rows) << name;
    EXPECT_EQ(found->at(0).cols, cols) << name;
    row(found->at(c.experts - 1), rows - 1);
  };
  matrix("embed_tokens", c.vocab, c.hidden);
  vector("norm", c.hidden);
  EXPECT_EQ(checkpoint.matrix("lm_head").has_value(), !c.tied_head);
  if (c.pli_width > 0) {
    matrix("embed_tokens_per_layer", c.pli_vocab, int64_t{c.layer_count()} * c.pli_width);
    matrix("per_layer_model_projection", int64_t{c.layer_count()} * c.pli_width, c.hidden);
    vector("per_layer_projection_norm", c.pli_width);
  }
  for (int i = 0; i < c.layer_count(); ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    const AttentionConfig& a = c.layers[i];
    const int64_t q = int64_t{c.heads} * a.head_dim;
    const int64_t kv = int64_t{a.kv_heads} * a.head_dim;
    matrix(p + "self_attn.q_proj", q, c.hidden);
    matrix(p + "self_attn.o_proj", c.hidden, q);
    vector(p + "self_attn.q_norm", a.head_dim);
    const bool own = i < c.layer_count() - c.kv_shared_layers;
    if (own) matrix(p + "self_attn.k_proj", kv, c.hidden);
    if (own) vector(p + "self_attn.k_norm", a.head_dim);
    if (own && !a.k_eq_v) matrix(p + "self_attn.v_proj", kv, c.hidden);
    EXPECT_EQ(checkpoint.matrix(p + "self_attn.k_proj").has_value(), own);
    EXPECT_EQ(checkpoint.vector(p + "self_attn.k_norm").has_value(), own);
    EXPECT_EQ(checkpoint.matrix(p + "self_attn.v_proj").has_value(), own && !a.k_eq_v);
    matrix(p + "mlp.gate_proj", c.mlp_width[i], c.hidden);
    matrix(p + "mlp.up_proj", c.mlp_width[i], c.hidden);
    matrix(p + "mlp.down_proj", c.hidden, c.mlp_width[i]);
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      vector(p + norm, c.hidden);
    }
    if (c.family == Family::kGemma4) vector(p + "layer_scalar", 1);
    if (c.pli_width > 0) {
      matrix(p + "per_layer_input_gate", c.pli_width, c.hidden);
      matrix(p + "per_layer_projection", c.hidden, c.pli_width);
      vector(p + "post_per_layer_input_norm", c.hidden);
    }
    if (c.has_moe()) {
      matrix(p + "router.proj", c.experts, c.hidden);
      vector(p + "router.scale", c.hidden);
      vector(p + "router.per_expert_scale", c.experts);
      stack(p + "experts.gate_proj", c.expert_width, c.hidden);
      stack(p + "experts.up_proj", c.expert_width, c.hidden);
      stack(p + "experts.down_proj", c.hidden, c.expert_width);
      EXPECT_FALSE(checkpoint.stack(p + "experts.gate_up_proj"));
    }
  }
}

TEST(SafetensorsCheckpoint, OpensEveryGolden) {
  const auto all = forms();
  ASSERT_GE(all.size(), 20u);
  for (const std::string& form : all) {
    SCOPED_TRACE(form);
    const auto checkpoint = Checkpoint::open(golden(form));
    expect_complete(*checkpoint);
    EXPECT_EQ(checkpoint->gguf(), nullptr);
    EXPECT_EQ(checkpoint->path(), golden(form));
    size_t bytes = 0;
    for (const TensorInfo& tensor : checkpoint->tensors()) bytes += tensor.bytes;
    EXPECT_LE(bytes, checkpoint->bytes_on_disk());
    EXPECT_GE(bytes, checkpoint->bytes_on_disk() / 2);
  }
}

TEST(SafetensorsCheckpoint, MixedBitsFollowTheEntries) {
  const auto checkpoint = Checkpoint::open(golden("moe26/optiq"));
  const auto format = [&](const char* name) {
    const auto matrix = checkpoint->matrix(name);
    return matrix ? format_name(*matrix) : format_name(checkpoint->stack(name).value().all);
  };
  EXPECT_EQ(format("embed_tokens"), "affine 8-bit g64");
  EXPECT_EQ(format("layers.0.self_attn.q_proj"), "affine 6-bit g64");
  EXPECT_EQ(format("layers.0.mlp.down_proj"), "affine 6-bit g32");
  EXPECT_EQ(format("layers.1.mlp.down_proj"), "affine 5-bit g128");
  EXPECT_EQ(format("layers.0.experts.gate_proj"), "affine 5-bit g64");
  EXPECT_EQ(format("layers.0.experts.down_proj"), "affine 3-bit g64");
  EXPECT_EQ(format("layers.3.self_attn.k_proj"), "BF16");
  EXPECT_EQ(format("layers.5.router.proj"), "affine 8-bit g64");
  EXPECT_EQ(format_name(*Checkpoint::open(golden("dense31/mxfp4"))->matrix("embed_tokens")), "mxfp4");
}

/// The quantised form of a checkpoint approximates the plain one, so a wrong packing or a wrong tensor shows.
TEST(SafetensorsCheckpoint, QuantisedWeightsApproximateThePlainOnes) {
  const auto plain = Checkpoint::open(golden("moe26/bf16-hf"));
  const auto packed = Checkpoint::open(golden("moe26/q4g64"));
  const auto close = [](const Matrix& a, const Matrix& b, const std::string& name) {
    const auto x = all_rows(a);
    const auto y = all_rows(b);
    ASSERT_EQ(x.size(), y.size()) << name;
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += (x[i] - y[i]) * (x[i] - y[i]);
      norm += x[i] * x[i];
    }
    EXPECT_LT(error, 0.02 * norm) << name;
  };
  for (const std::string name : {"embed_tokens", "layers.2.self_attn.q_proj", "layers.5.mlp.down_proj"}) {
    close(*plain->matrix(name), *packed->matrix(name), name);
  }
  for (const std::string name : {"gate_proj", "up_proj", "down_proj"}) {  // fused in one, split in the other
    for (const int expert : {0, 7}) {
      const std::string full = "layers.4.experts." + name;
      close(plain->stack(full)->at(expert), packed->stack(full)->at(expert), full);
    }
  }
}

TEST(SafetensorsCheckpoint, ListsForeignAndRedundantTensorsAsUnused) {
  const auto checkpoint = Checkpoint::open(golden("e2b/bf16-hf"));
  int unused = 0;
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    const bool foreign = tensor.name.find("tower") != std::string::npos ||
                         tensor.name.find("embed_vision") != std::string::npos ||
                         tensor.name.find("embed_audio") != std::string::npos;
    EXPECT_TRUE(!foreign || tensor.canonical.empty()) << tensor.name;
    unused += tensor.canonical.empty();
  }
  EXPECT_EQ(unused, 10 + 4 * 3);
}

/// A copy of a golden with files of its own to spoil.
class Copy {
 public:
  explicit Copy(const std::string& form) {
    for (const auto& entry : fs::directory_iterator(golden(form))) fs::copy(entry.path(), directory_.path());
  }
  const fs::path& path() const { return directory_.path(); }
  void write(const std::string& name, std::string_view text) { directory_.write(name, text); }
  json config() const { return json::parse(testing::read_text(path() / "config.json")); }
  void set_config(const json& config) { write("config.json", config.dump()); }

 private:
  TempDir directory_;
};

TEST(SafetensorsCheckpoint, StopIdsAreAUnion) {
  Copy copy("gemma3/bf16-hf");
  EXPECT_EQ(Checkpoint::open(copy.path())->stop_ids(), (std::vector<int>{1}));
  copy.write("generation_config.json", R"({"eos_token_id": [106, 1], "temperature": 0.7, "top_k": 64, "top_p": 0.95})");
  copy.write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"7": {"content": "<end>"}, "8": {"content": "x"}}})");
  const auto checkpoint = Checkpoint::open(copy.path());
  EXPECT_EQ(checkpoint->stop_ids(), (std::vector<int>{1, 7, 106}));
  EXPECT_EQ(checkpoint->sampling_defaults().temperature, 0.7);
  EXPECT_EQ(checkpoint->sampling_defaults().top_k, 64);
  EXPECT_EQ(checkpoint->sampling_defaults().top_p, 0.95);
  copy.write("tokenizer_config.json", R"({"eos_token": "unresolvable"})");
  EXPECT_EQ(Checkpoint::open(copy.path())->stop_ids(), (std::vector<int>{1, 106}));
  copy.write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); },
                             "generation_config.json: field 'eos_token_id' holds \"x\""));
}

TEST(SafetensorsCheckpoint, EntriesMatchWithAnyPrefix) {
  Copy copy("moe26/optiq");
  json config = copy.config();
  json renamed = json::object();
  for (const auto& [key, value] : config["quantization"].items()) {
    std::string name = key;
    const std::string prefix = "language_model.model.";
    if (name.starts_with(prefix)) name = "model.language_model." + name.substr(prefix.size());
    renamed[name] = value;
  }
  config["quantization"] = renamed;
  config.erase("quantization_config");
  copy.set_config(config);
  expect_complete(*Checkpoint::open(copy.path()));
}

TEST(SafetensorsCheckpoint, DerivesThePackingWhenNoEntryFits) {
  Copy copy("moe26/optiq");
  json config = copy.config();
  const json original = config["quantization"];
  config["quantization"] = {{"bits", 4}, {"group_size", 64}, {"mode", "affine"}};
  config.erase("quantization_config");
  copy.set_config(config);
  const auto derived = Checkpoint::open(copy.path());
  const auto stated = Checkpoint::open(golden("moe26/optiq"));
  for (const TensorInfo& tensor : stated->tensors()) {
    const auto matrix = stated->matrix(tensor.canonical);
    if (!matrix) continue;
    EXPECT_EQ(format_name(*matrix), format_name(*derived->matrix(tensor.canonical))) << tensor.name;
  }
  config.erase("quantization");
  copy.set_config(config);
  expect_complete(*Checkpoint::open(copy.path()));
}

TEST(SafetensorsCheckpoint, RefusesEntriesThatContradictTheTensors) {
  Copy copy("dense31/q4g64");
  const json good = copy.config();
  const std::string module = "language_model.model.layers.0.mlp.up_proj";
  const auto expect = [&](const json& entry, const std::string& sentence) {
    json config = good;
    config["quantization"][module] = entry;
    copy.set_config(config);
    EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, sentence));
  };
  expect({{"bits", 8}, {"group_size", 64}}, "does not fit the affine 8-bit g64 of the config");
  expect({{"bits", 4}, {"group_size", 32}}, "does not fit the affine 4-bit g32");
  expect({{"bits", 4}, {"group_size", 32}, {"mode", "mxfp4"}}, "does not fit the mxfp4 4-bit g32");
  expect(false, "is packed, but the config says that it is not");
  expect({{"bits", 7}, {"group_size", 64}}, "affine 7-bit g64 is not something that MLX writes");
  expect({{"mode", "fp3"}}, "'fp3', supported are affine");
  json config = good;
  config["quantization"]["language_model.model.norm"] = nullptr;  // neither an object nor false: ignored
  config["quantization"]["model.layers.0.self_attn.v_proj"] = {{"bits", 4}, {"group_size", 64}};
  copy.set_config(config);
  EXPECT_EQ(testing::error_of([&] { Checkpoint::open(copy.path()); }), "");
}

TEST(SafetensorsCheckpoint, RefusesOtherQuantisers) {
  for (const char* method : {"gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"}) {
    Copy copy("dense31/bf16-hf");
    json config = copy.config();
    config["quantization_config"] = {{"quant_method", method}, {"bits", 4}, {"group_size", 128}};
    copy.set_config(config);
    EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); },
                               fmt::format("'quantization_config.quant_method' is '{}'", method)));
  }
}

TEST(SafetensorsCheckpoint, ReadsShardsWithAndWithoutTheirIndex) {
  Copy copy("dense31/bf16-hf");
  const auto indexed = Checkpoint::open(copy.path())->tensors().size();
  fs::remove(copy.path() / "model.safetensors.index.json");
  const auto globbed = Checkpoint::open(copy.path());
  EXPECT_EQ(globbed->tensors().size(), indexed);
  expect_complete(*globbed);
  fs::remove(copy.path() / "model-00001-of-00002.safetensors");
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, "the set of files is incomplete"));
  fs::remove(copy.path() / "model-00002-of-00002.safetensors");
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, "holds neither model.safetensors nor"));
}

TEST(SafetensorsCheckpoint, RefusesIndexesThatLie) {
  Copy copy("dense31/bf16-hf");
  const std::string name = "model.safetensors.index.json";
  const json good = json::parse(testing::read_text(copy.path() / name));
  json index = good;
  index["weight_map"]["model.language_model.norm.weight"] = "model-00009-of-00002.safetensors";
  copy.write(name, index.dump());
  EXPECT_TRUE(
      testing::fails([&] { Checkpoint::open(copy.path()); }, "model-00009-of-00002.safetensors is missing, though"));
  index["weight_map"]["model.language_model.norm.weight"] = "model-00001-of-00002.safetensors";
  copy.write(name, index.dump());
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); },
                             "tensor 'model.language_model.norm.weight' is missing, though"));
  for (const char* file : {"../evil.safetensors", "/etc/passwd", "..", ""}) {
    index["weight_map"]["model.language_model.norm.weight"] = file;
    copy.write(name, index.dump());
    EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, "expected a file name"));
  }
  copy.write(name, "{}");
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, "field 'weight_map' is missing"));
}

TEST(SafetensorsCheckpoint, TruncatedShardsAreSentences) {
  Copy copy("dense31/bf16-hf");
  const fs::path shard = copy.path() / "model-00002-of-00002.safetensors";
  const auto size = fs::file_size(shard);
  for (const uintmax_t length : {size - 1, size / 2, uintmax_t{1000}, uintmax_t{8}, uintmax_t{0}}) {
    fs::resize_file(shard, length);
    EXPECT_TRUE(testing::fails([&] { Checkpoint::open(copy.path()); }, shard.string()));
  }
}

/// A directory with the config of the untied golden and a file with these tensors alone.
std::string error_with(const SafetensorsBuilder& file, const char* form = "untied/bf16-hf") {
  TempDir directory;
  directory.write("config.json", testing::read_text(golden(form) / "config.json"));
  directory.write("model.safetensors", file.build());
  return testing::error_of([&] { Checkpoint::open(directory.path()); });
}

TEST(SafetensorsCheckpoint, RefusesTensorsThatDoNotFit) {
  const auto one = [&](std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape, size_t bytes) {
    SafetensorsBuilder file;
    file.tensor(name, dtype, shape, Bytes(bytes));
    return error_with(file);
  };
  const auto contains = [](const std::string& sentence, const std::string& part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence << "\nexpected: " << part;
  };
  contains(one("model.norm.weight", "BF16", {4, 32}, 256), "has the shape [4, 32], expected 1 dimensions");
  contains(one("model.embed_tokens.weight", "BF16", {128}, 256), "expected 2 dimensions");
  contains(one("model.embed_tokens.weight", "BF16", {0, 128}, 0), "is empty");
  contains(one("model.embed_tokens.weight", "I8", {2, 128}, 256), "has no scales, expected F32, F16 or BF16");
  contains(one("model.embed_tokens.weight", "U32", {2, 16}, 128), "is of dtype U32 and has no scales");
  contains(one("model.norm.weight", "U8", {4}, 4), "expected plain F32, F16 or BF16");
  contains(one("model.layers.3.mlp.up_proj.weight", "BF16", {1, 1}, 2), "is not part of a gemma4_text model");
  contains(one("model.layers.0.self_attn.q_proj.bias", "BF16", {1}, 2), "is not part of a gemma4_text model");
  contains(one("model.layers.0.self_attn.q_proj.qweight", "I32", {1}, 4), "is not part of a gemma4_text model");
  contains(one("model.layers.0.router.scale", "BF16", {128}, 256), "is not part of a gemma4_text model");
  contains(one("model.norm.bias", "BF16", {128}, 256), "is not part of a gemma4_text model");
  contains(one("model.embed_tokens.scale", "F32", {1}, 4), "is not part of a gemma4_text model");
  contains(one("model.embed_tokens.global_scale", "F32", {1}, 4), "with a global scale are not supported");
  contains(one("model.layers.0.mlp.up_proj.global_scale", "F32", {1}, 4), "with a global scale are not supported");
  contains(one("model.norm.scales", "BF16", {4}, 8), "has scales or biases but no weight");
  contains(one("model.norm.weight", "BF16", {128}, 256), "there is no lm_head.weight");
  SafetensorsBuilder twice;
  twice.tensor("model.norm.weight", "BF16", {128}, Bytes(256));
  twice.tensor("norm.weight", "BF16", {128}, Bytes(256));
  contains(error_with(twice), "means the same as 'model.norm'");
}

struct PackedCase {
  const char* sentence;
  std::string_view scale_dtype;
  std::vector<int64_t> weight, scales, biases;
};

TEST(SafetensorsCheckpoint, ChecksThePartsOfPackedWeights) {
  const std::vector<PackedCase> cases = {
      {"", "BF16", {4, 16}, {4, 2}, {4, 2}},
      {"", "F16", {4, 16}, {4, 4}, {4, 4}},
      {"", "F32", {4, 32}, {4, 1}, {4, 1}},
      {"", "U8", {4, 16}, {4, 4}, {}},
      {"", "U8", {4, 16}, {4, 8}, {}},
      {"", "U8", {4, 32}, {4, 4}, {}},
      {"tensor 'model.embed_tokens.scales' has [3, 2]", "BF16", {4, 16}, {3, 2}, {4, 2}},
      {"but biases of shape [4, 1]", "BF16", {4, 16}, {4, 2}, {4, 1}},
      {"tensor 'model.embed_tokens.biases' has [5, 2]", "BF16", {4, 16}, {4, 2}, {5, 2}},
      {"has no biases", "BF16", {4, 16}, {4, 2}, {}},
      {"and has biases", "U8", {4, 16}, {4, 4}, {4, 4}},
      {"which no packing of MLX explains", "BF16", {4, 16}, {4, 8}, {4, 8}},
      {"which no packing of MLX explains", "BF16", {4, 28}, {4, 2}, {4, 2}},
      {"which no packing of MLX explains", "BF16", {4, 17}, {4, 2}, {4, 2}},
      {"which no packing of MLX explains", "I32", {4, 1000}, {4, 1}, {4, 1}},
      {"has scales of dtype another type", "I16", {4, 16}, {4, 2}, {4, 2}},
      {"tensor 'model.embed_tokens.scales' has [4, 0]", "BF16", {4, 16}, {4, 0}, {4, 0}},
      {"tensor 'model.embed_tokens.scales' has [8]", "BF16", {4, 16}, {8}, {8}},
  };
  for (const PackedCase& c : cases) {
    const auto bytes = [](const std::vector<int64_t>& shape, int64_t size) {
      for (const int64_t dimension : shape) size *= dimension;
      return Bytes(static_cast<size_t>(size));
    };
    const int64_t size = c.scale_dtype == "U8" ? 1 : c.scale_dtype == "F32" || c.scale_dtype == "I32" ? 4 : 2;
    SafetensorsBuilder file;
    file.slack = 3;  // packed words then lie at odd addresses
    file.tensor("model.embed_tokens.weight", "U32", c.weight, bytes(c.weight, 4));
    file.tensor("model.embed_tokens.scales", c.scale_dtype, c.scales, bytes(c.scales, size));
    if (!c.biases.empty()) file.tensor("model.embed_tokens.biases", c.scale_dtype, c.biases, bytes(c.biases, size));
    file.tensor("lm_head.weight", "BF16", {4, 128}, Bytes(1024));
    const std::string sentence = error_with(file);
    if (*c.sentence == '\0') {
      EXPECT_EQ(sentence, "");
    } else {
      EXPECT_NE(sentence.find(c.sentence), std::string::npos) << sentence << "\nexpected: " << c.sentence;
    }
  }
}

TEST(SafetensorsCheckpoint, ReadsEveryFloatTypeAtAnyAddress) {
  for (size_t slack = 0; slack < 4; ++slack) {
    const std::vector<float> values(128, 1.5f);
    std::vector<uint16_t> halves(128, f32_to_f16(1.5f));
    std::vector<uint16_t> bfloats(128, f32_to_bf16(1.5f));
    SafetensorsBuilder file;
    file.slack = slack;
    file.tensor("model.norm.weight", "F32", {128}, testing::to_bytes(values));
    file.tensor("model.layers.0.input_layernorm.weight", "F16", {128}, testing::to_bytes(halves));
    file.tensor("model.layers.1.input_layernorm.weight", "BF16", {128}, testing::to_bytes(bfloats));
    file.tensor("lm_head.weight", "F16", {1, 128}, testing::to_bytes(halves));
    file.tensor("model.value_head.weight", "F32", {1}, Bytes(4));  // not of a layer: listed, unused
    TempDir directory;
    directory.write("config.json", testing::read_text(golden("untied/bf16-hf") / "config.json"));
    directory.write("model.safetensors", file.build());
    const auto checkpoint = Checkpoint::open(directory.path());
    for (const char* name : {"norm", "layers.0.input_layernorm", "layers.1.input_layernorm"}) {
      EXPECT_EQ(checkpoint->vector(name), values) << name;
    }
    EXPECT_EQ(row(*checkpoint->matrix("lm_head"), 0), values);
    EXPECT_EQ(checkpoint->vector("absent"), std::nullopt);
    EXPECT_EQ(checkpoint->tensors().size(), 5u);
    EXPECT_EQ(checkpoint->tensors()[4].name, "model.value_head.weight");
    EXPECT_EQ(checkpoint->tensors()[4].canonical, "");
  }
}

TEST(Checkpoint, RefusesOtherPaths) {
  const TempDir directory;
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(directory.path() / "none"); }, "does not exist"));
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(directory.path()); }, "holds no config.json"));
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(directory.write("model.bin", "x")); },
                             "neither a checkpoint directory nor a .gguf file"));
  directory.write("config.json", "");
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(directory.path()); }, "not valid JSON"));
}

}  // namespace
}  // namespace carat

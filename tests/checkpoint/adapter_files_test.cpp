#include "checkpoint/adapter_files.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/half.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"

namespace carat {
namespace {

using testing::Bytes;
using testing::fails;
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::to_bytes;

const ModelConfig& config_of(const char* variant_and_form) {
  static std::map<std::string, ModelConfig> configs;
  auto [at, added] = configs.try_emplace(variant_and_form);
  if (added) at->second = Checkpoint::open(testing::golden(variant_and_form))->config();
  return at->second;
}
/// Hidden 64; layer 5 takes keys for values.
const ModelConfig& dense() {
  return config_of("dense31/bf16-hf");
}
/// Hidden 64; layers 6 to 9 use the keys and values of others.
const ModelConfig& sharing() {
  return config_of("e2b/bf16-hf");
}

constexpr const char* kPeft = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";
constexpr const char* kMlx = R"({"lora_parameters": {"rank": 2, "scale": 2.0}, "num_layers": 6})";

std::vector<float> ramp(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) / 64;
  return values;
}

AdapterFiles read(const char* adapter, const SafetensorsBuilder& file, const ModelConfig& config = dense()) {
  const Bytes bytes = file.build();
  return read_adapter(parse_adapter_config(adapter, "adapter_config.json"),
                      *SafetensorsFile::parse(bytes, "adapter.safetensors"), config);
}

/// A pair as PEFT stores it, of rank 2.
void add_peft(SafetensorsBuilder& file, const std::string& module, int64_t in, int64_t out, int64_t rank = 2) {
  file.tensor(module + ".lora_A.weight", "F32", {rank, in}, to_bytes(ramp(static_cast<size_t>(rank * in))));
  file.tensor(module + ".lora_B.weight", "F32", {out, rank}, to_bytes(ramp(static_cast<size_t>(rank * out))));
}
void add_mlx(SafetensorsBuilder& file, const std::string& module, int64_t in, int64_t out, int64_t rank = 2) {
  file.tensor(module + ".lora_a", "F32", {in, rank}, to_bytes(ramp(static_cast<size_t>(rank * in))));
  file.tensor(module + ".lora_b", "F32", {rank, out}, to_bytes(ramp(static_cast<size_t>(rank * out))));
}

AdapterFiles read_peft(const std::string& module, int64_t in, int64_t out, const char* adapter = kPeft,
                       const ModelConfig& config = dense()) {
  SafetensorsBuilder file;
  add_peft(file, module, in, out);
  return read(adapter, file, config);
}

TEST(AdapterFiles, EveryPrefixMeansTheSame) {
  for (const char* prefix :
       {"base_model.model.model.language_model.", "base_model.model.model.", "base_model.model.language_model.model.",
        "model.language_model.", "language_model.model.", "model.", ""}) {
    const AdapterFiles files = read_peft(prefix + std::string("layers.3.mlp.up_proj"), 64, 128);
    ASSERT_EQ(files.modules.size(), 1u) << prefix;
    EXPECT_EQ(files.modules[0].canonical, "layers.3.mlp.up_proj");
    EXPECT_EQ(files.modules[0].layer, 3);
    EXPECT_EQ(files.modules[0].projection, "mlp.up_proj");
    EXPECT_EQ(files.unused, 0);
  }
  SafetensorsBuilder named;  // as a model in memory calls its adapter
  named.tensor("layers.0.mlp.up_proj.lora_A.default.weight", "F32", {2, 64}, to_bytes(ramp(128)));
  named.tensor("layers.0.mlp.up_proj.lora_B.default.weight", "F32", {128, 2}, to_bytes(ramp(256)));
  EXPECT_EQ(read(kPeft, named).modules.size(), 1u);
}

TEST(AdapterFiles, BothLayoutsBecomeRowsByRank) {
  const AdapterModule peft = read_peft("model.layers.0.self_attn.q_proj", 64, 128).modules[0];
  EXPECT_EQ(peft.rank, 2);
  EXPECT_EQ(peft.in, 64);
  EXPECT_EQ(peft.out, 128);
  EXPECT_EQ(peft.a[64 + 5], (64 + 5) / 64.0f);          // a[1][5]
  EXPECT_EQ(peft.b[128 + 5], 2.0f * (5 * 2 + 1) / 64);  // scale 4 / 2 times B[5][1]

  SafetensorsBuilder file;
  add_mlx(file, "model.layers.0.self_attn.q_proj", 64, 128);
  const AdapterModule mlx = read(kMlx, file).modules[0];
  EXPECT_EQ(mlx.in, 64);
  EXPECT_EQ(mlx.out, 128);
  EXPECT_EQ(mlx.a[64 + 5], (5 * 2 + 1) / 64.0f);     // a[5][1] of [in, rank]
  EXPECT_EQ(mlx.b[128 + 5], 2.0f * (128 + 5) / 64);  // scale 2 times b[1][5]
}

TEST(AdapterFiles, HalfPrecisionIsWidened) {
  for (const char* dtype : {"F16", "BF16"}) {
    const bool narrow = dtype[0] == 'B';
    std::vector<uint16_t> a(128), b(256);
    for (size_t i = 0; i < a.size(); ++i) a[i] = narrow ? f32_to_bf16(0.5f) : f32_to_f16(0.5f);
    for (size_t i = 0; i < b.size(); ++i) b[i] = narrow ? f32_to_bf16(-0.25f) : f32_to_f16(-0.25f);
    for (const size_t slack : {0u, 1u}) {  // any alignment
      SafetensorsBuilder file;
      file.slack = slack;
      file.tensor("layers.0.mlp.up_proj.lora_A.weight", dtype, {2, 64}, to_bytes(a));
      file.tensor("layers.0.mlp.up_proj.lora_B.weight", dtype, {128, 2}, to_bytes(b));
      const AdapterModule module = read(kPeft, file).modules[0];
      for (const float value : module.a) ASSERT_EQ(value, 0.5f);
      for (const float value : module.b) ASSERT_EQ(value, -0.5f);
    }
  }
}

TEST(AdapterFiles, ScalesFollowTheConfiguration) {
  const auto scale = [](const char* text, std::string_view path = "model.layers.1.self_attn.q_proj") {
    return parse_adapter_config(text, "c").scale_of(path);
  };
  EXPECT_EQ(scale(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16})"), 2.0);
  EXPECT_EQ(scale(R"({"peft_type": "LORA", "r": 16, "lora_alpha": 8, "use_rslora": true})"), 2.0);
  EXPECT_EQ(scale(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 0.5})"), 0.0625);
  EXPECT_EQ(scale(R"({"lora_parameters": {"rank": 8, "scale": 3.5}})"), 3.5);
  EXPECT_EQ(scale(R"({"lora_parameters": {"rank": 8}})"), 20.0);
  const char* patterns = R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "modules_to_save": null,
      "rank_pattern": {"layers.1.self_attn.q_proj": 4, "k_proj": 2, "^model.layers.1.mlp.up_proj": 32},
      "alpha_pattern": {"self_attn.q_proj": 1}})";
  EXPECT_EQ(scale(patterns), 0.25);                                      // 1 / 4
  EXPECT_EQ(scale(patterns, "model.layers.2.self_attn.q_proj"), 0.125);  // 1 / 8
  EXPECT_EQ(scale(patterns, "model.layers.2.self_attn.k_proj"), 8.0);    // 16 / 2
  EXPECT_EQ(scale(patterns, "model.layers.2.self_attn.ak_proj"), 2.0);   // not by half a word
  EXPECT_EQ(scale(patterns, "model.layers.1.mlp.up_proj"), 0.5);         // 16 / 32
  EXPECT_EQ(scale(patterns, "x.model.layers.1.mlp.up_proj"), 2.0);
}

TEST(AdapterFiles, MayLeaveOutWhatItLikes) {
  // No v_proj where keys serve as values, none of keys and values that layers share.
  SafetensorsBuilder file;
  add_peft(file, "base_model.model.model.language_model.layers.5.self_attn.k_proj", 64, 64);
  EXPECT_EQ(read(kPeft, file).modules.size(), 1u);
  SafetensorsBuilder other;
  add_peft(other, "base_model.model.model.language_model.layers.9.self_attn.q_proj", 64, 128);
  EXPECT_EQ(read(kPeft, other, sharing()).unused, 0);
}

TEST(AdapterFiles, WhatTextNeverPassesIsLeftAlone) {
  SafetensorsBuilder file;
  add_peft(file, "base_model.model.model.language_model.layers.9.self_attn.q_proj", 64, 128);
  add_peft(file, "base_model.model.model.language_model.layers.9.self_attn.k_proj", 64, 32);
  add_peft(file, "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj", 48, 48);
  const AdapterFiles files = read(kPeft, file, sharing());
  EXPECT_EQ(files.modules.size(), 1u);
  EXPECT_EQ(files.unused, 2);
}

TEST(AdapterFiles, OneUnmatchedKeyIsAnError) {
  const auto one = [](const std::string& module, const std::string& part, const ModelConfig& config = dense()) {
    EXPECT_TRUE(fails([&] { read_peft(module, 64, 64, kPeft, config); }, part)) << module;
    EXPECT_TRUE(fails([&] { read_peft(module, 64, 64, kPeft, config); }, module)) << "does not name " << module;
  };
  one("model.layers.6.self_attn.q_proj", "matches no projection");  // there are six layers
  one("model.layers.06.self_attn.q_proj", "matches no projection");
  one("model.layers.-1.self_attn.q_proj", "matches no projection");
  one("model.layers.0.self_attn.qkv_proj", "matches no projection");
  one("model.layers.0.self_attn.extra.q_proj", "matches no projection");
  one("encoder.layers.0.self_attn.q_proj", "matches no projection");
  one("model.layers.0.per_layer_projection", "matches no projection");  // of Gemma E models only
  one("model.embed_tokens", "cannot be adapted");
  one("lm_head", "cannot be adapted");
  one("model.layers.0.self_attn.q_norm", "cannot be adapted");
  one("model.layers.0.router.proj", "cannot be adapted", config_of("moe26/bf16-hf"));
  one("model.layers.0.experts.switch_glu.gate_proj", "experts", config_of("moe26/bf16-hf"));
  one("model.layers.5.self_attn.v_proj", "takes its keys for values");
}

TEST(AdapterFiles, TensorsThatAreNoPairAreErrors) {
  const auto with = [](const std::string& name, const std::vector<int64_t>& shape, const char* adapter = kPeft) {
    SafetensorsBuilder file;
    add_peft(file, "layers.0.mlp.up_proj", 64, 128);
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    file.tensor(name, "F32", shape, to_bytes(ramp(static_cast<size_t>(count))));
    return testing::error_of([&] { read(adapter, file); });
  };
  const auto contains = [](const std::string& sentence, const std::string& part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  contains(with("layers.0.mlp.gate_proj.lora_A.weight", {2, 64}), "other half of the pair is missing");
  contains(with("layers.0.mlp.gate_proj.lora_B.weight", {128, 2}), "other half of the pair is missing");
  contains(with("model.layers.0.mlp.up_proj.lora_A.weight", {2, 64}), "means the same module as");
  contains(with("layers.0.mlp.up_proj.lora_A.default.weight", {2, 64}), "means the same as");
  contains(with("layers.0.mlp.up_proj.lora_magnitude_vector", {128}), "DoRA");
  contains(with("layers.0.mlp.up_proj.bias", {128}), "matches no projection");
  contains(with("layers.0.mlp.up_proj.weight", {128, 64}), "cannot be adapted");
  contains(with("layers.0.mlp.up_proj.lora_a", {64, 2}), "matches no projection");  // the other layout
  contains(with("base_model.model.model.embed_tokens.lora_embedding_A", {2, 64}), "matches no projection");
}

TEST(AdapterFiles, ShapesAreChecked) {
  const auto pair = [](std::vector<int64_t> a, std::vector<int64_t> b, const std::string& part) {
    SafetensorsBuilder file;
    const auto add = [&](const char* name, const std::vector<int64_t>& shape) {
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      file.tensor(name, "F32", shape, to_bytes(ramp(static_cast<size_t>(count))));
    };
    add("layers.0.mlp.up_proj.lora_A.weight", a);
    add("layers.0.mlp.up_proj.lora_B.weight", b);
    EXPECT_TRUE(fails([&] { read(kPeft, file); }, part));
  };
  pair({2, 64}, {128, 3}, "its partner");
  pair({3, 64}, {128, 3}, "has rank 3, but the configuration says 2");
  pair({2, 65}, {128, 2}, "takes 65 inputs");
  pair({64, 2}, {2, 128}, "its partner");  // the other layout's orientation
  pair({128}, {128, 2}, "has 1 dimensions");
  pair({8, 2, 64}, {8, 128, 2}, "experts");
  pair({0, 64}, {128, 0}, "is empty");
  pair({2, 64}, {0, 2}, "is empty");
}

TEST(AdapterFiles, ValuesAreChecked) {
  const auto with = [](std::string_view dtype, const Bytes& b) {
    SafetensorsBuilder file;
    file.tensor("layers.0.mlp.up_proj.lora_A.weight", "F32", {2, 64}, to_bytes(ramp(128)));
    file.tensor("layers.0.mlp.up_proj.lora_B.weight", dtype, {128, 2}, b);
    return testing::error_of([&] { read(kPeft, file); });
  };
  std::vector<float> values = ramp(256);
  EXPECT_EQ(with("F32", to_bytes(values)), "");
  values[77] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(with("F32", to_bytes(values)).find("not finite"), std::string::npos);
  values[77] = 3e38f;  // times the scale
  EXPECT_NE(with("F32", to_bytes(values)).find("not finite"), std::string::npos);
  EXPECT_NE(with("I32", to_bytes(values)).find("expected F32, F16 or BF16"), std::string::npos);
  EXPECT_NE(with("U8", Bytes(256)).find("expected F32, F16 or BF16"), std::string::npos);
}

TEST(AdapterFiles, WhatTheConfigurationLeavesOutMustNotBeThere) {
  const auto mlx = [](const char* adapter, const std::string& module) {
    SafetensorsBuilder file;
    add_mlx(file, module, 64, 128);
    return testing::error_of([&] { read(adapter, file); });
  };
  const char* last = R"({"lora_parameters": {"rank": 2, "scale": 1}, "num_layers": 2})";
  EXPECT_EQ(mlx(last, "model.layers.4.mlp.up_proj"), "");
  EXPECT_NE(mlx(last, "model.layers.3.mlp.up_proj").find("the last 2 of 6 layers"), std::string::npos);
  EXPECT_EQ(mlx(R"({"lora_parameters": {"rank": 2, "scale": 1}, "num_layers": -1})", "model.layers.0.mlp.up_proj"), "");
  EXPECT_EQ(mlx(R"({"lora_parameters": {"rank": 2, "scale": 1}, "num_layers": 99})", "model.layers.0.mlp.up_proj"), "");
  const char* keys = R"({"lora_parameters": {"rank": 2, "scale": 1, "keys": ["self_attn.q_proj"]}})";
  EXPECT_EQ(mlx(keys, "model.layers.0.self_attn.q_proj"), "");
  EXPECT_NE(mlx(keys, "model.layers.0.mlp.up_proj").find("'keys'"), std::string::npos);
  const char* targets = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";
  EXPECT_EQ(read_peft("model.layers.0.self_attn.q_proj", 64, 128, targets).modules.size(), 1u);
  EXPECT_TRUE(fails([&] { read_peft("model.layers.0.mlp.up_proj", 64, 128, targets); }, "'target_modules'"));
  const char* expression = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ".*_proj"})";
  EXPECT_EQ(read_peft("model.layers.0.mlp.up_proj", 64, 128, expression).modules.size(), 1u);
}

TEST(AdapterConfig, RefusesWhatIsNotPlainLora) {
  const auto refuses = [](const std::string& text, const std::string& part) {
    EXPECT_TRUE(fails([&] { parse_adapter_config(text, "adapter_config.json"); }, part)) << text;
  };
  const auto peft = [&](const std::string& field, const std::string& part) {
    refuses(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, )" + field + "}", part);
  };
  peft(R"("use_dora": true)", "DoRA");
  peft(R"("bias": "lora_only")", "biases");
  peft(R"("bias": 1)", "expected a string");
  peft(R"("lora_bias": true)", "biases");
  peft(R"("modules_to_save": ["lm_head"])", "trained as a whole");
  peft(R"("target_parameters": ["experts.gate_up_proj"])", "experts");
  peft(R"("trainable_token_indices": [1, 2])", "embedding table");
  peft(R"("trainable_token_indices": {"embed_tokens": [1]})", "embedding table");
  peft(R"("layer_replication": [[0, 4], [2, 5]])", "replicated layers");
  peft(R"("alora_invocation_tokens": [1])", "middle of a prompt");
  peft(R"("init_lora_weights": "pissa")", "changes the weights of the model");
  peft(R"("rank_pattern": {".*q_proj": 4})", "regular expression");
  peft(R"("rank_pattern": {"": 4})", "regular expression");
  peft(R"("rank_pattern": {"q_proj": 0})", "expected an integer");
  peft(R"("rank_pattern": ["q_proj"])", "expected an object");
  peft(R"("alpha_pattern": {"q_proj": "8"})", "expected a number");
  peft(R"("use_rslora": "yes")", "expected true or false");
  peft(R"("target_modules": [3])", "expected names");
  peft(R"("target_modules": 3)", "expected an array");
  refuses(R"({"peft_type": "LORA", "r": 0, "lora_alpha": 4})", "from 1");
  refuses(R"({"peft_type": "LORA", "r": 1e9, "lora_alpha": 4})", "expected an integer");
  refuses(R"({"peft_type": "LORA", "lora_alpha": 4})", "'r' is missing");
  refuses(R"({"peft_type": "LORA", "r": 4})", "'lora_alpha' is missing");
  refuses(R"({"peft_type": "IA3", "r": 4})", "only 'LORA'");
  refuses(R"({"peft_type": null, "r": 4})", "is missing");
  refuses(R"({"fine_tune_type": "dora", "lora_parameters": {"rank": 8}})", "only 'lora'");
  refuses(R"({"fine_tune_type": "full"})", "only 'lora'");
  refuses(R"({"fine_tune_type": "lora"})", "'lora_parameters' is missing");
  refuses(R"({"lora_parameters": {"scale": 2}})", "'lora_parameters.rank' is missing");
  refuses(R"({"lora_parameters": {"rank": 8, "alpha": 16}})", "'scale', which is missing");
  refuses(R"({"lora_parameters": {"rank": 8, "scale": 1e300}})", "expected a number");
  refuses(R"({"lora_parameters": {"rank": 8, "keys": "q_proj"}})", "expected an array");
  refuses(R"({"lora_parameters": {"rank": 8}, "num_layers": -2})", "expected an integer");
  refuses(R"({"model_type": "gemma3"})", "neither 'peft_type' (PEFT) nor 'lora_parameters'");
  refuses("[]", "expected a JSON object");
  refuses("", "not valid JSON");
}

TEST(AdapterConfig, AcceptsWhatPeftWritesToday) {
  const AdapterConfig config = parse_adapter_config(
      R"({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
          "base_model_name_or_path": "google/gemma", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
          "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
          "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
          "loftq_config": {}, "lora_alpha": 32, "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
          "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.18.0",
          "qalora_group_size": 16, "r": 16, "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"],
          "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
          "use_qalora": false, "use_rslora": false})",
      "adapter_config.json");
  EXPECT_EQ(config.rank_of("model.layers.0.self_attn.q_proj"), 16);
  EXPECT_EQ(config.scale_of("model.layers.0.self_attn.q_proj"), 2.0);
  EXPECT_TRUE(config.names("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(config.names("model.layers.0.self_attn.k_proj"));
}

TEST(AdapterFiles, AreFoundInADirectoryOrByName) {
  const TempDir directory;
  EXPECT_TRUE(fails([&] { read_adapter(directory.path() / "none", dense()); }, "does not exist"));
  EXPECT_TRUE(fails([&] { read_adapter(directory.path(), dense()); }, "holds neither adapters.safetensors"));
  SafetensorsBuilder peft;
  add_peft(peft, "model.layers.0.mlp.up_proj", 64, 128);
  directory.write("adapter_model.safetensors", peft.build());
  EXPECT_TRUE(fails([&] { read_adapter(directory.path(), dense()); }, "has no adapter_config.json beside it"));
  directory.write("adapter_config.json", std::string_view(kPeft));
  EXPECT_EQ(read_adapter(directory.path(), dense()).modules.size(), 1u);
  EXPECT_EQ(read_adapter(directory.path(), dense()).scale, 2.0);
  directory.write("adapters.safetensors", peft.build());
  EXPECT_TRUE(fails([&] { read_adapter(directory.path(), dense()); }, "holds both"));
  EXPECT_EQ(read_adapter(directory.path() / "adapters.safetensors", dense()).modules.size(), 1u);
  directory.write("empty.safetensors", SafetensorsBuilder().build());
  EXPECT_TRUE(fails([&] { read_adapter(directory.path() / "empty.safetensors", dense()); }, "holds no adapters"));
}

TEST(AdapterFiles, DamagedFilesAreRefused) {
  SafetensorsBuilder file;
  add_peft(file, "layers.0.per_layer_projection", 32, 64);
  const AdapterConfig adapter = parse_adapter_config(kPeft, "c");
  const Bytes whole = file.build();
  const ModelConfig& config = sharing();
  EXPECT_EQ(read_adapter(adapter, *SafetensorsFile::parse(whole, "a"), config).modules.size(), 1u);
  testing::expect_hardy(whole, [&](std::span<const std::byte> bytes) {
    read_adapter(adapter, *SafetensorsFile::parse(bytes, "a"), config);
  });
}

}  // namespace
}  // namespace carat

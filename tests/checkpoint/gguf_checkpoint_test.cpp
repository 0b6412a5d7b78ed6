#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config_text.h"
#include "checkpoint/files.h"
#include "checkpoint/gguf.h"

namespace carat {
namespace {

using testing::Bytes;
using testing::config_text;
using testing::GgufBuilder;
using testing::golden;
using testing::TempDir;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kBF16 = 30;

/// Canonical name -> name in GGUF files, written down a second time on purpose: the reader's table is what it tests.
std::string gguf_name(const std::string& canonical) {
  static const std::vector<std::pair<std::string, std::string>> kNames = {
      {"embed_tokens", "token_embd.weight"},
      {"norm", "output_norm.weight"},
      {"lm_head", "output.weight"},
      {"embed_tokens_per_layer", "per_layer_token_embd.weight"},
      {"per_layer_model_projection", "per_layer_model_proj.weight"},
      {"per_layer_projection_norm", "per_layer_proj_norm.weight"},
      {"input_layernorm", "attn_norm.weight"},
      {"post_attention_layernorm", "post_attention_norm.weight"},
      {"pre_feedforward_layernorm", "ffn_norm.weight"},
      {"post_feedforward_layernorm", "post_ffw_norm.weight"},
      {"layer_scalar", "layer_output_scale.weight"},
      {"self_attn.q_proj", "attn_q.weight"},
      {"self_attn.k_proj", "attn_k.weight"},
      {"self_attn.v_proj", "attn_v.weight"},
      {"self_attn.o_proj", "attn_output.weight"},
      {"self_attn.q_norm", "attn_q_norm.weight"},
      {"self_attn.k_norm", "attn_k_norm.weight"},
      {"mlp.gate_proj", "ffn_gate.weight"},
      {"mlp.up_proj", "ffn_up.weight"},
      {"mlp.down_proj", "ffn_down.weight"},
      {"per_layer_input_gate", "inp_gate.weight"},
      {"per_layer_projection", "proj.weight"},
      {"post_per_layer_input_norm", "post_norm.weight"},
      {"router.proj", "ffn_gate_inp.weight"},
      {"router.scale", "ffn_gate_inp.scale"},
      {"router.per_expert_scale", "ffn_down_exps.scale"},
      {"post_feedforward_layernorm_1", "post_ffw_norm_1.weight"},
      {"post_feedforward_layernorm_2", "post_ffw_norm_2.weight"},
      {"pre_feedforward_layernorm_2", "pre_ffw_norm_2.weight"},
      {"experts.gate_proj", "ffn_gate_exps.weight"},
      {"experts.up_proj", "ffn_up_exps.weight"},
      {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
      {"experts.down_proj", "ffn_down_exps.weight"},
  };
  std::string prefix;
  std::string name = canonical;
  if (name.starts_with("layers.")) {
    const size_t dot = name.find('.', 7);
    prefix = "blk." + name.substr(7, dot - 7) + ".";
    name = name.substr(dot + 1);
  }
  for (const auto& [from, to] : kNames) {
    if (from == name) return prefix + to;
  }
  ADD_FAILURE() << "no GGUF name for " << canonical;
  return {};
}

/// What a converter writes for a golden, with knobs for what differs between files in the wild.
struct Conversion {
  bool e_series_zeros = true;  // keys of the E series as 0 on other models
  bool arrays = true;          // one value per layer rather than one for all where both are possible
  bool fused_qkv = false;
  std::vector<std::string> leave_out;
  std::vector<float> rope_factors;  // instead of the right ones

  bool wanted(const std::string& name) const {
    return std::find(leave_out.begin(), leave_out.end(), name) == leave_out.end();
  }
};

void write_metadata(GgufBuilder& out, const ModelConfig& c, const Conversion& how) {
  const bool gemma4 = c.family == Family::kGemma4;
  const std::string arch = gemma4 ? "gemma4" : "gemma3";
  const auto u32 = [&](const std::string& key, int value) {
    if (how.wanted(key)) out.u32(arch + "." + key, static_cast<uint32_t>(value));
  };
  const auto f32 = [&](const std::string& key, double value) {
    if (how.wanted(key)) out.f32(arch + "." + key, static_cast<float>(value));
  };
  const auto per_layer = [&](const std::string& key, const std::vector<int32_t>& values) {
    const bool same = std::all_of(values.begin(), values.end(), [&](int v) { return v == values[0]; });
    if (how.arrays || !same) {
      out.array<int32_t>(arch + "." + key, 5, values);
    } else {
      u32(key, values[0]);
    }
  };
  out.string("general.architecture", arch);
  u32("block_count", c.layer_count());
  u32("context_length", c.max_positions);
  u32("embedding_length", c.hidden);
  u32("attention.head_count", c.heads);
  u32("attention.sliding_window", c.window);
  f32("attention.layer_norm_rms_epsilon", c.norm_eps);
  f32("rope.freq_base", c.rope_full.theta);
  f32("rope.freq_base_swa", c.rope_sliding.theta);
  if (c.final_softcap) f32("final_logit_softcapping", *c.final_softcap);
  std::vector<int32_t> kv;
  std::vector<int32_t> widths(c.mlp_width.begin(), c.mlp_width.end());
  std::vector<uint8_t> sliding;
  int full_dim = c.layers.back().head_dim;
  for (const AttentionConfig& layer : c.layers) {
    kv.push_back(layer.kv_heads);
    sliding.push_back(layer.kind == LayerKind::kSliding);
    if (layer.kind == LayerKind::kFull) full_dim = layer.head_dim;
  }
  per_layer("attention.head_count_kv", kv);
  per_layer("feed_forward_length", widths);
  u32("attention.key_length", full_dim);
  u32("attention.value_length", full_dim);
  if (gemma4) {
    u32("attention.key_length_swa", c.layers[0].head_dim);
    u32("attention.value_length_swa", c.layers[0].head_dim);
    u32("rope.dimension_count", full_dim);
    u32("rope.dimension_count_swa", c.layers[0].head_dim);
    if (how.wanted("attention.sliding_window_pattern")) {
      out.array<uint8_t>("gemma4.attention.sliding_window_pattern", 7, sliding);
    }
    if (c.kv_shared_layers > 0 || how.e_series_zeros) u32("attention.shared_kv_layers", c.kv_shared_layers);
    if (c.pli_width > 0 || how.e_series_zeros) u32("embedding_length_per_layer_input", c.pli_width);
    if (c.experts > 0) {
      u32("expert_count", c.experts);
      u32("expert_used_count", c.experts_per_token);
      u32("expert_feed_forward_length", c.expert_width);
    }
    std::vector<float> factors = how.rope_factors;
    if (factors.empty()) {
      factors.assign(full_dim / 2, 1e30f);
      std::fill_n(factors.begin(), static_cast<int>(full_dim * c.rope_full.partial / 2), 1.0f);
    }
    if (how.wanted("rope_freqs.weight")) {
      out.tensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, kF32, testing::to_bytes(factors));
    }
  }
  out.u32("tokenizer.ggml.bos_token_id", 2);
  out.u32("tokenizer.ggml.eos_token_id", 1);
  out.u32("tokenizer.ggml.eot_token_id", 106);
}

/// Rows of a BF16 matrix as they lie.
Bytes rows_of(const Matrix& matrix) {
  Bytes out;
  testing::append(out, matrix.data, static_cast<size_t>(matrix.rows) * matrix.row_bytes);
  return out;
}

void write_tensors(GgufBuilder& out, const Checkpoint& source, const Conversion& how) {
  const bool plus_one = source.config().norm_plus_one;
  for (const TensorInfo& tensor : source.tensors()) {
    const std::string& name = tensor.canonical;
    if (name.empty()) continue;
    const std::string to = gguf_name(name);
    if (!how.wanted(to)) continue;
    if (auto values = source.vector(name)) {
      if (plus_one) std::for_each(values->begin(), values->end(), [](float& v) { v += 1; });
      out.tensor(to, {static_cast<int64_t>(values->size())}, kF32, testing::to_bytes(*values));
    } else if (const auto matrix = source.matrix(name)) {
      if (how.fused_qkv && name.ends_with(".self_attn.q_proj")) {
        const std::string prefix = name.substr(0, name.size() - 6);
        Bytes all = rows_of(*matrix);
        int64_t rows = matrix->rows;
        for (const char* part : {"k_proj", "v_proj"}) {
          const Matrix other = source.matrix(prefix + part).value();
          const Bytes bytes = rows_of(other);
          testing::append(all, bytes.data(), bytes.size());
          rows += other.rows;
        }
        out.tensor(to.substr(0, to.find("attn_q")) + "attn_qkv.weight", {rows, matrix->cols}, kBF16, all);
        continue;
      }
      if (how.fused_qkv && (name.ends_with("k_proj") || name.ends_with("v_proj"))) continue;
      out.tensor(to, {matrix->rows, matrix->cols}, kBF16, rows_of(*matrix));
    } else {
      const bool fused = name.ends_with("gate_up_proj");
      const auto stack = source.stack(fused ? name.substr(0, name.size() - 12) + "gate_proj" : name).value();
      out.tensor(to, {stack.experts, stack.stride, stack.all.cols}, kBF16, rows_of(stack.all));
    }
  }
}

GgufBuilder convert(const Checkpoint& source, const Conversion& how = {}) {
  GgufBuilder out;
  write_metadata(out, source.config(), how);
  write_tensors(out, source, how);
  return out;
}

std::shared_ptr<const Checkpoint> open(const TempDir& directory, const GgufBuilder& file) {
  return Checkpoint::open(directory.write("model.gguf", file.build()));
}

/// Every weight of `a` is in `b`, bit for bit; norms of Gemma 3 differ by the 1 that GGUF has added.
void expect_same_weights(const Checkpoint& a, const Checkpoint& b) {
  const float one = a.config().norm_plus_one ? 1 : 0;
  for (const TensorInfo& tensor : a.tensors()) {
    const std::string& name = tensor.canonical;
    if (name.empty()) continue;
    if (auto values = a.vector(name)) {
      for (float& value : *values) value += one;
      EXPECT_EQ(b.vector(name), values) << name;
    } else if (const auto matrix = a.matrix(name)) {
      const auto other = b.matrix(name);
      ASSERT_TRUE(other) << name;
      EXPECT_EQ(rows_of(*other), rows_of(*matrix)) << name;
    }
  }
  for (int i = 0; i < a.config().layer_count() && a.config().has_moe(); ++i) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = fmt::format("layers.{}.experts.{}", i, part);
      for (const int expert : {0, a.config().experts - 1}) {
        EXPECT_EQ(rows_of(b.stack(name).value().at(expert)), rows_of(a.stack(name).value().at(expert))) << name;
      }
    }
  }
}

TEST(GgufCheckpoint, SaysTheSameAsTheSafetensorsItCameFrom) {
  for (const char* form : {"dense31/bf16-hf", "e2b/bf16-hf", "e4b/bf16-mlx", "moe26/bf16-hf", "moe26w/bf16-mlx",
                           "untied/bf16-hf", "gemma3/bf16-hf"}) {
    SCOPED_TRACE(form);
    const auto source = Checkpoint::open(golden(form));
    for (const bool arrays : {false, true}) {
      Conversion how;
      how.arrays = arrays;
      how.e_series_zeros = arrays;
      const TempDir directory;
      const auto converted = open(directory, convert(*source, how));
      ModelConfig expected = source->config();
      if (expected.family == Family::kGemma3) {
        expected.norm_plus_one = false;
        expected.attention_scale = 0.25;  // GGUF cannot say 24^-0.5; 16^-0.5 is what every reader takes
      }
      EXPECT_EQ(config_text(converted->config(), false), config_text(expected, false));
      expect_same_weights(*source, *converted);
      EXPECT_EQ(converted->stop_ids(), (std::vector<int>{1, 106}));
      ASSERT_NE(converted->gguf(), nullptr);
      EXPECT_EQ(converted->gguf()->integer("tokenizer.ggml.eos_token_id"), 1);
      EXPECT_EQ(converted->bytes_on_disk(), std::filesystem::file_size(directory.path() / "model.gguf"));
    }
  }
}

TEST(GgufCheckpoint, SplitsFusedProjections) {
  const auto source = Checkpoint::open(golden("gemma3/bf16-hf"));
  Conversion how;
  how.fused_qkv = true;
  const TempDir directory;
  const auto converted = open(directory, convert(*source, how));
  expect_same_weights(*source, *converted);
}

TEST(GgufCheckpoint, Gemma3DefaultsAreThoseOfTheConverter) {
  const auto source = Checkpoint::open(golden("gemma3/bf16-hf"));
  Conversion how;
  how.leave_out = {"rope.freq_base_swa"};
  const TempDir directory;
  EXPECT_EQ(open(directory, convert(*source, how))->config().rope_sliding.theta, 1e4);
  GgufBuilder scaled = convert(*source);
  scaled.string("gemma3.rope.scaling.type", "linear");
  scaled.f32("gemma3.rope.scaling.factor", 8);
  const ModelConfig config = open(directory, scaled)->config();
  EXPECT_EQ(config.rope_full.factor, 8.0);
  EXPECT_EQ(config.rope_sliding.factor, 1.0);
  GgufBuilder period = convert(*source);
  period.u32("gemma3.attention.sliding_window_pattern", 2);
  const ModelConfig alternating = open(directory, period)->config();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(alternating.layers[i].kind == LayerKind::kFull, i % 2 == 1) << i;
}

TEST(GgufCheckpoint, QueryScaleOf27BIsNotThatOfItsHeads) {
  GgufBuilder file;
  file.string("general.architecture", "gemma3");
  const auto u32 = [&](const std::string& key, uint32_t value) { file.u32("gemma3." + key, value); };
  u32("block_count", 62);
  u32("context_length", 131072);
  u32("embedding_length", 5376);
  u32("attention.head_count", 32);
  u32("attention.head_count_kv", 16);
  u32("attention.key_length", 128);
  u32("attention.value_length", 128);
  u32("attention.sliding_window", 1024);
  u32("feed_forward_length", 21504);
  file.f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
  file.f32("gemma3.rope.freq_base", 1e6f);
  file.tensor("token_embd.weight", {1, 32}, 8, Bytes(34));
  const TempDir directory;
  EXPECT_DOUBLE_EQ(open(directory, file)->config().attention_scale, 1 / std::sqrt(168.0));
}

TEST(GgufCheckpoint, ReconcilesRopeFactors) {
  const auto source = Checkpoint::open(golden("dense31/bf16-hf"));  // head dim 64 on full layers: 32 lanes
  const TempDir directory;
  const auto with = [&](const std::vector<float>& factors) {
    Conversion how;
    how.rope_factors = factors;
    return open(directory, convert(*source, how));
  };
  std::vector<float> factors(32, 1e30f);
  for (int live = 1; live <= 32; ++live) {
    factors[live - 1] = 1;
    const RopeConfig rope = with(factors)->config().rope_full;
    EXPECT_EQ(rope.type, RopeConfig::Type::kProportional);
    EXPECT_EQ(static_cast<int>(rope.partial * 64 / 2), live);
    EXPECT_EQ(rope.factor, 1.0);
  }
  EXPECT_EQ(with(std::vector<float>(32, 8.0f))->config().rope_full.factor, 8.0);
  constexpr const char* kContradiction = "does not describe proportional RoPE";
  EXPECT_TRUE(testing::fails([&] { with(std::vector<float>(32, 1e30f)); }, kContradiction));
  EXPECT_TRUE(testing::fails([&] { with(std::vector<float>(32, -1.0f)); }, kContradiction));
  EXPECT_TRUE(testing::fails([&] { with(std::vector<float>(32, std::nanf(""))); }, kContradiction));
  factors.assign(32, 1);
  factors[5] = 1e30f;
  EXPECT_TRUE(testing::fails([&] { with(factors); }, kContradiction));
  factors[5] = 2;
  EXPECT_TRUE(testing::fails([&] { with(factors); }, kContradiction));
  EXPECT_TRUE(testing::fails([&] { with(std::vector<float>(31, 1.0f)); }, "is not a vector of 32 F32 values"));
}

TEST(GgufCheckpoint, RequiresRatherThanDefaults) {
  const auto source = Checkpoint::open(golden("moe26/bf16-hf"));
  const TempDir directory;
  for (const std::string key :
       {"block_count", "context_length", "embedding_length", "attention.head_count", "attention.layer_norm_rms_epsilon",
        "rope.freq_base", "final_logit_softcapping", "attention.key_length", "attention.key_length_swa",
        "attention.sliding_window_pattern", "expert_used_count", "expert_feed_forward_length"}) {
    Conversion how;
    how.leave_out = {key};
    EXPECT_TRUE(testing::fails([&] { open(directory, convert(*source, how)); }, "gemma4." + key + " is missing"));
  }
  for (const std::string tensor : {"token_embd.weight", "rope_freqs.weight"}) {
    Conversion how;
    how.leave_out = {tensor};
    EXPECT_TRUE(testing::fails([&] { open(directory, convert(*source, how)); }, "tensor '" + tensor + "' is missing"));
  }
}

TEST(GgufCheckpoint, RefusesOtherModels) {
  const TempDir directory;
  for (const char* name : {"llama", "gemma2", "gemma3n", "gemma-embedding"}) {
    GgufBuilder file;
    file.string("general.architecture", name);
    EXPECT_TRUE(
        testing::fails([&] { open(directory, file); }, fmt::format("is '{}', supported are gemma3 and gemma4", name)));
  }
  GgufBuilder drafter;
  drafter.string("general.architecture", "gemma4-assistant");
  EXPECT_TRUE(testing::fails([&] { open(directory, drafter); }, "a drafter for another model"));
  EXPECT_TRUE(testing::fails([&] { open(directory, GgufBuilder()); }, "general.architecture is missing"));
}

TEST(GgufCheckpoint, RefusesMetadataThatContradict) {
  const auto source = Checkpoint::open(golden("dense31/bf16-hf"));
  const TempDir directory;
  const auto with = [&](const std::string& key, uint32_t value) {
    Conversion how;
    how.leave_out = {key};
    GgufBuilder file = convert(*source, how);
    file.u32("gemma4." + key, value);
    return file;
  };
  EXPECT_TRUE(testing::fails([&] { open(directory, with("attention.value_length", 32)); }, "expected the same"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("rope.dimension_count", 16)); },
                             "expected the whole head dimension 64"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("attention.shared_kv_layers", 7)); },
                             "attention.shared_kv_layers is 7"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("block_count", 5)); }, "has 6 entries for 5 layers"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("block_count", 4000000000u)); }, "block_count is 4000000000"));
  EXPECT_TRUE(
      testing::fails([&] { open(directory, with("attention.head_count", 3)); }, "do not divide the 3 query heads"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("attention.sliding_window", 0)); }, "the sliding window is 0"));
  GgufBuilder causal = convert(*source);
  causal.boolean("gemma4.attention.causal", false);
  EXPECT_TRUE(testing::fails([&] { open(directory, causal); }, "embedding models are not supported"));
  GgufBuilder yarn = convert(*source);
  yarn.string("gemma4.rope.scaling.type", "yarn");
  EXPECT_TRUE(testing::fails([&] { open(directory, yarn); }, "is 'yarn', supported are none and linear"));
}

TEST(GgufCheckpoint, RefusesAbsurdNumbers) {
  const auto source = Checkpoint::open(golden("gemma3/bf16-hf"));
  const TempDir directory;
  for (const double value : {0.0, -1.0, 1e-320, 1e300, HUGE_VAL, std::nan("")}) {
    for (const std::string key : {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa",
                                  "attention.scale", "final_logit_softcapping", "rope.scaling.factor"}) {
      Conversion how;
      how.leave_out = {key};
      GgufBuilder file = convert(*source, how);
      file.f64("gemma3." + key, value);
      const std::string sentence = testing::error_of([&] { open(directory, file); });
      // Writers put 0 for "none".
      const bool harmless = value == 0 && (key == "final_logit_softcapping" || key == "rope.scaling.factor");
      EXPECT_EQ(sentence.empty(), harmless) << key << " " << value << ": " << sentence;
    }
  }
}

TEST(GgufCheckpoint, RefusesTensorsThatDoNotFit) {
  const auto source = Checkpoint::open(golden("dense31/bf16-hf"));
  const TempDir directory;
  const auto with = [&](const std::string& name, std::vector<int64_t> shape, uint32_t type, size_t bytes) {
    Conversion how;
    how.leave_out = {name};
    GgufBuilder file = convert(*source, how);
    file.tensor(name, std::move(shape), type, Bytes(bytes));
    return file;
  };
  EXPECT_TRUE(testing::fails(
      [&] {
        open(directory, with("blk.0.ffn_up.weight", {1, 256}, 16, 66));
      },
      "tensor 'blk.0.ffn_up.weight' is of type IQ2_XXS, which is not supported"));
  EXPECT_TRUE(
      testing::fails([&] { open(directory, with("blk.0.ffn_up.weight", {64}, kF32, 256)); }, "expected 2 dimensions"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("output_norm.weight", {32}, 8, 34)); },
                             "is of type Q8_0, expected F32, F16 or BF16"));
  EXPECT_TRUE(testing::fails(
      [&] {
        open(directory, with("output_norm.weight", {1, 64}, kF32, 256));
      },
      "expected 1 dimensions"));
  EXPECT_TRUE(testing::fails(
      [&] {
        open(directory, with("blk.6.ffn_up.weight", {1, 1}, kF32, 4));
      },
      "is not part of a gemma4 (GGUF) model"));
  EXPECT_TRUE(testing::fails([&] { open(directory, with("blk.0.attn_q.bias", {1}, kF32, 4)); },
                             "is not part of a gemma4 (GGUF) model"));
  EXPECT_TRUE(testing::fails(
      [&] {
        open(directory, with("blk.0.inp_gate.weight", {1, 1}, kF32, 4));
      },
      "is not part of a gemma4 (GGUF) model"));
  for (const char* beside : {"output.bias", "token_embd.scale"}) {
    EXPECT_TRUE(
        testing::fails([&] { open(directory, with(beside, {1}, kF32, 4)); }, "is not part of a gemma4 (GGUF) model"));
  }
  const auto foreign = open(directory, with("v.patch_embd.weight", {1, 1}, kF32, 4));
  EXPECT_EQ(foreign->tensors().back().canonical, "");
}

TEST(GgufCheckpoint, BlocksOf32ColumnsServeRowsThat256DoNotDivide) {
  const auto source = Checkpoint::open(golden("dense31/bf16-hf"));
  const TempDir directory;
  Conversion how;
  how.leave_out = {"blk.0.ffn_down.weight"};
  GgufBuilder file = convert(*source, how);
  file.tensor("blk.0.ffn_down.weight", {64, 704}, 8, Bytes(64 * 704 / 32 * 34));
  const auto matrix = open(directory, file)->matrix("layers.0.mlp.down_proj");
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->cols, 704);
  EXPECT_EQ(format_name(*matrix), "Q8_0");
}

/// A model in three parts: metadata in the first, the last layers in the last.
struct SplitModel {
  GgufBuilder parts[3];

  explicit SplitModel(const Checkpoint& source) {
    Conversion none;
    none.leave_out = {"rope_freqs.weight"};
    write_metadata(parts[0], source.config(), none);
    uint16_t count = 0;
    std::vector<float> factors(32, 1e30f);
    std::fill_n(factors.begin(), 8, 1.0f);
    parts[2].tensor("rope_freqs.weight", {32}, kF32, testing::to_bytes(factors));
    for (const TensorInfo& tensor : source.tensors()) {
      GgufBuilder& part = parts[count++ % 3];
      const std::string name = gguf_name(tensor.canonical);
      if (const auto values = source.vector(tensor.canonical)) {
        part.tensor(name, {static_cast<int64_t>(values->size())}, kF32, testing::to_bytes(*values));
      } else {
        const auto matrix = source.matrix(tensor.canonical).value();
        part.tensor(name, {matrix.rows, matrix.cols}, kBF16, rows_of(matrix));
      }
    }
    for (uint16_t i = 0; i < 3; ++i) {
      parts[i].u16("split.no", i);
      parts[i].u16("split.count", 3);
      parts[i].i32("split.tensors.count", count + 1);
    }
  }
};

TEST(GgufCheckpoint, JoinsSplitFiles) {
  const auto source = Checkpoint::open(golden("dense31/bf16-hf"));
  const SplitModel split(*source);
  const TempDir directory;
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 3; ++i) {
    paths.push_back(directory.write(fmt::format("m-{:05}-of-00003.gguf", i + 1), split.parts[i].build()));
  }
  const auto joined = Checkpoint::open(paths[0]);
  expect_same_weights(*source, *joined);
  EXPECT_EQ(config_text(joined->config(), false), config_text(source->config(), false));
  size_t bytes = 0;
  for (const auto& path : paths) bytes += std::filesystem::file_size(path);
  EXPECT_EQ(joined->bytes_on_disk(), bytes);

  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(paths[1]); }, "is part 2 of a split model, expected the first"));
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(directory.write("renamed.gguf", split.parts[0].build())); },
                             "expected a name that ends in -00001-of-00003.gguf"));
  directory.write("m-00003-of-00003.gguf", split.parts[1].build());
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(paths[0]); }, "do not make it part 3"));
  GgufBuilder last;
  last.u16("split.no", 2);
  last.u16("split.count", 3);
  directory.write("m-00003-of-00003.gguf", last.build());
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(paths[0]); }, "tensors together, expected 86"));
  std::filesystem::remove(paths[1]);
  EXPECT_TRUE(testing::fails([&] { Checkpoint::open(paths[0]); }, paths[1].string() + " is missing"));
}

TEST(GgufCheckpoint, SurvivesTruncationAnywhere) {
  const auto source = Checkpoint::open(golden("moe26/bf16-hf"));
  const Bytes bytes = convert(*source).build();
  const TempDir directory;
  for (size_t length = 0; length < bytes.size(); length += length < 12000 ? 97 : bytes.size() / 50) {
    const auto path =
        directory.write("cut.gguf", Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_NE(testing::error_of([&] { Checkpoint::open(path); }), "") << length;
  }
}

}  // namespace
}  // namespace carat

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/config_checks.h"
#include "checkpoint/config_text.h"
#include "checkpoint/files.h"
#include "checkpoint/model_config.h"

namespace carat {
namespace {

using nlohmann::json;
using testing::config_text;

ModelConfig parse(const json& config) {
  return parse_config_json(config.dump(), "config.json");
}

json golden_config(std::string_view form, std::string_view file = "config.json") {
  return json::parse(testing::read_text(testing::golden(form) / file));
}

/// The published text models, as their config.json describes them.
struct Geometry {
  const char* name;
  int hidden, layers, period, window, heads, kv_heads, global_kv_heads;
  bool k_eq_v;
  int shared;
  bool double_wide;
  int width, pli, experts;
};

constexpr Geometry kGeometries[] = {
    {"E2B", 1536, 35, 5, 512, 8, 1, 0, false, 20, true, 6144, 256, 0},
    {"E4B", 2560, 42, 6, 512, 8, 2, 0, false, 18, false, 10240, 256, 0},
    {"12B", 3840, 48, 6, 1024, 16, 8, 1, true, 0, false, 15360, 0, 0},
    {"26B-A4B", 2816, 30, 6, 1024, 16, 8, 2, true, 0, false, 2112, 0, 128},
    {"31B", 5376, 60, 6, 1024, 32, 16, 4, true, 0, false, 21504, 0, 0},
};

json text_config(const Geometry& g) {
  json types = json::array();
  for (int i = 0; i < g.layers; ++i) types.push_back((i + 1) % g.period == 0 ? "full_attention" : "sliding_attention");
  const auto or_null = [](int value) { return value == 0 ? json() : json(value); };
  return {{"model_type", "gemma4_text"},
          {"hidden_size", g.hidden},
          {"num_hidden_layers", g.layers},
          {"layer_types", types},
          {"sliding_window", g.window},
          {"num_attention_heads", g.heads},
          {"num_key_value_heads", g.kv_heads},
          {"num_global_key_value_heads", or_null(g.global_kv_heads)},
          {"head_dim", 256},
          {"global_head_dim", 512},
          {"attention_k_eq_v", g.k_eq_v},
          {"num_kv_shared_layers", g.shared},
          {"use_double_wide_mlp", g.double_wide},
          {"intermediate_size", g.width},
          {"hidden_size_per_layer_input", g.pli},
          {"vocab_size", 262144},
          {"vocab_size_per_layer_input", 262144},
          {"enable_moe_block", g.experts > 0},
          {"num_experts", or_null(g.experts)},
          {"top_k_experts", g.experts > 0 ? json(8) : json()},
          {"moe_intermediate_size", g.experts > 0 ? json(704) : json()},
          {"rms_norm_eps", 1e-6},
          {"final_logit_softcapping", 30.0},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"attention_bias", false},
          {"max_position_embeddings", 131072},
          {"tie_word_embeddings", true},
          {"bos_token_id", 2},
          {"eos_token_id", 1},
          {"use_bidirectional_attention", g.pli > 0 ? json() : json("vision")},
          {"rope_parameters",
           {{"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}};
}

json nested_config(const Geometry& g) {
  return {{"model_type", "gemma4"},
          {"eos_token_id", {1, 106, 50}},
          {"text_config", text_config(g)},
          {"vision_config", {{"hidden_size", 768}, {"head_dim", 64}}}};
}

TEST(ConfigJson, KnowsThePublishedGeometries) {
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(g.name);
    const ModelConfig config = parse(nested_config(g));
    EXPECT_EQ(config.family, Family::kGemma4);
    EXPECT_EQ(config.model_type, "gemma4");
    EXPECT_EQ(config.hidden, g.hidden);
    EXPECT_EQ(config.heads, g.heads);
    EXPECT_EQ(config.vocab, 262144);
    EXPECT_EQ(config.window, g.window);
    EXPECT_EQ(config.layer_count(), g.layers);
    int full = 0;
    for (int i = 0; i < g.layers; ++i) {
      const AttentionConfig& layer = config.layers[i];
      const bool is_full = (i + 1) % g.period == 0;
      full += is_full;
      EXPECT_EQ(layer.kind, is_full ? LayerKind::kFull : LayerKind::kSliding) << i;
      EXPECT_EQ(layer.head_dim, is_full ? 512 : 256) << i;
      EXPECT_EQ(layer.kv_heads, is_full && g.k_eq_v ? g.global_kv_heads : g.kv_heads) << i;
      EXPECT_EQ(layer.k_eq_v, is_full && g.k_eq_v) << i;
      EXPECT_EQ(config.mlp_width[i], g.double_wide && i >= g.layers - g.shared ? 2 * g.width : g.width) << i;
    }
    EXPECT_EQ(full, g.layers / g.period);
    EXPECT_EQ(config.attention_scale, 1.0);
    EXPECT_FALSE(config.norm_plus_one);
    EXPECT_EQ(config.final_softcap, 30.0);
    EXPECT_EQ(config.rope_sliding.theta, 1e4);
    EXPECT_EQ(config.rope_sliding.type, RopeConfig::Type::kDefault);
    EXPECT_EQ(config.rope_full.theta, 1e6);
    EXPECT_EQ(config.rope_full.type, RopeConfig::Type::kProportional);
    EXPECT_EQ(config.rope_full.partial, 0.25);
    EXPECT_EQ(config.kv_shared_layers, g.shared);
    EXPECT_EQ(config.pli_width, g.pli);
    EXPECT_EQ(config.pli_vocab, g.pli > 0 ? 262144 : 0);
    EXPECT_EQ(config.experts, g.experts);
    EXPECT_EQ(config.experts_per_token, g.experts > 0 ? 8 : 0);
    EXPECT_EQ(config.expert_width, g.experts > 0 ? 704 : 0);
    EXPECT_TRUE(config.tied_head);
    EXPECT_EQ(config.eos_ids, (std::vector<int>{1, 106, 50}));
    EXPECT_EQ(config.bos_id, 2);
  }
}

TEST(ConfigJson, SharersUseTheLastDonorOfTheirKind) {
  const ModelConfig e2b = parse(nested_config(kGeometries[0]));
  for (int i = 15; i < 35; ++i) EXPECT_EQ(kv_donor(e2b, i), (i + 1) % 5 == 0 ? 14 : 13) << i;
  for (int i = 0; i < 15; ++i) EXPECT_EQ(kv_donor(e2b, i), i);
  const ModelConfig e4b = parse(nested_config(kGeometries[1]));
  for (int i = 24; i < 42; ++i) EXPECT_EQ(kv_donor(e4b, i), (i + 1) % 6 == 0 ? 23 : 22) << i;
  EXPECT_EQ(e2b.mlp_width[14], 6144);
  EXPECT_EQ(e2b.mlp_width[15], 12288);
}

TEST(ConfigJson, FlatNestedAndUnifiedSayTheSame) {
  const ModelConfig nested = parse(nested_config(kGeometries[2]));
  json flat = text_config(kGeometries[2]);
  flat["eos_token_id"] = {1, 106, 50};
  EXPECT_EQ(config_text(parse(flat)), config_text(nested));
  json unified = nested_config(kGeometries[2]);
  unified["model_type"] = "gemma4_unified";
  unified["text_config"]["model_type"] = "gemma4_unified_text";
  EXPECT_EQ(config_text(parse(unified)), config_text(nested));
  EXPECT_EQ(parse(unified).model_type, "gemma4_unified");
}

TEST(ConfigJson, PerLayerConfigSaysTheSameAsTheOlderFields) {
  for (const std::string_view form : {"dense31/bf16-hf", "e2b/bf16-hf"}) {
    const ModelConfig older = parse(golden_config(form));
    const ModelConfig newer = parse(golden_config(form, "config.resaved-by-transformers-5.24.json"));
    EXPECT_EQ(config_text(newer), config_text(older)) << form;
  }
  json both = golden_config("dense31/bf16-hf");
  json& text = both["text_config"];
  text["per_layer_config"] = {{"5", {{"head_dim", 64}, {"num_key_value_heads", 1}}}};
  EXPECT_EQ(config_text(parse(both)), config_text(parse(golden_config("dense31/bf16-hf"))));
  text["per_layer_config"]["5"]["head_dim"] = 32;
  EXPECT_TRUE(testing::fails([&] { parse(both); },
                             "'text_config.per_layer_config.5.head_dim' is 32, which contradicts the 64"));
  text["per_layer_config"] = {{"5", {{"window", 3}}}};
  EXPECT_TRUE(testing::fails([&] { parse(both); }, "does not know per layer"));
  for (const std::string key : {"6", "-1", "x", "5x", ""}) {
    text["per_layer_config"] = {{key, {{"head_dim", 64}}}};
    EXPECT_TRUE(testing::fails([&] { parse(both); }, "is not the number of one of the 6 layers"));
  }
}

TEST(ConfigJson, ReadsEveryGoldenConfig) {
  for (const std::string_view form :
       {"dense31/bf16-hf", "dense31/mxfp4", "dense31/optiq", "e2b/bf16-hf", "e2b/q4g64", "e4b/bf16-mlx",
        "moe26/bf16-hf", "moe26w/q4g32", "untied/bf16-hf", "gemma3/bf16-hf"}) {
    EXPECT_EQ(testing::error_of([&] { parse(golden_config(form)); }), "") << form;
  }
  EXPECT_FALSE(parse(golden_config("untied/bf16-hf")).tied_head);
  const ModelConfig moe = parse(golden_config("moe26w/bf16-mlx"));
  EXPECT_EQ(moe.experts, 16);
  EXPECT_EQ(moe.experts_per_token, 4);
  EXPECT_EQ(moe.expert_width, 32);
}

TEST(ConfigJson, ReadsGemma3) {
  const ModelConfig config = parse(golden_config("gemma3/bf16-hf"));
  EXPECT_EQ(config.family, Family::kGemma3);
  EXPECT_TRUE(config.norm_plus_one);
  EXPECT_DOUBLE_EQ(config.attention_scale, 1 / std::sqrt(24.0));
  EXPECT_EQ(config.final_softcap, std::nullopt);
  EXPECT_EQ(config.rope_sliding.theta, 1e4);
  EXPECT_EQ(config.rope_full.theta, 1e6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(config.layers[i].kind == LayerKind::kFull, i == 5) << i;
  EXPECT_TRUE(config.tied_head);

  json types = golden_config("gemma3/bf16-hf");
  types.erase("sliding_window_pattern");
  EXPECT_TRUE(testing::fails([&] { parse(types); }, "'layer_types' is missing"));
  types["layer_types"] = json::array();
  for (int i = 0; i < 6; ++i) types["layer_types"].push_back(i == 5 ? "full_attention" : "sliding_attention");
  types["_sliding_window_pattern"] = 2;  // layer_types decide
  types["use_bidirectional_attention"] = false;
  EXPECT_EQ(config_text(parse(types)), config_text(config));
}

TEST(ConfigJson, LinearScalingConcernsFullLayersAlone) {
  json old = golden_config("gemma3/bf16-hf");
  old["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelConfig config = parse(old);
  EXPECT_EQ(config.rope_full.factor, 8.0);
  EXPECT_EQ(config.rope_sliding.factor, 1.0);
  json older = old;
  older["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(config_text(parse(older)), config_text(config));
  json newer = old;
  for (const char* key : {"rope_scaling", "rope_theta", "rope_local_base_freq"}) newer.erase(key);
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  EXPECT_EQ(config_text(parse(newer)), config_text(config));
}

TEST(ConfigJson, MultimodalGemma3LeavesOutWhatItsClassDefaults) {
  // Google's 4B and 27B files, text part verbatim.
  const json small = {{"model_type", "gemma3"},
                      {"eos_token_id", {1, 106}},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}}};
  const ModelConfig config = parse(small);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.layers[0].kv_heads, 4);
  EXPECT_EQ(config.layers[0].head_dim, 256);
  EXPECT_EQ(config.vocab, 262208);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.rope_full.theta, 1e6);
  EXPECT_EQ(config.rope_full.factor, 8.0);
  EXPECT_EQ(config.rope_sliding.theta, 1e4);
  EXPECT_EQ(config.layers[5].kind, LayerKind::kFull);
  EXPECT_EQ(config.layers[33].kind, LayerKind::kSliding);
  json large = small;
  large["text_config"]["head_dim"] = 128;
  large["text_config"]["num_attention_heads"] = 32;
  large["text_config"]["num_key_value_heads"] = 16;
  large["text_config"]["query_pre_attn_scalar"] = 168;
  EXPECT_DOUBLE_EQ(parse(large).attention_scale, 1 / std::sqrt(168.0));
  json flat = small["text_config"];
  EXPECT_TRUE(testing::fails([&] { parse(flat); }, "is missing"));
}

/// One change to a good config, and a part of the sentence that it must cause.
struct Mistake {
  std::string sentence;
  std::function<void(json& top, json& text)> make;
};

void expect_mistakes(const json& good, const std::vector<Mistake>& mistakes) {
  ASSERT_EQ(testing::error_of([&] { parse(good); }), "");
  for (const Mistake& mistake : mistakes) {
    json bad = good;
    mistake.make(bad, bad.contains("text_config") ? bad["text_config"] : bad);
    EXPECT_TRUE(testing::fails([&] { parse(bad); }, mistake.sentence));
  }
}

Mistake without(const std::string& key) {
  return {key + "' is missing", [key](json&, json& text) { text.erase(key); }};
}
Mistake with(const std::string& key, json value, const std::string& sentence) {
  return {sentence, [key, value](json&, json& text) { text[key] = value; }};
}

TEST(ConfigJson, RequiresRatherThanDefaults) {
  std::vector<Mistake> mistakes;
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "global_head_dim",
        "intermediate_size", "vocab_size", "layer_types", "rms_norm_eps", "rope_parameters", "max_position_embeddings",
        "num_kv_shared_layers", "final_logit_softcapping", "hidden_size_per_layer_input", "attention_k_eq_v",
        "enable_moe_block", "use_double_wide_mlp", "vocab_size_per_layer_input"}) {
    mistakes.push_back(without(key));
  }
  mistakes.push_back({"the sliding window is 0", [](json&, json& text) { text.erase("sliding_window"); }});
  expect_mistakes(nested_config(kGeometries[0]), mistakes);
  expect_mistakes(nested_config(kGeometries[3]),
                  {without("num_experts"), without("top_k_experts"), without("moe_intermediate_size")});
  std::vector<Mistake> gemma3;
  for (const char* key : {"head_dim", "num_key_value_heads", "query_pre_attn_scalar", "rope_theta",
                          "rope_local_base_freq", "rms_norm_eps", "vocab_size", "max_position_embeddings"}) {
    gemma3.push_back(without(key));
  }
  expect_mistakes(golden_config("gemma3/bf16-hf"), gemma3);
}

TEST(ConfigJson, ZeroAndNullMeanNone) {
  json config = golden_config("dense31/bf16-hf");
  const std::string expected = config_text(parse(config));
  json& text = config["text_config"];
  for (const char* key : {"hidden_size_per_layer_input", "num_kv_shared_layers", "num_experts", "top_k_experts"}) {
    for (const json& none : {json(0), json()}) {
      text[key] = none;
      EXPECT_EQ(config_text(parse(config)), expected) << key;
    }
  }
  text["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(parse(config).final_softcap, std::nullopt);
}

TEST(ConfigJson, GlobalKvHeadsOnlyCountWhereKeysAreValues) {
  json config = golden_config("e2b/bf16-hf");
  config["text_config"]["num_key_value_heads"] = 2;
  config["text_config"]["num_global_key_value_heads"] = 1;
  for (const auto& layer : parse(config).layers) EXPECT_EQ(layer.kv_heads, 2);
}

TEST(ConfigJson, RefusesWhatItDoesNotKnow) {
  const auto rope = [](const char* kind, const char* key, json value, const std::string& sentence) {
    return Mistake{sentence, [=](json&, json& text) { text["rope_parameters"][kind][key] = value; }};
  };
  expect_mistakes(
      nested_config(kGeometries[0]),
      {{"'model_type' is 'llama', supported are gemma4,", [](json& top, json&) { top["model_type"] = "llama"; }},
       {"'model_type' is 'gemma4_assistant': a drafter",
        [](json& top, json&) { top["model_type"] = "gemma4_assistant"; }},
       {"'model_type' is missing", [](json& top, json&) { top.erase("model_type"); }},
       {"'text_config.model_type' contradicts", [](json&, json& text) { text["model_type"] = "gemma3_text"; }},
       {"'text_config' is 3, expected an object", [](json& top, json&) { top["text_config"] = 3; }},
       with("hidden_activation", "silu", "expected gelu_pytorch_tanh"),
       with("attention_bias", true, "biases in attention"),
       with("attn_logit_softcapping", 50.0, "softcapped attention"),
       with("use_bidirectional_attention", "all", "bidirectional attention"),
       with("use_bidirectional_attention", true, "bidirectional attention"),
       rope("full_attention", "rope_type", "yarn", "'text_config.rope_parameters.full_attention.rope_type' is 'yarn'"),
       rope("full_attention", "partial_rotary_factor", 0, "partial rotary factor"),
       rope("full_attention", "partial_rotary_factor", nullptr, "partial_rotary_factor' is missing"),
       rope("full_attention", "rope_theta", -1, "expected a number"),
       rope("sliding_attention", "partial_rotary_factor", 0.5, "is not 1"),
       rope("sliding_attention", "factor", 8, "is not 1"),
       {"'text_config.rope_parameters.sliding_attention' is missing",
        [](json&, json& text) { text["rope_parameters"].erase("sliding_attention"); }}});
}

TEST(ConfigJson, RefusesGeometriesThatContradictThemselves) {
  const json absurd = int64_t{1} << 40;
  expect_mistakes(nested_config(kGeometries[0]),
                  {with("head_dim", 255, "RoPE needs an even number"),
                   with("layer_types", json::array({"full_attention"}), "has 1 entries for 35 layers"),
                   with("num_hidden_layers", 0, "expected an integer from 1"),
                   with("num_hidden_layers", absurd, "expected an integer from 1"),
                   with("hidden_size", absurd, "expected an integer"),
                   with("hidden_size", "1536", "is \"1536\", expected an integer"),
                   with("hidden_size", 1536.5, "expected an integer"),
                   with("vocab_size", -5, "expected an integer"),
                   with("intermediate_size", absurd, "expected an integer"),
                   with("num_kv_shared_layers", 35, "a drafter for another model"),
                   with("num_kv_shared_layers", 36, "expected an integer from 0 to 35"),
                   with("num_kv_shared_layers", 34, "no layer below 1 is of its kind (full)"),
                   with("rms_norm_eps", 0, "expected a number"),
                   with("sliding_window", -1, "expected an integer"),
                   with("eos_token_id", "x", "expected token ids"),
                   {"holds \"diagonal\"", [](json&, json& text) { text["layer_types"][3] = "diagonal"; }}});
  expect_mistakes(nested_config(kGeometries[3]), {with("num_key_value_heads", 3, "do not divide the 16 query heads"),
                                                  with("top_k_experts", 129, "number of experts per token is 129"),
                                                  with("num_experts", absurd, "expected an integer")});
  json unequal = nested_config(kGeometries[0]);
  unequal["text_config"].erase("global_head_dim");
  unequal["text_config"]["per_layer_config"] = {{"14", {{"head_dim", 512}}}, {"19", {{"head_dim", 256}}}};
  EXPECT_TRUE(testing::fails([&] { parse(unequal); }, "cannot share the keys and values of layer 14"));
}

TEST(ConfigJson, RefusesDamagedJson) {
  EXPECT_TRUE(testing::fails([&] { parse_config_json("", "c.json"); }, "c.json: not valid JSON"));
  EXPECT_TRUE(
      testing::fails([&] { parse_config_json("{\"model_type\": \"gemma4\"", "c.json"); }, "c.json: not valid JSON"));
  EXPECT_TRUE(testing::fails([&] { parse_config_json("[1]", "c.json"); }, "expected a JSON object"));
  EXPECT_TRUE(testing::fails([&] { parse_config_json(std::string(5000, '['), "c.json"); }, "c.json: not valid JSON"));
}

TEST(ConfigJson, SurvivesEveryTruncation) {
  const std::string text = testing::read_text(testing::golden("e2b/bf16-hf") / "config.json");
  for (size_t length = 0; length < text.size(); ++length) {
    const std::string part = text.substr(0, length);
    EXPECT_NE(testing::error_of([&] { parse_config_json(part, "c.json"); }), "") << length;
  }
}

}  // namespace
}  // namespace carat

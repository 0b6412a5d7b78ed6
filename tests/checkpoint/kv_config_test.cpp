#include "checkpoint/kv_config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carat {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_kv_config(text, "kv_config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(KvConfig, ChoosesByLayer) {
  const KvChoice choice = parse_kv_config(
      R"([{"layer_idx": 11, "bits": 4, "group_size": 32}, {"bits": 8, "layer_idx": 5}, {"layer_idx": 7, "bits": 16}])",
      "kv_config.json");
  EXPECT_EQ(choice.of(5, false), KvFormats(KvFormat::spread(8, 64)));
  EXPECT_EQ(choice.of(11, true), KvFormats(KvFormat::spread(4, 32)));
  EXPECT_EQ(choice.of(7, true), KvFormats(KvFormat::kF16));
  const KvChoice recent = parse_kv_config(R"([{"layer_idx": 5, "bits": 8, "recent": 128}])", "kv_config.json");
  EXPECT_EQ(recent.of(5, false), KvFormats(KvFormat::spread(8, 64), KvFormat::spread(8, 64), 128));
  EXPECT_EQ(choice.of(0, false), KvFormats(KvFormat::kF16));  // not named
  EXPECT_EQ(choice.of(0, true), KvFormats(KvFormat::kF16));
}

TEST(KvConfig, IsReadBackAsWritten) {
  KvChoice choice = KvFormat::kF16;
  choice.layers = {{0, KvFormat::spread(8, 64)}, {3, KvFormat::spread(3, 32)}, {9, KvFormat::kF16}};
  EXPECT_EQ(parse_kv_config(kv_config_text(choice), "kv_config.json"), choice);
  EXPECT_EQ(parse_kv_config(kv_config_text(KvFormat::kF16), "kv_config.json"), KvChoice(KvFormat::kF16));
  choice.layers[1].formats.recent = 100;
  EXPECT_EQ(parse_kv_config(kv_config_text(choice), "kv_config.json"), choice);
  EXPECT_THROW(kv_config_text(KvFormat::kF32), Error);
  choice.layers[0].formats.v = KvFormat::spread(4, 64);
  EXPECT_THROW(kv_config_text(choice), Error);
}

TEST(KvConfig, RefusesInSentences) {
  EXPECT_NE(refusal("").find("kv_config.json is not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("[").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("{}").find("expected an array of layers"), std::string::npos);
  EXPECT_NE(refusal("[8]").find("entry 0 of kv_config.json is 8; expected an object"), std::string::npos);
  EXPECT_NE(refusal(R"([{"bits": 8}])").find("has no \"layer_idx\""), std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": 1}])").find("has no \"bits\""), std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": 1.5, "bits": 8}])").find("expected a whole number"), std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": -1, "bits": 8}])").find("expected the number of a layer"), std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": 99999999999, "bits": 8}])").find("expected the number of a layer"),
            std::string::npos);
  for (const char* recent : {"-1", "1048577", "1.5"}) {
    const std::string text = fmt::format(R"([{{"layer_idx": 1, "bits": 8, "recent": {}}}])", recent);
    EXPECT_NE(refusal(text).find("\"recent\" is " + std::string(recent)), std::string::npos) << refusal(text);
  }
  EXPECT_NE(refusal(R"([{"layer_idx": 1, "bits": 7}])").find("\"bits\" is 7"), std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": 1, "bits": 8, "group_size": 128}])").find("\"group_size\" is 128"),
            std::string::npos);
  EXPECT_NE(refusal(R"([{"layer_idx": 1, "bits": 8}, {"layer_idx": 1, "bits": 4}])").find("names layer 1 twice"),
            std::string::npos);
}

}  // namespace
}  // namespace carat

#include "server/request_fields.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "server/generation_fields.h"

namespace carat::server {
namespace {

/// The error that `read` throws; fails the test when it throws none.
template <typename Read>
ApiError error_of(Read read) {
  try {
    read();
  } catch (const ApiFailure& failure) {
    EXPECT_EQ(failure.error().status, 400);
    return failure.error();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(RequestBody, RefusesWhatIsNoObjectInUtf8) {
  for (const std::string& body : {std::string("{"), std::string("{}x"), std::string("{\"a\":\"\xff\"}"),
                                  std::string("{\"a\":'b'}"), std::string("\0", 1), std::string("{\"a\":NaN}")}) {
    EXPECT_NE(error_of([&] { read_body(body); }).message.find("not valid JSON in UTF-8 (at byte"), std::string::npos)
        << body;
  }
  EXPECT_EQ(error_of([] { read_body(""); }).message, "the body is empty, expected a JSON object");
  EXPECT_EQ(error_of([] { read_body("[1]"); }).message, "the body is an array, expected a JSON object");
  EXPECT_EQ(error_of([] { read_body("null"); }).message, "the body is null, expected a JSON object");
  EXPECT_EQ(error_of([] { read_body("{\"a\":1e999}"); }).message, "the body holds a number that is out of range");
  EXPECT_EQ(read_body(R"({"a":"ü€😀"})")["a"], "ü€😀");
}

TEST(RequestBody, BoundsDepth) {
  const auto nested = [](int depth) { return "{\"a\":" + repeated("[", depth - 1) + repeated("]", depth - 1) + "}"; };
  EXPECT_NO_THROW(read_body(nested(256)));
  EXPECT_NE(error_of([&] { read_body(nested(257)); }).message.find("256"), std::string::npos);
  EXPECT_NE(error_of([&] { read_body(repeated("[", 1'000'000)); }).message.find("256"), std::string::npos);
  // Brackets in strings are no depth, also behind escaped quotes.
  EXPECT_NO_THROW(read_body(R"({"a":"\")" + repeated("[", 1000) + "\\\\\"}"));
}

TEST(RequestBody, BoundsWhatParsingCosts) {
  // Each bound alone would otherwise take seconds or gigabytes.
  EXPECT_NE(error_of([] { read_body("{\"a\":[" + repeated("[],", 4'000'001) + "1]}"); }).message.find("values"),
            std::string::npos);
  std::string keys = "{";
  for (int i = 0; i < 20'000; ++i) keys += "\"" + std::to_string(i) + "\":1,";
  keys.back() = '}';
  EXPECT_NE(error_of([&] { read_body(keys); }).message.find("keys"), std::string::npos);
}

TEST(RequestFields, NullCountsAsAbsent) {
  const Json json = {{"a", nullptr}};
  const Fields fields(json);
  EXPECT_FALSE(fields.has("a"));
  EXPECT_EQ(fields.flag("a"), std::nullopt);
  EXPECT_EQ(fields.integer("a", 0, 1), std::nullopt);
  EXPECT_EQ(fields.number("a", 0, 1), std::nullopt);
  EXPECT_EQ(fields.text("a"), std::nullopt);
  EXPECT_EQ(fields.texts("a", 1), std::nullopt);
  EXPECT_EQ(fields.ids("a"), std::nullopt);
  EXPECT_EQ(fields.array("a"), nullptr);
  EXPECT_FALSE(fields.object("a").has_value());
}

TEST(RequestFields, TellWhatWasFoundAndExpected) {
  const Json json = Json::parse(
      R"({"s":"x","n":2.5,"b":true,"a":["x",1],"o":{"k":7},"big":18446744073709551615,"whole":3.0,"empty":[]})");
  const Fields fields(json);
  const auto message = [](auto read) { return error_of(read).message; };
  EXPECT_EQ(message([&] { fields.flag("s"); }), R"(s: found "x", expected true or false)");
  EXPECT_EQ(message([&] { fields.flag("n"); }), "n: found 2.5, expected true or false");
  EXPECT_EQ(message([&] { fields.integer("n", 1, 9); }), "n: found 2.5, expected an integer from 1 to 9");
  EXPECT_EQ(message([&] { fields.integer("b", 1, 9); }), "b: found true, expected an integer from 1 to 9");
  EXPECT_EQ(message([&] { fields.integer("big", 1, 9); }),
            "big: found 18446744073709551615, expected an integer from 1 to 9");
  EXPECT_EQ(message([&] { fields.integer("whole", 4, std::numeric_limits<int>::max()); }),
            "whole: found 3.0, expected an integer of at least 4");
  EXPECT_EQ(message([&] { fields.integer("big", 1, std::numeric_limits<int>::max()); }),
            "big: found 18446744073709551615, expected an integer from 1 to 2147483647");
  EXPECT_EQ(message([&] { fields.number("n", 0, 2); }), "n: found 2.5, expected a number from 0 to 2");
  EXPECT_EQ(message([&] { fields.number("s", 0, 2); }), R"(s: found "x", expected a number from 0 to 2)");
  EXPECT_EQ(message([&] { fields.text("o"); }), "o: found an object, expected a string");
  EXPECT_EQ(message([&] { fields.array("o"); }), "o: found an object, expected an array");
  EXPECT_EQ(message([&] { fields.object("empty"); }), "empty: found an empty array, expected an object");
  EXPECT_EQ(message([&] { fields.texts("a", 2); }), "a[1]: found 1, expected a string");
  EXPECT_EQ(message([&] { fields.texts("a", 1); }),
            "a: found 2 strings, expected a string or an array of at most 1 strings");
  EXPECT_EQ(message([&] { fields.ids("a"); }), R"(a[0]: found "x", expected a token id (an integer of at least 0))");
  EXPECT_EQ(message([&] { fields.object("o")->text("k"); }), "o.k: found 7, expected a string");
  EXPECT_EQ(message([&] { fields.require("none", "a thing"); }), "none: found nothing, expected a thing");
  EXPECT_EQ(error_of([&] { fields.object("o")->text("k"); }).param, "o.k");
  EXPECT_EQ(fields.integer("whole", 1, 9), 3);
  EXPECT_EQ(fields.texts("s", 1), std::vector<std::string>{"x"});
  EXPECT_EQ(describe(Json(std::string(100, 'x'))), "a string of 100 bytes");
}

GenerationTask sampling_of(const std::string& text) {
  const Json json = Json::parse(text);
  GenerationTask task;
  read_sampling(Fields(json), task);
  return task;
}

TEST(GenerationFields, ReadSampling) {
  const GenerationTask task = sampling_of(R"({
    "temperature":2,"top_p":0.9,"top_k":40,"min_p":0.05,"xtc_probability":0.5,"xtc_threshold":0.2,
    "repetition_penalty":1.1,"repeat_penalty":9,"presence_penalty":-2,"frequency_penalty":1.5,
    "repetition_context_size":1,"presence_context_size":2,"frequency_context_size":3,
    "seed":-5,"logit_bias":{"7":-100,"262143":0.5,"9":null},"hlg":{"width":3},
    "stop_token_ids":[1,106],"ignore_eos":true,"priority":3})");
  const SamplingChoice& sampling = task.sampling;
  EXPECT_EQ(sampling.temperature, 2.0f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.min_p, 0.05f);
  EXPECT_EQ(sampling.xtc_probability, 0.5f);
  EXPECT_EQ(sampling.xtc_threshold, 0.2f);
  EXPECT_EQ(sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(sampling.presence_penalty, -2.0f);
  EXPECT_EQ(sampling.frequency_penalty, 1.5f);
  EXPECT_EQ(sampling.repetition_context, 1);
  EXPECT_EQ(sampling.presence_context, 2);
  EXPECT_EQ(sampling.frequency_context, 3);
  EXPECT_EQ(sampling.seed, static_cast<uint64_t>(-5));
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<int, float>>{{7, -100.0f}, {262143, 0.5f}}));
  ASSERT_TRUE(sampling.hlg.has_value());
  EXPECT_TRUE(sampling.hlg->enabled);
  EXPECT_EQ(sampling.hlg->width, 3.0f);
  EXPECT_EQ(sampling.hlg->toe, 6.0f);
  EXPECT_EQ(task.stop_tokens, (std::vector<int>{1, 106}));
  EXPECT_TRUE(task.ignore_eos);
  EXPECT_EQ(task.priority, -3);
}

TEST(GenerationFields, LeaveOutWhatTheRequestLeavesOut) {
  const GenerationTask task = sampling_of("{}");
  const SamplingChoice& sampling = task.sampling;
  EXPECT_FALSE(sampling.temperature || sampling.top_p || sampling.min_p || sampling.xtc_probability ||
               sampling.xtc_threshold || sampling.repetition_penalty || sampling.presence_penalty ||
               sampling.frequency_penalty || sampling.top_k || sampling.repetition_context ||
               sampling.presence_context || sampling.frequency_context || sampling.seed || sampling.hlg);
  EXPECT_TRUE(sampling.logit_bias.empty() && task.stop_tokens.empty());
  EXPECT_EQ(task.priority, 0);
  EXPECT_FALSE(task.ignore_eos);
}

TEST(GenerationFields, KnowOtherServersWays) {
  EXPECT_EQ(sampling_of(R"({"repeat_penalty":1.3})").sampling.repetition_penalty, 1.3f);
  EXPECT_EQ(sampling_of(R"({"top_k":-1})").sampling.top_k, 0);
  EXPECT_EQ(sampling_of(R"({"seed":18446744073709551615})").sampling.seed, ~uint64_t{0});
  EXPECT_FALSE(sampling_of(R"({"hlg":false})").sampling.hlg->enabled);
  EXPECT_FALSE(sampling_of(R"({"hlg":{"enabled":false}})").sampling.hlg->enabled);
  const float narrowest = sampling_of(R"({"top_p":0})").sampling.top_p.value();
  EXPECT_GT(narrowest, 0.0f);  // 0 itself would switch the filter off
  EXPECT_LT(narrowest, 1e-30f);
}

TEST(GenerationFields, RefuseWhatIsOutOfRange) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature":2.1})", "temperature"},
      {R"({"temperature":-0.1})", "temperature"},
      {R"({"temperature":"hot"})", "temperature"},
      {R"({"top_p":1.1})", "top_p"},
      {R"({"top_k":-2})", "top_k"},
      {R"({"top_k":1.5})", "top_k"},
      {R"({"top_k":4294967296})", "top_k"},
      {R"({"min_p":2})", "min_p"},
      {R"({"xtc_probability":-1})", "xtc_probability"},
      {R"({"xtc_threshold":0.6})", "xtc_threshold"},
      {R"({"repetition_penalty":-1})", "repetition_penalty"},
      {R"({"repeat_penalty":1e300})", "repeat_penalty"},
      {R"({"presence_penalty":2.5})", "presence_penalty"},
      {R"({"frequency_penalty":-2.5})", "frequency_penalty"},
      {R"({"repetition_context_size":-1})", "repetition_context_size"},
      {R"({"presence_context_size":-1})", "presence_context_size"},
      {R"({"frequency_context_size":0.5})", "frequency_context_size"},
      {R"({"seed":0.5})", "seed"},
      {R"({"seed":"1"})", "seed"},
      {R"({"logit_bias":[1]})", "logit_bias"},
      {R"({"logit_bias":{"x":1}})", "logit_bias"},
      {R"({"logit_bias":{"-1":1}})", "logit_bias"},
      {R"({"logit_bias":{"":1}})", "logit_bias"},
      {R"({"logit_bias":{"99999999999":1}})", "logit_bias"},
      {R"({"logit_bias":{"5":101}})", "logit_bias.5"},
      {R"({"logit_bias":{"5":"1"}})", "logit_bias.5"},
      {R"({"hlg":1})", "hlg"},
      {R"({"hlg":{"width":-1}})", "hlg.width"},
      {R"({"stop_token_ids":[-1]})", "stop_token_ids[0]"},
      {R"({"stop_token_ids":5})", "stop_token_ids"},
      {R"({"ignore_eos":1})", "ignore_eos"},
      {R"({"priority":"first"})", "priority"},
  };
  for (const auto& [body, param] : cases) {
    const ApiError error = error_of([&] { sampling_of(body); });
    EXPECT_EQ(error.param, param) << body;
    EXPECT_EQ(error.message.find(error.param), 0u) << error.message;
  }
}

GenerationTask model_of(const std::string& text) {
  const Json json = Json::parse(text);
  GenerationTask task;
  read_model(Fields(json), task);
  return task;
}

TEST(GenerationFields, JoinAdapters) {
  EXPECT_EQ(model_of(R"({"model":"m:a","adapter":"x"})").model, "m:a");
  EXPECT_EQ(model_of(R"({"adapter":"a,b"})").adapter, "a+b");
  EXPECT_EQ(model_of(R"({"adapter":"none"})").adapter, "none");
  EXPECT_EQ(model_of(R"({"adapters":["a","b"]})").adapter, "a+b");
  EXPECT_EQ(model_of(R"({"adapters":"a"})").adapter, "a");
  EXPECT_EQ(model_of(R"({"adapters":[]})").adapter, "");
  EXPECT_EQ(error_of([] { model_of(R"({"adapter":"a","adapters":["b"]})"); }).param, "adapters");
  EXPECT_EQ(error_of([] { model_of(R"({"adapters":["a",""]})"); }).param, "adapters");
  EXPECT_EQ(error_of([] { model_of(R"({"adapter":["a"]})"); }).param, "adapter");
  EXPECT_EQ(error_of([] { model_of(R"({"model":5})"); }).param, "model");
}

std::optional<bool> thinking_of(const std::string& text) {
  const Json json = Json::parse(text);
  const Fields fields(json);
  ChatTask task;
  task.thinking = read_effort(fields, "reasoning_effort");
  read_thinking(fields, task);
  return task.thinking;
}

TEST(GenerationFields, SwitchThinking) {
  EXPECT_EQ(thinking_of("{}"), std::nullopt);
  EXPECT_EQ(thinking_of(R"({"reasoning_effort":"none"})"), false);
  EXPECT_EQ(thinking_of(R"({"reasoning_effort":"minimal"})"), false);
  for (const char* effort : {"low", "medium", "high", "xhigh"}) {
    EXPECT_EQ(thinking_of(Json{{"reasoning_effort", effort}}.dump()), true) << effort;
  }
  EXPECT_EQ(thinking_of(R"({"enable_thinking":true})"), true);
  EXPECT_EQ(thinking_of(R"({"thinking":true})"), true);
  EXPECT_EQ(thinking_of(R"({"thinking":{"type":"disabled"}})"), false);
  EXPECT_EQ(thinking_of(R"({"chat_template_kwargs":{"enable_thinking":true}})"), true);
  // What is said outright wins over the effort.
  EXPECT_EQ(thinking_of(R"({"reasoning_effort":"high","enable_thinking":false})"), false);
  EXPECT_EQ(thinking_of(R"({"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}})"), true);
  EXPECT_EQ(error_of([] { thinking_of(R"({"reasoning_effort":"huge"})"); }).param, "reasoning_effort");
  EXPECT_EQ(error_of([] { thinking_of(R"({"thinking":{"type":"adaptive"}})"); }).param, "thinking.type");
  EXPECT_EQ(error_of([] { thinking_of(R"({"thinking":"yes"})"); }).param, "thinking");
  EXPECT_EQ(error_of([] { thinking_of(R"({"chat_template_kwargs":{"enable_thinking":1}})"); }).param,
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(error_of([] { thinking_of(R"({"thinking_budget":-1})"); }).param, "thinking_budget");
}

TEST(GenerationFields, ReadStops) {
  const auto stops = [](const std::string& text) {
    const Json json = Json::parse(text);
    GenerationTask task;
    read_stop(Fields(json), "stop", task, 4);
    return task.stop;
  };
  EXPECT_EQ(stops(R"({"stop":"a"})"), std::vector<std::string>{"a"});
  EXPECT_EQ(stops(R"({"stop":["a","","b"]})"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(stops(R"({"stop":""})").empty());
  EXPECT_EQ(error_of([&] { stops(R"({"stop":["a","b","c","d","e"]})"); }).param, "stop");
  EXPECT_EQ(error_of([&] { stops(R"({"stop":["a",null]})"); }).param, "stop[1]");
}

TEST(GenerationFields, CheckTools) {
  const auto tool = [](const Json& function) { return Json::array({{{"type", "function"}, {"function", function}}}); };
  EXPECT_NO_THROW(check_tools(nullptr));
  EXPECT_NO_THROW(check_tools(Json::array()));
  EXPECT_NO_THROW(check_tools(tool({{"name", "get_weather-2"}, {"parameters", Json::object()}, {"strict", true}})));
  const auto param = [](const Json& tools) { return error_of([&] { check_tools(tools); }).param; };
  EXPECT_EQ(param(Json::object()), "tools");
  EXPECT_EQ(param(Json::array({5})), "tools[0]");
  EXPECT_EQ(param(Json::array({{{"type", "web_search"}}})), "tools[0].type");
  EXPECT_EQ(param(Json::array({{{"type", "function"}}})), "tools[0].function");
  EXPECT_EQ(param(tool(Json::object())), "tools[0].function.name");
  EXPECT_EQ(param(tool({{"name", "a b"}})), "tools[0].function.name");
  EXPECT_EQ(param(tool({{"name", std::string(129, 'a')}})), "tools[0].function.name");
  EXPECT_EQ(param(tool({{"name", "a"}, {"parameters", 5}})), "tools[0].function.parameters");
  EXPECT_EQ(param(tool({{"name", "a"}, {"description", 5}})), "tools[0].function.description");
  EXPECT_EQ(param(tool({{"name", "a"}, {"strict", "yes"}})), "tools[0].function.strict");
  Json twice = tool({{"name", "a"}});
  twice.push_back(twice[0]);
  EXPECT_EQ(param(twice), "tools[1].function.name");
}

}  // namespace
}  // namespace carat::server

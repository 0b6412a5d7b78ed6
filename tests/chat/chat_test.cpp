#include "chat/chat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carat {
namespace {

const std::vector<std::pair<ChatFormat, std::string>> kFormats = {
    {ChatFormat::kGemma3, "gemma3"},
    {ChatFormat::kGemma4, "gemma4"},
    {ChatFormat::kGemma4Interleaved, "gemma4-interleaved"},
};

std::string read_file(const std::string& path) {
  std::ifstream file(std::string(CARAT_TEST_DATA) + "/chat/" + path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string gemma4(const Json& messages, const Json& tools = nullptr, const ChatOptions& options = {}) {
  return render_chat(ChatFormat::kGemma4, messages, tools, options);
}

std::string error_of(ChatFormat format, const Json& messages, const Json& tools = nullptr) {
  try {
    render_chat(format, messages, tools);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Chat, RendersEveryGoldenAsJinjaDoes) {
  const Json cases = Json::parse(read_file("goldens.json"));
  ASSERT_GT(cases.size(), 300u);
  size_t rendered = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json& each = cases[i];
    ChatOptions options;
    const Json& given = each["options"];
    options.add_generation_prompt = given.value("add_generation_prompt", true);
    if (given.contains("enable_thinking")) options.enable_thinking = given["enable_thinking"].get<bool>();
    if (given.contains("preserve_thinking")) options.preserve_thinking = given["preserve_thinking"].get<bool>();
    for (const auto& [format, name] : kFormats) {
      SCOPED_TRACE(name + ", case " + std::to_string(i) + ": " + each["messages"].dump());
      const Json& expected = each["expected"][name];
      if (expected.is_null()) {
        EXPECT_THROW(render_chat(format, each["messages"], each["tools"], options), Error);
      } else {
        EXPECT_EQ(render_chat(format, each["messages"], each["tools"], options), expected.get<std::string>());
        ++rendered;
      }
    }
    if (HasFailure() && i > 20) break;  // one page of differences is enough
  }
  EXPECT_GT(rendered, 800u);
}

TEST(Chat, RecognisesShippedTemplates) {
  EXPECT_EQ(detect_chat_format(read_file("templates/gemma4.jinja"), true), ChatFormat::kGemma4);
  EXPECT_EQ(detect_chat_format(read_file("templates/gemma4-interleaved.jinja"), true), ChatFormat::kGemma4Interleaved);
  EXPECT_EQ(detect_chat_format(read_file("templates/gemma3.jinja"), false), ChatFormat::kGemma3);
  EXPECT_EQ(detect_chat_format("", true), ChatFormat::kGemma4);
  EXPECT_EQ(detect_chat_format("", false), ChatFormat::kGemma3);
  EXPECT_EQ(detect_chat_format(read_file("templates/gemma3.jinja"), true), ChatFormat::kGemma4);
}

/// Conversations of the goldens that hold calls, with all arguments as JSON text or all as objects.
TEST(Chat, ArgumentsAsTextOrAsObjectRenderAlike) {
  const Json cases = Json::parse(read_file("goldens.json"));
  size_t compared = 0;
  for (const Json& each : cases) {
    if (each["expected"]["gemma4"].is_null()) continue;
    Json as_text = each["messages"];
    size_t calls = 0;
    for (Json& message : as_text) {
      if (!message.contains("tool_calls")) continue;
      for (Json& call : message["tool_calls"]) {
        Json& arguments = call["function"]["arguments"];
        if (arguments.is_object()) {
          arguments = arguments.dump();
          ++calls;
        }
      }
    }
    if (calls == 0) continue;
    ++compared;
    for (const auto& [format, name] : kFormats) {
      if (format == ChatFormat::kGemma3) continue;
      EXPECT_EQ(render_chat(format, as_text, each["tools"]), render_chat(format, each["messages"], each["tools"]));
    }
  }
  EXPECT_GT(compared, 50u);
}

TEST(Chat, ToolResultsStayInTheTurnOfTheirCall) {
  const Json messages = Json::parse(R"([
    {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
    {"role": "assistant", "content": null, "reasoning": "why", "tool_calls": [
      {"id": "1", "function": {"name": "f", "arguments": "{\"n\": null, \"x\": 1.0}"}},
      {"id": "2", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "2", "content": "second"},
    {"role": "tool", "tool_call_id": "1", "content": {"ok": true}}])");
  const std::string expected_calls =
      "<|turn>model\n<|channel>thought\nwhy\n<channel|><|tool_call>call:f{n:None,x:1.0}<tool_call|>"
      "<|tool_call>call:g{}<tool_call|><|tool_response>response:g{value:<|\"|>second<|\"|>}<tool_response|>"
      "<|tool_response>response:f{ok:true}<tool_response|>";
  EXPECT_EQ(gemma4(messages), "<bos><|turn>system\ns<turn|>\n<|turn>user\nu<turn|>\n" + expected_calls);
  const std::string interleaved = render_chat(ChatFormat::kGemma4Interleaved, messages);
  EXPECT_EQ(interleaved.find("<|turn>tool"), std::string::npos);
  EXPECT_NE(interleaved.find("<|tool_response>response:f{ok:true}<tool_response|>"), std::string::npos);
}

std::string declared(const std::string& parameters) {
  Json tool;
  tool["type"] = "function";
  tool["function"]["name"] = "f";
  tool["function"]["description"] = "d";
  tool["function"]["parameters"] = Json::parse(parameters);
  const std::string text = gemma4(Json::parse(R"([{"role": "user", "content": "u"}])"), Json::array({tool}));
  const std::string before = "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|>d<|\"|>";
  EXPECT_TRUE(text.starts_with(before)) << text;
  return text.substr(before.size(), text.find("<tool|>") - before.size());
}

TEST(Chat, SchemasAtWhichJinjaRaisesAreBroughtInLine) {
  EXPECT_EQ(declared(R"({"type": "object", "required": true})"), ",parameters:{required:[],type:<|\"|>OBJECT<|\"|>}}");
  EXPECT_EQ(declared(R"({"type": "object", "properties": ["a"]})"),
            ",parameters:{properties:{},type:<|\"|>OBJECT<|\"|>}}");
  EXPECT_EQ(
      declared(R"({"type": "object", "properties": {"p": {"type": "object", "properties": {}, "required": 1}}})"),
      ",parameters:{properties:{p:{properties:{},required:[],type:<|\"|>OBJECT<|\"|>}},type:<|\"|>OBJECT<|\"|>}}");
  EXPECT_EQ(
      declared(R"({"type": "object", "properties": {"p": {"type": "array", "items": {"type": 5, "required": 2}}}})"),
      ",parameters:{properties:{p:{items:{required:[],type:[<|\"|>5<|\"|>]},type:<|\"|>ARRAY<|\"|>}},"
      "type:<|\"|>OBJECT<|\"|>}}");
}

TEST(Chat, ErrorsNameWhatIsWrong) {
  const auto expect = [](ChatFormat format, const char* messages, const char* part, const char* tools = "null") {
    const std::string error = error_of(format, Json::parse(messages), Json::parse(tools));
    EXPECT_NE(error.find(part), std::string::npos) << messages << " gave: " << error;
  };
  const ChatFormat f = ChatFormat::kGemma4;
  expect(f, "{}", "expected an array");
  expect(f, "[]", "at least one message");
  expect(f, "[1]", "message 0");
  expect(f, R"([{"role": "user", "content": "x"}, {"content": "x"}])", "message 1");
  expect(f, R"([{"role": 3, "content": "x"}])", "role");
  expect(f, R"([{"role": "user", "content": 3}])", "message 0 (user): content is a JSON number");
  expect(f, R"([{"role": "user", "content": ["x"]}])", "part must be an object");
  expect(f, R"([{"role": "user", "content": [{"type": "text"}]}])", "string `text`");
  expect(f, R"([{"role": "user", "content": [{"type": "smell"}]}])", "'smell'");
  expect(f, R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}])", "function with a name");
  expect(f, R"([{"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": "{\"a\":"}}]}])",
         "tool call 'go': its arguments are a string that is not valid JSON");
  expect(f, R"([{"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": "1e999"}}]}])",
         "out of range");
  expect(f, R"([{"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": [1]}}]}])",
         "must be an object");
  expect(f, R"([{"role": "assistant", "reasoning": 7}])", "`reasoning` must be a string");
  expect(f, R"([{"role": "user", "content": "x"}])", "tools: found a JSON object", "{}");
  expect(f, R"([{"role": "user", "content": "x"}])", "function that has a name", R"([{"name": "flat"}])");
  expect(ChatFormat::kGemma3, R"([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}])", "alternation");
  expect(ChatFormat::kGemma3, R"([{"role": "user", "content": null}])", "without content");
}

TEST(Chat, DeepNestingIsRefusedNotFollowed) {
  for (const size_t depth : {300u, 200000u}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    const Json messages = Json::parse(R"([{"role": "tool", "content": )" + deep + "}]");
    EXPECT_NE(error_of(ChatFormat::kGemma4, messages).find("nested deeper"), std::string::npos);
    const Json user = Json::parse(R"([{"role": "user", "content": "x"}])");
    EXPECT_NE(error_of(ChatFormat::kGemma4, user, Json::parse(deep)).find("nested deeper"), std::string::npos);
    Json call = Json::parse(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])");
    call[0]["tool_calls"][0]["function"]["arguments"] = R"({"a":)" + deep + "}";
    EXPECT_NE(error_of(ChatFormat::kGemma4, call).find("nested deeper"), std::string::npos);
  }
  const std::string fair = std::string(200, '[') + std::string(200, ']');
  EXPECT_EQ(error_of(ChatFormat::kGemma4, Json::parse(R"([{"role": "tool", "content": )" + fair + "}]")), "");
}

}  // namespace
}  // namespace carat

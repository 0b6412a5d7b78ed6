// The convention for tools in Gemma 3's prompts: it renders, and what it shows the model the parser reads.
#include "chat/gemma3_tools.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "chat/json_calls.h"

namespace carat {
namespace {

Json tools() {
  return Json::parse(R"([{"type": "function", "function": {"name": "weather", "description": "Looks outside.",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
}

TEST(Gemma3Tools, InstructionsDeclareEveryTool) {
  const std::string text = gemma3_tool_instructions(tools());
  EXPECT_NE(text.find(R"({"name":"weather","description":"Looks outside.","parameters":{"type":"object")"), text.npos);
  EXPECT_EQ(gemma3_tool_instructions(nullptr), "");
  EXPECT_EQ(gemma3_tool_instructions(Json::array()), "");
  EXPECT_THROW(gemma3_tool_instructions(Json::parse(R"([{"type": "function"}])")), Error);
}

TEST(Gemma3Tools, AnAgentsConversationRenders) {
  const Json messages = Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo and Rome?"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}},
      {"id": "2", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
    {"role": "tool", "tool_call_id": "2", "content": "sunny"},
    {"role": "tool", "tool_call_id": "1", "content": "{\"snow\": true}"},
    {"role": "user", "content": "And?"}])");
  const std::string prompt = render_chat(ChatFormat::kGemma3, gemma3_messages(messages, tools()));
  const std::string expected =
      "<start_of_turn>model\n```json\n[{\"name\": \"weather\", \"arguments\": {\"city\":\"Oslo\"}},\n"
      "{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\"}}]\n```<end_of_turn>\n"
      "<start_of_turn>user\n```tool_output\n{\"name\": \"weather\", \"result\": \"sunny\"}\n```\n"
      "```tool_output\n{\"name\": \"weather\", \"result\": {\"snow\":true}}\n```\n\nAnd?<end_of_turn>\n"
      "<start_of_turn>model\n";
  EXPECT_NE(prompt.find("Be brief.\n\nYou can call functions."), prompt.npos);
  ASSERT_GE(prompt.size(), expected.size());
  EXPECT_EQ(prompt.substr(prompt.size() - expected.size()), expected);
}

TEST(Gemma3Tools, ResultsAloneAreATurn) {
  const Json messages = Json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]},
    {"role": "assistant", "content": "Looking.", "tool_calls": [
      {"id": "1", "function": {"name": "weather", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "fog"}]}])");
  const Json plain = gemma3_messages(messages, tools());
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_EQ(plain[0]["role"], "system");
  EXPECT_EQ(plain[2]["content"], "Looking.\n\n```json\n{\"name\": \"weather\", \"arguments\": {}}\n```");
  EXPECT_EQ(plain[3]["role"], "user");
  EXPECT_EQ(plain[3]["content"], "```tool_output\n{\"name\": \"weather\", \"result\": \"fog\"}\n```");
  EXPECT_NO_THROW(render_chat(ChatFormat::kGemma3, plain));
}

TEST(Gemma3Tools, WithoutToolsMessagesStay) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])");
  EXPECT_EQ(gemma3_messages(messages, nullptr), messages);
}

TEST(Gemma3Tools, TheParserReadsTheCallsThatTheModelIsShown) {
  const Json call =
      Json::parse(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "ok", "tool_calls": [
      {"function": {"name": "weather", "arguments": {"city": "``` \n\"é"}}}]}])");
  JsonCallParser parser(tools());
  std::vector<SpeechEvent> events;
  parser.push(gemma3_messages(call, tools())[2]["content"].get<std::string>(), events);
  parser.finish(events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "ok\n\n");
  EXPECT_EQ(events[1].text, "weather");
  EXPECT_EQ(Json::parse(events[1].arguments), call[1]["tool_calls"][0]["function"]["arguments"]);
}

}  // namespace
}  // namespace carat

#include "runtime/serve/messages/message_writer.h"

#include <gtest/gtest.h>

#include "runtime/serve/openai/fields.h"

// Answers as Anthropic's API has them.
namespace hayloft::runtime::serve::messages {
namespace {

using openai::Json;

openai::Request request_with_tool(bool early) {
  openai::Request request;
  request.api = openai::Api::messages;
  request.style = openai::Style::chat;
  request.generations.resize(1);
  request.notes.resize(1);
  request.form.tags = true;
  request.form.early = early;
  request.form.tools = {{"f"}};
  return request;
}

std::string whole(const openai::Request& request, const std::string& text, FinishReason reason) {
  MessageWriter writer(request);
  for (const char c : text) writer.generated(0, {{}, "", {{std::string(1, c), false}}});
  writer.finished(0, reason, "", {});
  return writer.whole();
}

TEST(MessageWriter, InputIsAnObjectWhetherItIsToldEarlyOrNot) {
  const std::string digits = "123456789012345678901234567890";
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": [)" + digits + R"(, "b"]}}</tool_call>)";
  for (const bool early : {false, true}) {
    const openai::Request request = request_with_tool(early);
    const std::string told = whole(request, call, FinishReason::stop);
    EXPECT_NE(told.find(R"("input":{"a":[)" + digits + R"(,"b"]})"), std::string::npos) << told;
    EXPECT_EQ(Json::parse(told)["stop_reason"], "tool_use");
  }
  // What is cut off has no members, as none is known to be whole.
  const Json cut = Json::parse(whole(request_with_tool(true), call.substr(0, 60), FinishReason::length));
  EXPECT_EQ(cut["content"][0]["input"], Json::object());
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
}

TEST(MessageWriter, AWaitIsToldByThePingThatTheApiHas) {
  const openai::Request request = request_with_tool(false);
  EXPECT_EQ(MessageWriter(request).waiting(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

TEST(MessageWriter, AnAnswerThatFillsTheRoomSaysSo) {
  openai::Request request = request_with_tool(false);
  for (const bool fills : {false, true}) {
    request.generations[0].fills_room = fills;
    const Json told = Json::parse(whole(request, "hay", FinishReason::length));
    EXPECT_EQ(told["stop_reason"], fills ? "model_context_window_exceeded" : "max_tokens");
    EXPECT_EQ(Json::parse(whole(request, "hay", FinishReason::stop))["stop_reason"], "end_turn");
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::messages

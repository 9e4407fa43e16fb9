#include "runtime/serve/messages/context_edits.h"

#include <gtest/gtest.h>

// Edits of a conversation that Anthropic's API makes, and which are refused here where they would change something.
namespace hayloft::runtime::serve::messages {
namespace {

using openai::Json;

// Four turns that think and call a tool, "a" twice and "b" twice.
Json conversation() {
  Json messages = Json::array({{{"role", "user"}, {"content", "hay"}}});
  for (const char* tool : {"a", "a", "b", "b"}) {
    messages.push_back({{"role", "assistant"},
                        {"content",
                         {{{"type", "thinking"}, {"thinking", "t"}},
                          {{"type", "tool_use"}, {"id", "1"}, {"name", tool}, {"input", Json::object()}}}}});
    messages.push_back({{"role", "user"}, {"content", {{{"type", "tool_result"}, {"tool_use_id", "1"}}}}});
  }
  return messages;
}

// The field of a refusal; empty: there was none.
std::string refused(const std::string& edit, std::size_t tokens = 1000) {
  const Json management = Json::parse(R"({"edits": [)" + edit + "]}");
  try {
    check_context_edits(openai::Value("context_management", management), conversation(), tokens);
    return {};
  } catch (const openai::BadRequest& error) {
    EXPECT_EQ(error.status(), 400);
    return error.field();
  }
}

TEST(ContextEdits, WhatHasNothingToClearIsTaken) {
  for (const char* edit :
       {R"({"type": "clear_thinking_20251015", "keep": "all"})",
        R"({"type": "clear_thinking_20251015", "keep": {"type": "all"}})",
        R"({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 4}})",
        R"({"type": "clear_tool_uses_20250919"})",
        R"({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 5},
            "clear_at_least": {"type": "input_tokens", "value": 5}, "clear_tool_inputs": true})",
        R"({"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 5},
            "keep": {"type": "tool_uses", "value": 2}, "exclude_tools": ["a"]})",
        R"({"type": "compact_20260112", "instructions": "short", "pause_after_compaction": true})"}) {
    EXPECT_EQ(refused(edit), "") << edit;
  }
  check_context_edits(openai::Value("context_management", Json::object()), conversation(), 5);
}

TEST(ContextEdits, WhatWouldChangeTheConversationIsRefused) {
  for (const char* edit :
       {R"({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 4}})",
        R"({"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1000}})",
        R"({"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 5},
            "keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["a"]})",
        R"({"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1000}})"}) {
    EXPECT_EQ(refused(edit), "context_management.edits[0]") << edit;
  }
  EXPECT_EQ(refused(R"({"type": "clear_tool_uses_20250919"})", 100'000), "context_management.edits[0]");
  EXPECT_EQ(refused(R"({"type": "compact_20260112"})", 150'000), "context_management.edits[0]");
}

TEST(ContextEdits, OldThinkingIsTakenOut) {
  const auto thinking = [](const std::string& edit) {
    Json chat = Json::array();
    for (int i = 0; i < 4; ++i) {
      chat.push_back({{"role", "user"}, {"content", "hay"}});
      chat.push_back({{"role", "assistant"}, {"content", "said"}, {"reasoning_content", "t"}});
    }
    clear_thinking(openai::Value("context_management", Json::parse(R"({"edits": [)" + edit + "]}")), chat);
    std::string left;
    for (const Json& each : chat) left += each.contains("reasoning_content") ? 't' : '-';
    return left;
  };
  EXPECT_EQ(thinking(R"({"type": "clear_thinking_20251015"})"), "-------t");
  EXPECT_EQ(thinking(R"({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 3}})"),
            "---t-t-t");
  EXPECT_EQ(thinking(R"({"type": "clear_thinking_20251015", "keep": "all"})"), "-t-t-t-t");
  EXPECT_EQ(thinking(R"({"type": "compact_20260112"})"), "-t-t-t-t");
}

TEST(ContextEdits, FieldsHaveTheirTypes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"(5)", "context_management.edits[0]"},
      {R"({"keep": "all"})", "context_management.edits[0]"},
      {R"({"type": "other"})", "context_management.edits[0].type"},
      {R"({"type": "clear_thinking_20251015", "keep": "some"})", "context_management.edits[0].keep"},
      {R"({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}})",
       "context_management.edits[0].keep.value"},
      {R"({"type": "clear_tool_uses_20250919", "keep": {"type": "turns", "value": 1}})",
       "context_management.edits[0].keep.type"},
      {R"({"type": "clear_tool_uses_20250919", "exclude_tools": [5]})", "context_management.edits[0].exclude_tools"},
      {R"({"type": "compact_20260112", "keep": "all"})", "context_management.edits[0].keep"}};
  for (const auto& [edit, field] : cases) EXPECT_EQ(refused(edit), field) << edit;
  for (const char* text : {R"({"edits": 5})", R"({"edit": []})", "[]"}) {
    const Json management = Json::parse(text);
    EXPECT_THROW(check_context_edits(openai::Value("context_management", management), conversation(), 5),
                 openai::BadRequest)
        << text;
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::messages

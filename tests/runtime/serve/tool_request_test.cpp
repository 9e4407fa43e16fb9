#include "runtime/serve/messages/message_request.h"
#include "runtime/serve/responses/response_request.h"
#include "tests/runtime/serve/request_fixture.h"

// Tools that are offered: what a call could not be told from is refused by the name that was sent.
namespace hayloft::runtime::serve::openai {
namespace {

using messages::message_request;
using responses::response_request;

class ToolRequest : public OpenAiRequestTest {
 protected:
  ToolRequest() {
    template_ = ChatTemplate::from_source(
        "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_call_id }}\n"
        "{% endfor %}",
        "test");
  }

  static std::string chat(const std::string& function, const std::string& more = "") {
    return R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": )" +
           function + "}]" + more + "}";
  }
  static std::string named(const std::string& name) { return R"({"name": )" + Json(name).dump() + "}"; }
};

// Otherwise the call of a tool that is required came back as text, and arguments began in the name.
TEST_F(ToolRequest, NamesAreNoneThatACallCouldNotBeToldFrom) {
  for (const char* name : {"", "a b", "\t", "a\"b", "a\\b", "</tool_call>", "f[0]", "{f}"}) {
    const std::string quoted = Json(name).dump();
    EXPECT_EQ(refused_field(chat_request, chat(named(name))), "tools[0].function.name") << name;
    EXPECT_EQ(refused_field(message_request, R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
        "tools": [{"input_schema": {}, "name": )" +
                                                 quoted + "}]}"),
              "tools[0].name")
        << name;
    EXPECT_EQ(
        refused_field(response_request, R"({"input": "a", "tools": [{"type": "function", "name": )" + quoted + "}]}"),
        "tools[0].name")
        << name;
  }
  for (const char* name : {"f", "get_weather", "mcp.server/tool:v1-2", "wetter_für_é"}) {
    EXPECT_EQ(status_of(chat_request, chat(named(name))), 200) << name;
  }
}

// A call could be of either. The same tool twice is one.
TEST_F(ToolRequest, NoTwoThatDifferHaveOneName) {
  const std::string two = R"({"name": "f"}}, {"type": "function", "function": {"name": ")";
  EXPECT_EQ(refused_field(chat_request, chat(two + "f\", \"description\": \"b\"}")), "tools");
  EXPECT_EQ(status_of(chat_request, chat(two + "f\"}")), 200);
  EXPECT_EQ(status_of(chat_request, chat(two + "g\"}")), 200);
  EXPECT_EQ(refused_field(message_request, R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
      "tools": [{"input_schema": {}, "name": "f"}, {"input_schema": {"type": "object"}, "name": "f"}]})"),
            "tools");
  EXPECT_EQ(refused_field(response_request, R"({"input": "a", "tools": [{"type": "function", "name": "f"},
      {"type": "function", "name": "f", "description": "b"}]})"),
            "tools");
}

TEST_F(ToolRequest, AChoiceNamesATool) {
  const std::string choice = R"(, "tool_choice": {"type": "function", "function": {"name": ""}})";
  EXPECT_EQ(refused_field(chat_request, chat(named("f"), choice)), "tool_choice");
  EXPECT_EQ(refused_field(response_request, R"({"input": "a", "tools": [{"type": "function", "name": "f"}],
      "tool_choice": {"type": "function", "name": ""}})"),
            "tool_choice");
}

// A call whose arguments are no object is none, whatever its schema says.
TEST_F(ToolRequest, StrictArgumentsAreObjects) {
  const auto strict = [](const std::string& schema) {
    return chat(R"({"name": "f", "strict": true, "parameters": )" + schema + "}");
  };
  for (const char* schema :
       {R"({"type": "string"})", R"({"type": ["object", "null"]})", R"({"enum": [{}, 1]})", R"({"const": "a"})",
        R"({"anyOf": [{"type": "object"}, {"type": "null"}]})", R"({"items": {}})", R"({"title": "t"})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}})", R"({"$ref": "#"})"}) {
    EXPECT_EQ(refused_field(chat_request, strict(schema)), "tools") << schema;
  }
  for (const char* schema : {"{}", R"({"type": "object"})", R"({"properties": {"a": {}}})", R"({"enum": [{"a": 1}]})",
                             R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}})",
                             R"({"anyOf": [{"type": "object"}, {"const": {"b": 1}}]})"}) {
    EXPECT_EQ(status_of(chat_request, strict(schema)), 200) << schema;
  }
}

TEST_F(ToolRequest, NullCountsAsAbsent) {
  for (const char* function : {R"({"name": "f", "strict": null})", R"({"name": "f", "parameters": null})",
                               R"({"name": "f", "parameters": null, "strict": true, "description": null})"}) {
    EXPECT_EQ(status_of(chat_request, chat(function)), 200) << function;
  }
  EXPECT_EQ(refused_field(chat_request, chat(R"({"name": null})")), "tools[0].function");
  const auto message = [](const std::string& text) { return R"({"messages": [)" + text + "]}"; };
  EXPECT_EQ(refused_field(chat_request, message(R"({"role": "user", "content": [{"type": "text", "text": null}]})")),
            "messages[0].content[0]");
  EXPECT_EQ(refused_field(chat_request, message(R"({"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
      "function": {"name": null, "arguments": "{}"}}]})")),
            "messages[0].tool_calls[0].function");
  EXPECT_EQ(refused_field(response_request,
                          R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": null}]}]})"),
            "input[0].content[0]");
}

// As the APIs refuse them: the model would go on as if something else had been called, or nothing.
TEST_F(ToolRequest, CallsAndResultsBelongTogether) {
  template_ = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}{{ c.id }}{% endfor %}{{ "
      "m.tool_call_id }}\n{% endfor %}",
      "test");
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string call = R"({"role": "assistant", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
      {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})";
  const auto result = [](const std::string& id) {
    return R"({"role": "tool", "content": "r", "tool_call_id": ")" + id + "\"}";
  };
  const auto refused = [&](const std::string& messages) {
    return refused_field(chat_request, R"({"messages": [)" + messages + "]}");
  };
  const std::string both = result("1") + ", " + result("2");
  EXPECT_EQ(refused(user + ", " + call + ", " + both), "");
  EXPECT_EQ(refused(user + ", " + call + ", " + both + ", " + user + ", " + call + ", " + both), "") << "the ids again";
  EXPECT_EQ(refused(user + ", " + call + ", " + result("3")), "messages[2].tool_call_id");
  EXPECT_EQ(refused(user + ", " + result("1")), "messages[1].tool_call_id");
  EXPECT_EQ(refused(user + ", " + call + ", " + both + ", " + user + ", " + result("1")), "messages[5].tool_call_id");
  EXPECT_EQ(refused(user + ", " + call + ", " + result("1")), "messages[1].tool_calls[1].id");
  EXPECT_EQ(refused(user + ", " + call + ", " + result("2") + ", " + user), "messages[1].tool_calls[0].id");
  EXPECT_EQ(refused(user + R"(, {"role": "tool", "content": "r"})"), "") << "nothing says whose it is";

  const std::string use = R"({"role": "assistant", "content": [
      {"type": "tool_use", "id": "1", "name": "f", "input": {}}, {"type": "tool_use", "id": "2", "name": "f", "input": {}}]})";
  const auto said = [](const std::string& blocks) { return R"({"role": "user", "content": [)" + blocks + "]}"; };
  const auto block = [](const std::string& id) { return R"({"type": "tool_result", "tool_use_id": ")" + id + "\"}"; };
  const auto refused_message = [&](const std::string& messages) {
    return refused_field(message_request, R"({"max_tokens": 1, "messages": [)" + messages + "]}");
  };
  EXPECT_EQ(refused_message(user + ", " + use + ", " + said(block("1") + ", " + block("2"))), "");
  EXPECT_EQ(refused_message(user + ", " + use + ", " + said(block("1")) + ", " + said(block("2"))), "") << "one turn";
  EXPECT_EQ(refused_message(user + ", " + use + ", " + said(block("2"))), "messages[1].content[0].id");
  EXPECT_EQ(refused_message(user + ", " + use + ", " + user), "messages[1].content[0].id");
  EXPECT_EQ(refused_message(user + ", " + use + ", " + said(block("1")) + ", " +
                            R"({"role": "assistant", "content": "b"}, )" + said(block("2"))),
            "messages[1].content[1].id");
  EXPECT_EQ(refused_message(user + ", " + use + ", " + said(block("1") + ", " + block("2")) + ", " +
                            R"({"role": "assistant", "content": "b"}, )" + said(block("2"))),
            "messages[4].content[0].tool_use_id");

  const auto called = [](const std::string& type, const std::string& rest) {
    return R"({"type": ")" + type + R"(", "call_id": "1")" + rest + "}";
  };
  const std::string item = called("function_call", R"(, "name": "f", "arguments": "{}")");
  const std::string output = called("function_call_output", R"(, "output": "r")");
  const auto refused_item = [&](const std::string& items) {
    return refused_field(response_request, R"({"input": [)" + items + "]}");
  };
  EXPECT_EQ(refused_item(user + ", " + item + ", " + output), "");
  EXPECT_EQ(refused_item(user + ", " + item + ", " + output + ", " + user + ", " + output), "input[4].call_id");
}

TEST_F(ToolRequest, FieldsOfAMessageAreTexts) {
  for (const char* value : {"5", "true", "{}", "[\"a\"]"}) {
    for (const std::string name : {"name", "tool_call_id", "reasoning_content"}) {
      const std::string body = R"({"messages": [{"role": "user", "content": "a", ")" + name + "\": " + value + "}]}";
      EXPECT_EQ(refused_field(chat_request, body), "messages[0]." + name) << value;
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai

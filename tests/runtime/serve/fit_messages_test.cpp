#include "runtime/serve/openai/fit_messages.h"

#include "runtime/serve/messages/message_request.h"
#include "runtime/serve/responses/response_request.h"
#include "tests/runtime/serve/request_fixture.h"

// Conversations that a template refuses as they are sent, or writes in part.
namespace hayloft::runtime::serve::openai {
namespace {

// Writes as gpt-oss' template does: a call of a message, tools by their descriptions, reasoning or a text beside a
// call, and neither once there is an answer behind it.
const std::string kOneCall =
    "{% for t in tools or [] %}{{ '// ' + t.function.description + '\n' + t.function.name + '\n' }}{% endfor %}"
    "{% set last = namespace(name='') %}{% for m in messages %}"
    "{% if m.role == 'assistant' and 'tool_calls' in m %}{% set later = namespace(answer=false) %}"
    "{% for n in messages[loop.index:] %}{% if n.role == 'assistant' and 'tool_calls' not in n %}"
    "{% set later.answer = true %}{% endif %}{% endfor %}"
    "{% if m.content and m.thinking %}{{ raise_exception('content or thinking, not both') }}{% endif %}"
    "{% if not later.answer and (m.content or m.thinking) %}analysis: {{ m.content or m.thinking }}\n{% endif %}"
    "call {{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson }}\n"
    "{% set last.name = m.tool_calls[0].function.name %}"
    "{% elif m.role == 'tool' %}{{ last.name }} gives {{ m.content }}\n"
    "{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}";

class FitMessages : public OpenAiRequestTest {
 protected:
  FitMessages() { template_ = ChatTemplate::from_source(kOneCall, "test"); }

  static Json call(const std::string& name, const std::string& id) {
    return {
        {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{\"of\": \"" + id + "\"}"}}}};
  }
  static Json result(const std::string& id) {
    return {{"role", "tool"}, {"tool_call_id", id}, {"content", "hay of " + id}};
  }
  static Json said(const std::string& role, const std::string& text) { return {{"role", role}, {"content", text}}; }

  // The prompt as the template has written it.
  std::string written(const Json& messages, const Json& tools = nullptr) {
    Json body{{"messages", messages}};
    if (!tools.is_null()) body["tools"] = tools;
    request_ = chat_request(body.dump(), served_);
    return tokenizer_.decode(request_.generations[0].tokens);
  }
  bool noted(const std::string& words) const {
    return std::ranges::any_of(request_.notes.at(0),
                               [&](const std::string& note) { return note.find(words) != note.npos; });
  }

  Request request_;
};

TEST_F(FitMessages, SeveralCallsOfAMessageAreOneEachWhereTheTemplateWritesOne) {
  Json calling = said("assistant", "I look.");
  calling["tool_calls"] = {call("look", "1"), call("find", "2"), call("look", "3")};
  const std::string expected =
      "user: a\nanalysis: I look.\ncall look{\"of\": \"1\"}\nlook gives hay of 1\ncall find{\"of\": \"2\"}\n"
      "find gives hay of 2\ncall look{\"of\": \"3\"}\nlook gives hay of 3\n";
  EXPECT_EQ(written({said("user", "a"), calling, result("1"), result("2"), result("3")}), expected);
  EXPECT_EQ(written({said("user", "a"), calling, result("3"), result("1"), result("2")}), expected);
  EXPECT_TRUE(request_.notes[0].empty());
  // Without ids results stand in the order of the calls.
  Json bare = calling;
  std::vector<Json> results = {result("1"), result("2"), result("3")};
  for (Json& each : bare["tool_calls"]) each.erase("id");
  for (Json& each : results) each.erase("tool_call_id");
  EXPECT_EQ(written({said("user", "a"), bare, results[0], results[1], results[2]}), expected);

  // A template that writes all of them has them as they were sent, and one that refuses several has one in each.
  const std::string all =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor "
      "%}"
      ";{% endfor %}";
  template_ = ChatTemplate::from_source(all, "test");
  const Json messages{said("user", "a"), calling, result("2"), result("1"), result("3")};
  EXPECT_EQ(written(messages),
            "user: a;assistant: I look.<look><find><look>;tool: hay of 2;tool: hay of 1;tool: hay of 3;");
  template_ = ChatTemplate::from_source(
      "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
      "{% endif %}{% endfor %}" +
          all,
      "test");
  EXPECT_EQ(written(messages),
            "user: a;assistant: I look.<look>;tool: hay of 1;assistant: <find>;tool: hay of 2;assistant: <look>;"
            "tool: hay of 3;");
}

TEST_F(FitMessages, CallsThatWouldBeLostAreRefused) {
  template_ = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls and loop.index < 3 %}"
      "{{ m.tool_calls[0].function.name }}{% endif %};{% endfor %}",
      "test");
  Json calling = said("assistant", "");
  calling["tool_calls"] = {call("look", "1")};
  EXPECT_EQ(written({said("user", "a"), calling, result("1")}), "user: a;assistant: look;tool: hay of 1;");
  calling["tool_calls"].push_back(call("find", "2"));
  const Json body{{"messages", {said("user", "a"), calling, result("1"), result("2")}}};
  EXPECT_EQ(refused_field(chat_request, body.dump()), "messages");
}

TEST_F(FitMessages, WhatStandsBesideReasoningAndCallsJoinsTheReasoning) {
  Json calling = said("assistant", "I look.");
  calling["reasoning_content"] = "Where is it?";
  calling["tool_calls"] = {call("look", "1")};
  const std::string expected =
      "user: a\nanalysis: Where is it?\nI look.\ncall look{\"of\": \"1\"}\nlook gives hay of 1\n";
  EXPECT_EQ(written({said("user", "a"), calling, result("1")}), expected);
  EXPECT_TRUE(request_.notes[0].empty());
  calling["content"] = Json::array({{{"type", "text"}, {"text", "I look."}}});
  EXPECT_EQ(written({said("user", "a"), calling, result("1")}), expected);

  // The template leaves it out of what lies behind an answer, which is said.
  EXPECT_EQ(written({said("user", "a"), calling, result("1"), said("assistant", "Here."), said("user", "b")}),
            "user: a\ncall look{\"of\": \"1\"}\nlook gives hay of 1\nassistant: Here.\nuser: b\n");
  EXPECT_TRUE(noted("has said beside"));

  // So do the other APIs.
  const Json block{{"type", "tool_use"}, {"id", "1"}, {"name", "look"}, {"input", {{"of", "1"}}}};
  const Json message{
      {"max_tokens", 5},
      {"messages",
       {said("user", "a"),
        {{"role", "assistant"},
         {"content",
          {{{"type", "thinking"}, {"thinking", "Where is it?"}}, {{"type", "text"}, {"text", "I look."}}, block}}},
        {{"role", "user"},
         {"content", Json::array({{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", "hay of 1"}}})}}}}};
  request_ = messages::message_request(message.dump(), served_);
  EXPECT_EQ(tokenizer_.decode(request_.generations[0].tokens), expected);
  const Json response{
      {"input",
       {said("user", "a"),
        {{"type", "reasoning"}, {"content", Json::array({{{"type", "reasoning_text"}, {"text", "Where is it?"}}})}},
        said("assistant", "I look."),
        {{"type", "function_call"}, {"call_id", "1"}, {"name", "look"}, {"arguments", R"({"of": "1"})"}},
        {{"type", "function_call_output"}, {"call_id", "1"}, {"output", "hay of 1"}}}}};
  request_ = responses::response_request(response.dump(), served_);
  EXPECT_EQ(tokenizer_.decode(request_.generations[0].tokens), expected);
}

TEST_F(FitMessages, AToolNeedsNoDescription) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "look"}, {"description", nullptr}}}},
                      {{"type", "function"}, {"function", {{"name", "find"}}}},
                      {{"type", "function"}, {"function", {{"name", "seek"}, {"description", "Seeks."}}}}};
  EXPECT_EQ(written(Json::array({said("user", "a")}), tools), "// \nlook\n// \nfind\n// Seeks.\nseek\nuser: a\n");
  // A template that needs none gets none.
  template_ = ChatTemplate::from_source("{{ tools | tojson }}", "test");
  const Json bare = {{{"type", "function"}, {"function", {{"name", "find"}}}}};
  EXPECT_EQ(written(Json::array({said("user", "a")}), bare), R"([{"type": "function", "function": {"name": "find"}}])");
}

TEST_F(FitMessages, WhatATemplateRefusesAllTheSameIsRefusedByItsFirstWord) {
  template_ =
      ChatTemplate::from_source("{{ raise_exception('no tools, ' ~ messages | length ~ ' messages') }}", "test");
  Json calling = said("assistant", "I look.");
  calling["thinking"] = "Where?";
  calling["tool_calls"] = {call("look", "1"), call("find", "2")};
  try {
    written({said("user", "a"), calling, result("1"), result("2")},
            {{{"type", "function"}, {"function", {{"name", "find"}}}}});
    ADD_FAILURE() << "taken";
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_NE(std::string(error.what()).find("no tools, 4 messages"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai

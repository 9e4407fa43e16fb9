#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/chat/load_chat_template.h"
#include "tests/support/gguf_image.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;

class ChatTemplateTest : public ::testing::Test {
 protected:
  void write_config(const json& config) const { folder_.write("tokenizer_config.json", config.dump()); }
  ChatTemplate of_model() const { return load_chat_template(folder_.path()).value(); }

  test::TemporaryFolder folder_;
};

const std::vector<ChatMessage> turns = {{"system", "Be brief."}, {"user", "Wo?"}, {"assistant", "Da."}};

TEST_F(ChatTemplateTest, IsReadFromTheTokenizersConfiguration) {
  EXPECT_FALSE(load_chat_template(folder_.path()));
  write_config(json::object());
  EXPECT_FALSE(load_chat_template(folder_.path()));
  write_config({{"bos_token", "<s>"},
                {"eos_token", {{"__type", "AddedToken"}, {"content", "</s>"}}},
                {"image_token", "<image>"},
                {"chat_template",
                 "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{{ eos_token }}\n{% endfor %}"
                 "{{ image_token }}{% if add_generation_prompt %}assistant:{% endif %}"}});
  EXPECT_EQ(of_model().render(turns), "<s>system: Be brief.</s>\nuser: Wo?</s>\nassistant: Da.</s>\n<image>assistant:");
  ChatOptions ended;
  ended.add_generation_prompt = false;
  EXPECT_EQ(of_model().render(turns, ended), "<s>system: Be brief.</s>\nuser: Wo?</s>\nassistant: Da.</s>\n<image>");
  EXPECT_EQ(of_model().text("Wo?"), "<s>user: Wo?</s>\n<image>assistant:");
}

TEST_F(ChatTemplateTest, AFileOfItsOwnComesFirst) {
  write_config({{"bos_token", "<s>"}, {"chat_template", "older"}});
  folder_.write("chat_template.jinja", "{{ bos_token }}newer\n");
  EXPECT_EQ(of_model().text("x"), "<s>newer");
}

TEST_F(ChatTemplateTest, IsChosenByNameWhereThereAreSeveral) {
  const json both = {{{"name", "default"}, {"template", "plain"}},
                     {{"name", "tool_use"}, {"template", "{{ tools[0].name }}"}}};
  write_config({{"chat_template", both}});
  EXPECT_EQ(of_model().text("x"), "plain");
  ChatOptions with_tools;
  with_tools.variables = R"({"tools": [{"name": "find"}]})";
  EXPECT_EQ(of_model().render(turns, with_tools), "find");

  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  folder_.write("additional_chat_templates/tool_use.jinja", "files before the configuration");
  EXPECT_EQ(of_model().render(turns, with_tools), "files before the configuration");
  EXPECT_TRUE(refuses([&] { of_model().text("x"); }, {"none of them 'default'"}));
}

TEST_F(ChatTemplateTest, TakesMessagesAndVariablesAsJson) {
  const auto chat = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.content }}{{ m.tool_calls | default([]) | length }}{{ m.thinking }}|{% endfor %}"
      "{{ enable_thinking }}{{ documents is none }}{{ tools is none }}",
      "t");
  ChatOptions options;
  options.variables = R"({"enable_thinking": false})";
  EXPECT_EQ(
      chat.render_json(R"([{"role": "assistant", "content": null, "tool_calls": [{}], "reasoning": "why"}])", options),
      "1why|FalseTrueTrue");
}

TEST_F(ChatTemplateTest, AnObjectOfTemplatesIsSeveralByName) {
  write_config({{"chat_template", {{"default", "plain"}, {"tool_use", "with {{ tools | length }}"}}}});
  ChatOptions with_tools;
  with_tools.variables = R"({"tools": [{}]})";
  EXPECT_EQ(of_model().text("x"), "plain");
  EXPECT_EQ(of_model().render(turns, with_tools), "with 1");
}

// The keys that gguf's writer has for several templates.
TEST_F(ChatTemplateTest, ReadsTheNamedTemplatesOfAGguf) {
  test::GgufImage image;
  image.set("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "</s>"});
  image.set("tokenizer.ggml.bos_token_id", std::uint32_t{0});
  image.set("tokenizer.chat_template", "{{ bos_token }}plain");
  image.set("tokenizer.chat_template.tool_use", "{{ bos_token }}{{ tools[0].name }}");
  image.set("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
  folder_.write("model.gguf", image.bytes());
  const ChatTemplate chat = load_chat_template(folder_ / "model.gguf").value();
  EXPECT_EQ(chat.text("x"), "<s>plain");
  ChatOptions with_tools;
  with_tools.variables = R"({"tools": [{"name": "find"}]})";
  EXPECT_EQ(chat.render(turns, with_tools), "<s>find");
  EXPECT_TRUE(chat.takes_tools());
}

// Expected are the forms that transformers' server and llama.cpp hand to such templates.
TEST_F(ChatTemplateTest, GivesArgumentsInTheFormThatATemplateWants) {
  const auto written = [](const std::string& how, const std::string& arguments) {
    const json messages = {{{"role", "user"}, {"content", "?"}},
                           {{"role", "assistant"},
                            {"content", nullptr},
                            {"tool_calls", {{{"function", {{"name", "find"}, {"arguments", arguments}}}}}}}};
    const auto chat = ChatTemplate::from_source(
        "{% for m in messages %}{% for c in m.tool_calls %}" + how + "{% endfor %}{% endfor %}", "t");
    return chat.render_json(messages.dump());
  };
  const std::string sent = R"({"z":1, "a":{"y":2,"b":null}})";
  const std::string as_json = R"({"z": 1, "a": {"y": 2, "b": null}})";
  EXPECT_EQ(written("{{ c.function.arguments | tojson }}", sent), as_json);
  EXPECT_EQ(written("{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }} {% endfor %}", sent),
            R"(z=1 a={"y": 2, "b": null} )");
  EXPECT_EQ(written("{{ '(' + c.function.arguments + ')' }}", sent), "(" + sent + ")");
  EXPECT_EQ(written("{{ c.function.arguments }}", sent), sent);  // not as Python prints an object
  EXPECT_EQ(written("{{ c.function.arguments if c.function.arguments is string }}", sent), sent);
  EXPECT_EQ(
      written("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}", sent),
      as_json);
  EXPECT_EQ(written("{{ c.function.arguments | tojson }}", ""), "{}");
  EXPECT_EQ(written("{{ c.function.arguments | tojson }}", "{\"z\":"), R"("{\"z\":")");  // no JSON: as it is
  EXPECT_EQ(written("{{ c.function.arguments | tojson }}", R"({"n": 123456789012345678901})"),
            R"({"n": 123456789012345678901})");
}

TEST_F(ChatTemplateTest, GivesPartsInTheFormThatATemplateWants) {
  const auto written = [](const std::string& how) {
    return ChatTemplate::from_source("{% for m in messages %}" + how + "{% endfor %}", "t")
        .render_json(
            R"([{"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]}])");
  };
  EXPECT_EQ(written("{% for p in m.content %}<{{ p.text }}>{% endfor %}"), "<One. ><Two.>");
  EXPECT_EQ(written("{{ m.content }}"), "One. Two.");
  EXPECT_EQ(written("{{ m.content.strip() }}"), "One. Two.");
  EXPECT_EQ(written("{% if m.content is string %}{{ m.content }}{% endif %}"), "One. Two.");
}

TEST_F(ChatTemplateTest, KnowsWhetherToolsReachThePrompt) {
  const auto takes = [](const char* source) { return ChatTemplate::from_source(source, "t").takes_tools(); };
  EXPECT_TRUE(takes("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"));
  EXPECT_TRUE(takes("{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}"));
  EXPECT_FALSE(takes("{% for m in messages %}{{ m.content }}{% endfor %}"));
  EXPECT_FALSE(takes("{% for m in messages %}{{ m.content }}{{ m.tools }}{% endfor %}"));
  EXPECT_FALSE(takes("{% set has = tools is not none %}{{ messages[-1].content }}"));
  EXPECT_FALSE(ChatTemplate().takes_tools());
}

TEST_F(ChatTemplateTest, NamesWhatItCannotRead) {
  write_config({{"chat_template", "a\n{% if %}"}});
  EXPECT_TRUE(refuses([&] { of_model(); }, {"tokenizer_config.json: chat_template: line 2"}));
  write_config({{"chat_template", 7}});
  EXPECT_TRUE(refuses([&] { of_model(); }, {"tokenizer_config.json", "chat_template"}));
  write_config({{"chat_template", {{{"name", "default"}}}}});
  EXPECT_TRUE(refuses([&] { of_model(); }, {"tokenizer_config.json", "template"}));
  folder_.write("chat_template.jinja", "{{ raise_exception('only users') }}");
  EXPECT_TRUE(refuses([&] { of_model().text("x"); }, {"chat_template.jinja: line 1", "only users"}));

  const ChatTemplate plain;
  EXPECT_EQ(plain.text("as it is"), "as it is");
  EXPECT_TRUE(refuses([&] { plain.render(turns); }, {"without a chat template"}));
  EXPECT_TRUE(refuses([&] { plain.render_json("{"); }, {"messages", "not valid JSON at byte"}));
  EXPECT_TRUE(refuses([&] { plain.render_json(std::string(10'000, '[')); }, {"deep"}));
  ChatOptions odd;
  odd.variables = "[]";
  EXPECT_TRUE(refuses([&] { of_model().render(turns, odd); }, {"no object"}));
}

TEST_F(ChatTemplateTest, KnowsAFewByName) {
  EXPECT_EQ(ChatTemplate::named("none").text("why"), "why");
  EXPECT_EQ(ChatTemplate::named("llama-2").text("why"), "[INST] why [/INST]");
  EXPECT_EQ(ChatTemplate::named("llama-3").text("why"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nwhy<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(ChatTemplate::named("chatml").text("why"), "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ChatTemplate::named("chatml").render(turns),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWo?<|im_end|>\n"
            "<|im_start|>assistant\nDa.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ChatTemplate::named("{{ Q }}: {task}\\nA:").text("why"), "{{ Q }}: why\nA:");
  EXPECT_EQ(ChatTemplate::named("{task} or {task}? ").text("why"), "why or why? ");
  EXPECT_TRUE(refuses([] { ChatTemplate::named("llama-9"); }, {"--chat-template llama-9", "{task}"}));
}

TEST_F(ChatTemplateTest, KnownByNameWriteWholeConversations) {
  const std::vector<ChatMessage> talk = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  EXPECT_EQ(ChatTemplate::named("none").render(talk), "abc");
  EXPECT_EQ(ChatTemplate::named("<{task}>").render(talk), "<a>b<c>");
  EXPECT_EQ(ChatTemplate::named("llama-2").render(talk), "[INST] a [/INST] b </s><s>[INST] c [/INST]");
  const std::vector<ChatMessage> with_system = {{"system", "Be brief."}, {"user", "a"}};
  EXPECT_EQ(ChatTemplate::named("llama-2").render(with_system), "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\na [/INST]");
  for (const char* text : {"none", "<{task}>"}) {
    EXPECT_TRUE(refuses([&] { ChatTemplate::named(text).render(with_system); }, {text, "role system"}));
  }
  const std::vector<ChatMessage> of_a_tool = {{"user", "a"}, {"tool", "b"}}, last = {{"user", "a"}, {"system", "b"}},
                                 two = {{"system", "a"}, {"system", "b"}, {"user", "c"}};
  for (const auto& messages : {of_a_tool, last, two}) {
    EXPECT_TRUE(refuses([&] { ChatTemplate::named("llama-2").render(messages); }, {"llama-2", "no place"}));
  }
}

}  // namespace
}  // namespace hayloft::runtime

#include <gtest/gtest.h>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/chat_template.h"

// Answers as models write them, taken apart. The syntax is that of the models' chat templates.
namespace hayloft::runtime {
namespace {

std::vector<OfferedTool> tools() {
  return {{"look_up",
           nlohmann::ordered_json::parse(
               R"({"type": "object", "properties": {"word": {"type": "string"}, "times": {"type": "integer"}}})")},
          {"list", nlohmann::ordered_json::object()}};
}

AnswerForm form_of(const std::string& source, bool with_tools = true, const std::string& prompt = "") {
  return answer_form(ChatTemplate::from_source(source, "test"), with_tools ? tools() : std::vector<OfferedTool>(),
                     prompt);
}

const std::string kHermes = "{{ '<tool_call>' }}{{ '</think>' }}";
const std::string kPlainHermes = "{{ '<tool_call>' }}";
const std::string kMistralSource = "{{ '[TOOL_CALLS]' }}";
const std::string kLlamaSource = "{{ '<|python_tag|>' }}";
const std::string kGptOss = "{{ '<|channel|>' }}{{ '<|message|>' }}";

// "text|", "(reasoning)" and "NAME{arguments}" one after another.
std::string shown(const std::vector<AnswerPart>& parts) {
  std::string all;
  AnswerPart::Kind last = AnswerPart::Kind::call;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::call) all += "\n" + part.call.name + part.call.arguments;
    if (part.kind == AnswerPart::Kind::arguments) all += part.text;
    if (part.kind == AnswerPart::Kind::reasoning) all += (last == part.kind ? "" : "\nthinks: ") + part.text;
    if (part.kind == AnswerPart::Kind::text) all += (last == part.kind ? "" : "\nsays: ") + part.text;
    last = part.kind;
  }
  return all;
}

// In runs as they are, and text by text of one byte, which must not matter.
std::string read(const AnswerForm& form, const std::vector<TextRun>& runs) {
  std::string told[2];
  for (const bool bytes : {false, true}) {
    const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
    std::vector<AnswerPart> parts;
    const auto add = [&](std::vector<AnswerPart> more) {
      for (AnswerPart& each : more) parts.push_back(std::move(each));
    };
    for (const TextRun& run : runs) {
      if (run.special || !bytes) {
        add(reader->push(run));
      } else {
        for (const char c : run.text) add(reader->push({std::string(1, c), false}));
      }
    }
    add(reader->finish());
    told[bytes] = shown(parts);
  }
  EXPECT_EQ(told[0], told[1]);
  return told[0];
}

TEST(AnswerReader, ATemplateSaysHowCallsAreWritten) {
  EXPECT_TRUE(form_of(kHermes).tags);
  EXPECT_TRUE(form_of(kHermes).thinks);
  EXPECT_TRUE(form_of(kMistralSource).mistral);
  EXPECT_TRUE(form_of(kLlamaSource).llama);
  EXPECT_TRUE(form_of(kGptOss).channels);
  EXPECT_TRUE(form_of("{{ messages }}").plain());
  EXPECT_TRUE(form_of(kPlainHermes, false).plain());
  EXPECT_TRUE(form_of(kHermes, false, "assistant\n<think>\n").in_thought);
}

TEST(AnswerReader, HermesAndQwenCallInTags) {
  const AnswerForm form = form_of(kHermes);
  const std::string call = R"(<tool_call>
{"name": "look_up", "arguments": {"word": "hay", "times": 2}}
</tool_call>)";
  const std::string called = R"(
look_up{"word":"hay","times":2})";
  EXPECT_EQ(read(form, {{call}}), called);
  EXPECT_EQ(read(form, {{"I look.\n\n" + call + "\n" + call}}), "\nsays: I look." + called + called);
  EXPECT_EQ(read(form, {{"<think>\nfirst\n</think>\n\n" + call}}), "\nthinks: first" + called);
  EXPECT_EQ(read(form, {{"<tool_call>", true}, {R"({"name": "list", "arguments": {}})"}, {"</tool_call>", true}}),
            "\nlist{}");
  EXPECT_EQ(read(form, {{R"(<tool_call>{"name": "look_up", "arguments": {"word": "</tool_call>"}}</tool_call>)"}}),
            R"(
look_up{"word":"</tool_call>"})");
  // The closing tag is often left out before the end of the turn.
  EXPECT_EQ(read(form, {{R"(<tool_call>{"name": "list", "arguments": {}})"}}), "\nlist{}");
}

TEST(AnswerReader, QwenCallsByFunctionAndParameter) {
  const std::string call =
      "<tool_call>\n<function=look_up>\n<parameter=word>\n12\n</parameter>\n<parameter=times>\n3\n</parameter>\n"
      "<parameter=other>\n[1, \"a\"]\n</parameter>\n<parameter=more>\ntwo\nlines\n</parameter>\n</function>\n"
      "</tool_call>";
  EXPECT_EQ(read(form_of(kHermes), {{call}}), R"(
look_up{"word":"12","times":3,"other":[1,"a"],"more":"two\nlines"})");
}

// A text where the schema lets it be one, and the text is no JSON of another type that it names.
TEST(AnswerReader, AParameterThatMayBeATextIsOne) {
  const std::string schema = R"({"type": "object", "$defs": {"word": {"type": "string"},
      "itself": {"anyOf": [{"$ref": "#/$defs/itself"}, {"$ref": "#/$defs/itself"}, {"type": "string"}]}},
      "properties": {"text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "either": {"type": ["string", "integer"]}, "one": {"oneOf": [{"type": "string"}, {"type": "object"}]},
      "defined": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]}, "itself": {"$ref": "#/$defs/itself"},
      "nowhere": {"$ref": "#/$defs/none"}}})";
  AnswerForm form = form_of(kHermes);
  form.tools = {{"f", nlohmann::ordered_json::parse(schema)}};
  const auto value = [&](const std::string& key, const std::string& text) {
    const std::string told = read(
        form, {{"<tool_call><function=f><parameter=" + key + ">\n" + text + "\n</parameter></function></tool_call>"}});
    const std::string before = "\nf{\"" + key + "\":";
    return told.starts_with(before) ? told.substr(before.size(), told.size() - before.size() - 1) : told;
  };
  EXPECT_EQ(value("text", "null"), "\"null\"");
  for (const char* key : {"maybe", "defined"}) {
    EXPECT_EQ(value(key, "12345"), "\"12345\"") << key;
    EXPECT_EQ(value(key, "true"), "\"true\"") << key;
    EXPECT_EQ(value(key, "null"), "null") << key;
    EXPECT_EQ(value(key, "hay"), "\"hay\"") << key;
  }
  EXPECT_EQ(value("either", "12"), "12");
  EXPECT_EQ(value("either", "1.5"), "\"1.5\"");
  EXPECT_EQ(value("one", R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(value("one", "[1]"), "\"[1]\"");
  EXPECT_EQ(value("itself", "12"), "\"12\"");
  EXPECT_EQ(value("nowhere", "12"), "12");
}

// The same text in a string, or in a parameter, is no tag, whether it is told early or not.
TEST(AnswerReader, AClosingTagInsideOfAnArgumentEndsNothing) {
  for (const bool early : {false, true}) {
    AnswerForm form = form_of(kPlainHermes);
    form.early = early;
    const std::string object = R"({"name": "look_up", "arguments": {"word": "a\\</tool_call>\"</tool_call> b"}})";
    const std::string called = R"(
look_up{"word":"a\\</tool_call>\"</tool_call> b"})";
    EXPECT_EQ(read(form, {{"<tool_call>" + object + "</tool_call> So."}}), called + "\nsays:  So.");
    EXPECT_EQ(read(form, {{"<tool_call> [" + object + ", " + object + "]</tool_call>"}}), called + called);
    const std::vector<TextRun> tokens{{"<tool_call>", true},  {R"({"name": "look_up", "arguments": {"word": ")"},
                                      {"</tool_call>", true}, {R"("}})"},
                                      {"</tool_call>", true}, {" So."}};
    EXPECT_EQ(read(form, tokens), "\nlook_up{\"word\":\"</tool_call>\"}\nsays:  So.");
    const std::string parameters =
        "<tool_call><function=look_up><parameter=word>a</tool_call><tool_call></parameter><parameter=times>2"
        "</parameter></function></tool_call> So.";
    EXPECT_EQ(read(form, {{parameters}}), "\nlook_up{\"word\":\"a</tool_call><tool_call>\",\"times\":2}\nsays:  So.");
  }
  // A string that never ends takes no other call with it.
  const std::string broken = R"(<tool_call>{"name": "list", "arguments": {"a": "b}}</tool_call>)";
  EXPECT_EQ(read(form_of(kPlainHermes), {{broken + " <tool_call>{'name': 'list'}</tool_call>"}}),
            "\nsays: " + broken + " <tool_call>{'name': 'list'}</tool_call>");
  EXPECT_EQ(read(form_of(kPlainHermes), {{broken + R"(<tool_call>[{"name": "list"}]</tool_call>)"}}),
            "\nsays: " + broken + "\nlist{}");
}

TEST(AnswerReader, NothingIsToldBehindTheFirstCall) {
  const std::string call = R"(<tool_call>{"name": "look_up", "arguments": {"word": "</tool_call>"}}</tool_call>)";
  const std::string both = R"(<tool_call>[{"name": "list", "arguments": {}}, {"name": "list", "arguments": {}}])";
  for (const bool early : {false, true}) {
    AnswerForm form = form_of(kHermes);
    form.early = early;
    form.one_call = true;
    EXPECT_EQ(read(form, {{"<tool_call>hay</tool_call> So " + call + "<" + call + " more"}}),
              "\nsays: <tool_call>hay</tool_call> So\nlook_up{\"word\":\"</tool_call>\"}");
    EXPECT_EQ(read(form, {{both + "</tool_call>"}}), "\nlist{}");
    const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
    reader->push({"<think>" + call + "</think> </tool_call>"});
    reader->push({call.substr(0, call.size() - 1)});
    EXPECT_FALSE(reader->ended());
    reader->push({"><"});
    EXPECT_TRUE(reader->ended());
  }
}

TEST(AnswerReader, MistralCallsBehindAToken) {
  const AnswerForm form = form_of(kMistralSource);
  const std::string list = R"([{"name": "look_up", "arguments": {"word": "hay"}}, {"name": "list", "arguments": {}}])";
  EXPECT_EQ(read(form, {{"[TOOL_CALLS]", true}, {list}}), R"(
look_up{"word":"hay"}
list{})");
  EXPECT_EQ(read(form, {{"So. [TOOL_CALLS] " + list}}), R"(
says: So.
look_up{"word":"hay"}
list{})");
  EXPECT_EQ(read(form, {{"[TOOL_CALLS]", true}, {"look_up"}, {"[ARGS]", true}, {R"({"word": "hay"})"}}), R"(
look_up{"word":"hay"})");
  EXPECT_EQ(read(form, {{"[TOOL_CALLS]", true}, {"no call"}}), "\nsays: no call");
}

TEST(AnswerReader, LlamaCallsByAnObject) {
  const AnswerForm form = form_of(kLlamaSource);
  const std::string call = R"({"name": "look_up", "parameters": {"word": "hay"}})";
  const std::string called = R"(
look_up{"word":"hay"})";
  EXPECT_EQ(read(form, {{call}}), called);
  EXPECT_EQ(read(form, {{"<|python_tag|>", true}, {call + "; " + call}}), called + called);
  EXPECT_EQ(read(form, {{R"({"type": "function", "function": {"name": "list", "parameters": {}}})"}}), "\nlist{}");
  EXPECT_EQ(read(form, {{R"({"answer": 5})"}}), R"(
says: {"answer": 5})");
  EXPECT_EQ(read(form, {{"<|python_tag|>", true}, {"print(5)"}}), "\nsays: print(5)");
}

TEST(AnswerReader, GptOssHasChannels) {
  const std::vector<TextRun> runs{{"<|channel|>", true},
                                  {"analysis"},
                                  {"<|message|>", true},
                                  {"I think."},
                                  {"<|end|>", true},
                                  {"<|start|>", true},
                                  {"assistant"},
                                  {"<|channel|>", true},
                                  {"commentary to=functions.look_up "},
                                  {"<|constrain|>", true},
                                  {"json"},
                                  {"<|message|>", true},
                                  {R"({"word": "hay"})"}};
  EXPECT_EQ(read(form_of(kGptOss), runs), R"(
thinks: I think.
look_up{"word":"hay"})");
  const std::vector<TextRun> final_alone{{"<|channel|>", true}, {"final"}, {"<|message|>", true}, {"Hay."}};
  EXPECT_EQ(read(form_of(kGptOss, false), final_alone), "\nsays: Hay.");
  EXPECT_EQ(read(form_of(kGptOss, false), {{"No head."}}), "\nsays: No head.");
}

// A head that max_tokens cuts off anywhere says nothing, and is known as one while it comes.
TEST(AnswerReader, AHeadThatIsCutOffIsNoText) {
  const std::vector<TextRun> head{{" to"},        {"="}, {"functions"},           {".look_up"}, {"<|channel|>", true},
                                  {"commentary"}, {" "}, {"<|constrain|>", true}, {"json"},     {"<|message|>", true}};
  for (std::size_t cut = 0; cut < head.size(); ++cut) {
    EXPECT_EQ(read(form_of(kGptOss), {head.begin(), head.begin() + static_cast<std::ptrdiff_t>(cut)}), "") << cut;
  }
  const AnswerForm form = form_of(kGptOss);
  const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
  for (const TextRun& run : head) {
    reader->push(run);
    EXPECT_EQ(reader->heads(), run.text != "<|message|>") << run.text;
  }
  EXPECT_EQ(read(form, {{" to"}, {" be"}}), "\nsays:  to be");  // no head at all
  EXPECT_EQ(read(form, {{"Hay."}, {"<|end|>", true}}), "\nsays: Hay.");
  EXPECT_EQ(read(form, {{"to=functions"}}), "\nsays: to=functions");
}

TEST(AnswerReader, WhatDoesNotParseStaysText) {
  const AnswerForm form = form_of(kPlainHermes);
  for (const std::string text :
       {"<tool_call>\nhay\n</tool_call> and more", R"(<tool_call>{"name": "unknown", "arguments": {}}</tool_call>)",
        R"(a <tool_call>{"name": "look_up", "arguments": 5}</tool_call>)", "x < y <tool", "a \n <tool_call>{\"name\"",
        "<tool_call>{\"name\": \"look_up\", \"arguments\": {\"word\": \"a</tool_call>", "  spaces  ", "{\"a\": 1}"}) {
    EXPECT_EQ(read(form, {{text}}), "\nsays: " + text);
  }
}

// What has been told when so much has come; true: a special token.
std::vector<std::string> told_by(const AnswerForm& form, const std::vector<TextRun>& runs) {
  const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
  std::vector<AnswerPart> parts;
  std::vector<std::string> told;
  const auto add = [&](std::vector<AnswerPart> more) {
    for (AnswerPart& each : more) parts.push_back(std::move(each));
    told.push_back(shown(parts));
  };
  for (const TextRun& run : runs) add(reader->push(run));
  add(reader->finish());
  return told;
}

TEST(AnswerReader, CallsAreToldWhileTheyAreWritten) {
  AnswerForm form = form_of(kHermes);
  form.early = true;
  using Told = std::vector<std::string>;
  EXPECT_EQ(
      told_by(form, {{"So.\n<tool_call>\n{\"name\": \"look"},
                     {"_up\", \"arguments\": {\"word\": \"a "},
                     {"b\\\"\", \"times\" : "},
                     {"2}}\n"},
                     {"</tool_call>"}}),
      (Told{"\nsays: So.", "\nsays: So.\nlook_up{\"word\":\"a ", "\nsays: So.\nlook_up{\"word\":\"a b\\\"\",\"times\":",
            "\nsays: So.\nlook_up{\"word\":\"a b\\\"\",\"times\":2}",
            "\nsays: So.\nlook_up{\"word\":\"a b\\\"\",\"times\":2}",
            "\nsays: So.\nlook_up{\"word\":\"a b\\\"\",\"times\":2}"}));
  EXPECT_EQ(told_by(form, {{"<tool_call>", true},
                           {"<function=look_up>"},
                           {"<parameter=word>\nhay\n</parameter>\n<parameter=times>\n"},
                           {"3\n</parameter>"},
                           {"</function>"},
                           {"</tool_call>", true}}),
            (Told{"", "\nlook_up", "\nlook_up{\"word\":\"hay\"", "\nlook_up{\"word\":\"hay\",\"times\":3",
                  "\nlook_up{\"word\":\"hay\",\"times\":3}", "\nlook_up{\"word\":\"hay\",\"times\":3}",
                  "\nlook_up{\"word\":\"hay\",\"times\":3}"}));
  AnswerForm channels = form_of(kGptOss);
  channels.early = true;
  EXPECT_EQ(told_by(channels, {{"<|channel|>", true},
                               {"commentary to=functions.list"},
                               {"<|message|>", true},
                               {"{\"a\": "},
                               {"[1]}"},
                               {"<|call|>", true}}),
            (Told{"", "", "", "\nlist{\"a\":", "\nlist{\"a\":[1]}", "\nlist{\"a\":[1]}", "\nlist{\"a\":[1]}"}));
  // Nothing else is told than of a call that is whole, and nothing that could still be text.
  const std::string call =
      R"({"name": "look_up", "arguments": {"word": "{hay}", "times": [1, {"a": "]"}]}, "id": "a}b"})";
  const std::string other = R"({"name": "list", "parameters": {}})";
  for (const std::string& source : {kHermes, kMistralSource, kLlamaSource, kGptOss}) {
    AnswerForm whole = form_of(source), early = form_of(source);
    early.early = true;
    for (const std::string& text :
         {"<tool_call>" + call + "</tool_call> a <tool_call>" + other + "</tool_call>",
          "<tool_call>[" + call + "," + other + "]", "[TOOL_CALLS][" + call + ", " + other + "]",
          std::string("[TOOL_CALLS]look_up[ARGS]{\"word\": \"a\"}[TOOL_CALLS]list{}"), call + "; " + other,
          std::string("<tool_call>{\"arguments\": {}, \"name\": \"list\"}</tool_call>"),
          std::string("<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>"),
          std::string("<tool_call>{\"name\": \"list\", \"arguments\": \"{}\"}</tool_call>"),
          std::string("<tool_call>hay"), std::string("<tool_call>{\"name\": \"list\", \"argu"),
          std::string("{\"name\": 5}"), std::string("[TOOL_CALLS] no call")}) {
      EXPECT_EQ(read(early, {{text}}), read(whole, {{text}})) << source;
    }
  }
  // What has been told stays so; the rest is told to the letter.
  EXPECT_EQ(read(form, {{"<tool_call>{\"name\": \"list\", \"arguments\": {\"a\": hay\n, <b}}</tool_call> So."}}),
            "\nlist{\"a\":hay,<b}}\nsays:  So.");
  EXPECT_EQ(read(form, {{"<tool_call>{\"name\": \"list\", \"arguments\": {\"a\": 1} hay</tool_call>"}}),
            "\nlist{\"a\":1}\nsays:  hay");
  EXPECT_EQ(read(form, {{"<tool_call>{\"name\": \"list\", \"arguments\": {\"a\": \"b"}}), "\nlist{\"a\":\"b");
}

// A break is no line of a string of JSON, as RFC 8259 has it, and neither half of Qwen's tags nor a number without end
// is a call.
TEST(AnswerReader, ABrokenCallStaysTextHoweverItIsCut) {
  for (const std::string text : {"<tool_call>{\"name\": \"look_up\", \"arguments\": {\"word\": \"a\nb\"}}</tool_call>",
                                 "<tool_call><function=look_up><parameter=word>hay</parameter></tool_call>",
                                 "<tool_call><function=look_up><parameter=word>hay</tool_call>",
                                 "<tool_call>{\"name\": \"look_up\", \"arguments\": {\"times\": 1e999}}</tool_call>",
                                 "<tool_call>{\"name\": \"look_up\", \"arguments\": {\"word\": \"hay\"}</tool_call>"}) {
    EXPECT_EQ(read(form_of(kPlainHermes), {{text}}), "\nsays: " + text);
  }
}

TEST(AnswerReader, IntegersOfAnyLengthAreToldToTheLetter) {
  const std::string digits = "-123456789012345678901234567890";
  const std::string called = "\nlook_up{\"times\":" + digits + ",\"more\":[1," + digits + ",\"a\"]}";
  EXPECT_EQ(read(form_of(kPlainHermes), {{R"(<tool_call>{"name": "look_up", "arguments": {"times": )" + digits +
                                          R"(, "more": [1, )" + digits + R"(, "a"]}}</tool_call>)"}}),
            called);
  EXPECT_EQ(read(form_of(kPlainHermes),
                 {{"<tool_call><function=look_up><parameter=times>" + digits + "</parameter><parameter=more>[1," +
                   digits + ",\"a\"]</parameter></function></tool_call>"}}),
            called);
}

TEST(AnswerReader, ReasoningIsApartFromTheAnswer) {
  const AnswerForm form = form_of(kHermes, false);
  EXPECT_EQ(read(form, {{"<think>\na\n\nb </think>\n\nHay."}}), "\nthinks: a\n\nb\nsays: Hay.");
  EXPECT_EQ(read(form, {{"<think>", true}, {"a"}, {"</think>", true}, {"Hay."}}), "\nthinks: a\nsays: Hay.");
  EXPECT_EQ(read(form, {{"No <think> here</think>"}}), "\nsays: No <think> here</think>");
  EXPECT_EQ(read(form, {{"<think>never ends"}}), "\nthinks: never ends");
  EXPECT_EQ(read(form, {{" <thin"}}), "\nsays:  <thin");
  EXPECT_EQ(read(form_of(kHermes, false, "<think>\n"), {{"a</think>b"}}), "\nthinks: a\nsays: b");
}

}  // namespace
}  // namespace hayloft::runtime

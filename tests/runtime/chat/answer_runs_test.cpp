#include <gtest/gtest.h>

#include <random>

#include "runtime/chat/calls/answer_form.h"

// Answers that come in runs of text of any size.
namespace hayloft::runtime {
namespace {

// By Qwen, Hermes, Mistral and Llama.
AnswerForm form_of_family(std::size_t family) {
  AnswerForm form;
  form.tags = family < 2;
  form.thinks = family == 0;
  form.mistral = family == 2;
  form.llama = family == 3;
  form.tools = {{"look_up", nlohmann::ordered_json::parse(R"({"properties": {"word": {"type": "string"}}})")},
                {"list", nlohmann::ordered_json::object()}};
  return form;
}

// The parts one after another, those of one kind together.
std::string joined(const std::vector<AnswerPart>& parts) {
  std::string all;
  AnswerPart::Kind last = AnswerPart::Kind::call;
  for (const AnswerPart& part : parts) {
    const bool call = part.kind == AnswerPart::Kind::call;
    if (call || part.kind != last)
      all += call ? "\ncall " : part.kind == AnswerPart::Kind::text ? "\nsays " : "\nthinks ";
    all += call ? part.call.name + part.call.arguments : part.text;
    last = part.kind;
  }
  return all;
}

// Broken and whole answers of random pieces, in random runs: what is a call does not depend on the runs, and all that
// is told as one has an object for arguments.
TEST(AnswerRuns, WhatIsACallDoesNotDependOnTheRuns) {
  const std::vector<std::string> pieces{"<tool_call>",
                                        "</tool_call>",
                                        "[TOOL_CALLS]",
                                        "<|python_tag|>",
                                        "[ARGS]",
                                        "<function=look_up>",
                                        "</function>",
                                        "<parameter=word>",
                                        "</parameter>",
                                        R"({"name": "look_up", "arguments": {"word": ")",
                                        "\"}}",
                                        "}",
                                        "{",
                                        "\"",
                                        ",",
                                        R"({"name": "list", "arguments": {}})",
                                        "\n",
                                        "\\",
                                        " hay ",
                                        "list",
                                        "[",
                                        "]",
                                        "; ",
                                        "</thi",
                                        "<think>",
                                        "</think>",
                                        R"(<tool_call>{"name": "list", "arguments": {"a": 1}}</tool_call>)",
                                        "12345678901234567890123"};
  std::mt19937 random(5);
  const auto below = [&](std::size_t most) { return random() % most; };
  for (int round = 0; round < 20000; ++round) {
    AnswerForm form = form_of_family(below(4));
    form.one_call = below(4) == 0 && form.tags;
    std::string text;
    for (std::size_t n = below(12); n-- > 0;) text += pieces[below(pieces.size())];
    std::string told[2];
    for (const bool cut : {false, true}) {
      const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
      std::vector<AnswerPart> parts;
      const auto add = [&](const std::vector<AnswerPart>& more) {
        parts.insert(parts.end(), more.begin(), more.end());
      };
      for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
        size = cut ? 1 + below(9) : text.size();
        add(reader->push({text.substr(at, size), false}));
      }
      add(reader->finish());
      for (const AnswerPart& part : parts) {
        ASSERT_NE(part.kind, AnswerPart::Kind::arguments);
        if (part.kind != AnswerPart::Kind::call) continue;
        ASSERT_TRUE(nlohmann::json::parse(part.call.arguments, nullptr, false).is_object()) << text;
      }
      told[cut] = joined(parts);
    }
    ASSERT_EQ(told[0], told[1]) << text;
  }
}

}  // namespace
}  // namespace hayloft::runtime

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Conversations over a pipe, with the bundled model and a template given to it.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome;
using test::Program;
using test::refused_with;
using test::run_program;

class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
    fs::create_directory(model_);
    for (const auto& entry : fs::directory_iterator(source))
      fs::create_symlink(entry, model_ / entry.path().filename());
    write("chat_template.jinja",
          "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
          "{% if add_generation_prompt %}assistant:{% endif %}");
  }

  void write(const std::string& file, const std::string& text) const { folder_.write("model/" + file, text); }

  Outcome chat(const std::string& lines, const std::vector<std::string>& options) const {
    std::vector<std::string> arguments = {"chat", "-m", model_};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return Program(arguments, "", folder_.write("input", lines)).wait();
  }
  std::string generated(const std::string& prompt, const std::string& tokens) const {
    return run_program({"generate", "-m", model_, "-p", prompt, "-n", tokens}).out;
  }

  test::TemporaryFolder folder_;
  fs::path model_ = folder_ / "model";
};

TEST_F(ChatTest, AnswersLineByLineAndRemembersWhatWasSaid) {
  const Outcome outcome = chat("the hay\n\nand then\n", {"-n", "5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string first = generated("user:the hay\nassistant:", "5");
  const std::string second =
      generated("user:the hay\nassistant:" + first.substr(0, first.size() - 1) + "\nuser:and then\nassistant:", "5");
  EXPECT_EQ(outcome.out, first + second);
}

TEST_F(ChatTest, ALineOfBlanksIsNoMessage) {
  const Outcome outcome = chat("the hay\n \t\nand then\n  \r\n", {"-n", "5"});
  EXPECT_EQ(outcome.out, chat("the hay\nand then\n", {"-n", "5"}).out);
}

// By a template that shows the newest message alone both answers stand behind the same text.
TEST_F(ChatTest, EveryAnswerIsDrawnAnew) {
  write("chat_template.jinja", "{{ messages[-1].content }}");
  const std::vector<std::string> drawn{"-n", "12", "--temp", "2", "--seed", "7"};
  const Outcome outcome = chat("the hay\nthe hay\n", drawn);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string first = chat("the hay\n", drawn).out;
  ASSERT_EQ(outcome.out.substr(0, first.size()), first);
  EXPECT_NE(outcome.out.substr(first.size()), first) << outcome.out;
  EXPECT_EQ(outcome.out, chat("the hay\nthe hay\n", drawn).out);
}

TEST_F(ChatTest, OfAnAnswerInChannelsTheReasoningIsNoPart) {
  write("chat_template.jinja",
        "{# <|channel|> <|message|> #}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}");
  const json original = json::parse(std::ifstream(model_ / "tokenizer.json"));
  fs::remove(model_ / "tokenizer.json");
  for (const std::string channel : {"final", "analysis"}) {
    json tokenizer = original;
    const std::vector<std::string> head = {"<|channel|>", channel, "<|message|>"};
    for (std::size_t i = 0; i < head.size(); ++i) {
      json added = tokenizer["added_tokens"][0];
      added["id"] = 1001 + i;
      added["content"] = head[i];
      added["special"] = i != 1;
      tokenizer["added_tokens"].push_back(added);
    }
    write("tokenizer.json", tokenizer.dump());
    // The answer is tokens 1001 to 1005, the last two of which are text.
    std::vector<std::string> options = {"-n", "5", "--repeat-penalty", "1000"};
    for (const char* bias : {"1001+90", "1002+80", "1003+70", "1004+60", "1005+50"}) {
      options.insert(options.end(), {"--logit-bias", bias});
    }
    std::vector<std::string> once = {"generate", "--chat", "-m", model_, "-p", "the hay is"};
    once.insert(once.end(), options.begin(), options.end());
    for (const Outcome& read : {chat("the hay is\n", options), run_program(once)}) {
      ASSERT_EQ(read.exit_code, 0) << read.err;
      EXPECT_EQ(read.out, channel == "final" ? "althy tail\n" : "\n");
      EXPECT_EQ(read.err.find("althy tail\n") != std::string::npos, channel == "analysis") << read.err;
    }
  }
}

TEST_F(ChatTest, EndsAtExit) {
  EXPECT_EQ(chat("hay\n/exit\nmore\n", {"-n", "3"}).out, chat("hay\n", {"-n", "3"}).out);
  EXPECT_EQ(chat("/exit\n", {}).out, "");
}

TEST_F(ChatTest, AWordBehindASlashIsNoMessage) {
  const std::string alone = chat("hay\n", {"-n", "3"}).out;
  const Outcome outcome = chat("/help\n/clear all\nhay\n", {"-n", "3"});
  EXPECT_EQ(outcome.out, alone);
  EXPECT_NE(outcome.err.find("\ncommands: /exit ends"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("/clear all: no command"), std::string::npos) << outcome.err;
  for (const char* message : {" /clear\n", "/usr/bin is\n", "/\n"}) {
    EXPECT_FALSE(chat(message, {"-n", "3"}).out.empty()) << message;
  }
}

TEST_F(ChatTest, LinesMayEndAsOnWindowsAndBeginWithAMark) {
  const Outcome usual = chat("the hay is\nthe sky is\n/exit\nthe loft is\n", {"-n", "6"});
  EXPECT_EQ(usual.exit_code, 0) << usual.err;
  EXPECT_EQ(chat("\xEF\xBB\xBFthe hay is\r\nthe sky is\r\n/exit\r\nthe loft is\r\n", {"-n", "6"}).out, usual.out);
  EXPECT_EQ(chat("the hay is\r\n\r\nthe sky is\r\n/exit\r", {"-n", "6"}).out, usual.out);
  const Outcome latin = chat("the hay is\ncaf\xE9\n", {"-n", "6"});
  EXPECT_EQ(latin.exit_code, 1);
  EXPECT_NE(latin.err.find("standard input, line 2: is not UTF-8: byte 3"), std::string::npos) << latin.err;
}

TEST_F(ChatTest, AStoppedAnswerLeavesTheProgramRunning) {
  const std::string input = folder_.write("input", "hay\nmore hay\n");
  write("generation_config.json", R"({"eos_token_id": 5119})");  // in the place of the one that ends texts
  Program program({"chat", "-m", model_, "-c", "4M", "--temp", "2"}, "", input);
  const auto wait_for = [&](const std::function<bool()>& come) {
    while (program.running() && !come()) ::sched_yield();
  };
  wait_for([&] { return program.output().size() > 1; });
  program.interrupt();
  wait_for([&] { return program.error_output().find("the answer was stopped") != std::string::npos; });
  const std::size_t first = program.output().size();
  wait_for([&] { return program.output().size() > first; });
  program.interrupt();
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(ChatTest, AnswersAboutASavedContext) {
  const std::string text = folder_.write("book.txt", "The hay is in the loft. The straw is in the barn.");
  const std::string book = folder_ / "book.hay";
  ASSERT_EQ(run_program({"ingest", "-m", model_, "-f", text, "--save", book}).exit_code, 0);
  const Outcome talked = chat("Where is it?\n", {"--context", book, "-n", "4"});
  ASSERT_EQ(talked.exit_code, 0) << talked.err;
  const std::string expected =
      run_program({"generate", "--context", book, "--chat", "-p", "Where is it?", "-n", "4"}).out;
  EXPECT_EQ(talked.out, expected);
  EXPECT_EQ(run_program({"generate", "--context", book, "-p", "user:Where is it?\nassistant:", "-n", "4"}).out,
            expected);
  EXPECT_EQ(run_program({"ask", book, "-p", "Where is it?", "-n", "4", "--attn", "dense"}).out, expected);
  const auto as_text = {"ask", book.c_str(), "-p", "Where is it?", "-n", "4", "--attn", "dense", "--template", "{}"};
  EXPECT_EQ(run_program({as_text.begin(), as_text.end()}).out,
            run_program({"generate", "--context", book, "-p", "Where is it?", "-n", "4"}).out);
  const auto drawn = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"ask", book, "-p", "Where is it?", "-n", "4", "--attn", "dense", "--temp", "1.5"});
    return run_program(more).out;
  };
  EXPECT_EQ(drawn({"--seed", "3", "--answers", "2"}), drawn({"--seed", "3"}) + "\n" + drawn({"--seed", "4"}));
}

TEST_F(ChatTest, DrawsAsTheMakersOfTheModelSayUnlessToldOtherwise) {
  write("generation_config.json", R"({"do_sample": true, "temperature": 0.75, "top_p": 0.9, "eos_token_id": 0})");
  EXPECT_NE(chat("hay\n", {"-n", "1", "-v"}).err.find("--temp 0.75 --top-k 50 --top-p 0.9 --min-p 0"),
            std::string::npos);
  EXPECT_NE(chat("hay\n", {"-n", "1", "-v", "--temp", "0"}).err.find("--temp 0 --top-k 50"), std::string::npos);
  const Outcome answer = run_program({"generate", "--chat", "-m", model_, "-p", "hay", "-n", "1", "-v"});
  EXPECT_NE(answer.err.find("--temp 0.75"), std::string::npos) << answer.err;
  const Outcome text = run_program({"generate", "-m", model_, "-p", "hay", "-n", "1", "-v"});
  EXPECT_EQ(text.err.find("--temp"), std::string::npos) << text.err;
  write("generation_config.json", R"({"do_sample": true, "top_p": 2})");
  EXPECT_TRUE(refused_with(chat("hay\n", {}), 1, {"generation_config.json", "top_p", "2"}));
}

// Rules hold for texts that are no answers too, and for greedy ones.
TEST_F(ChatTest, WhatMayNotBeDrawnIsNotDrawnUnlessToldOtherwise) {
  const auto text = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments{"generate", "-m", model_.string(), "-p", "hay", "-n", "12"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(arguments);
  };
  write("generation_config.json", "{}");
  const std::string plain = text({}).out;
  write("generation_config.json", R"({"no_repeat_ngram_size": 1})");
  const Outcome once = text({"-v"});
  EXPECT_NE(once.out, plain);
  EXPECT_NE(once.err.find("recommendations too: --no-repeat-ngram 1"), std::string::npos) << once.err;
  EXPECT_EQ(text({"--no-repeat-ngram", "0"}).out, plain);
  EXPECT_EQ(text({"--no-model-sampling"}).out, plain);
  write("generation_config.json", "{}");
  EXPECT_EQ(text({"--no-repeat-ngram", "1"}).out, once.out);
  EXPECT_EQ(text({"--repeat-penalty", "1"}).out, plain);
  EXPECT_NE(text({"--repeat-penalty", "8"}).out, plain);
  EXPECT_NE(text({"--frequency-penalty", "50"}).out, plain);
}

TEST_F(ChatTest, SamplingThatIsNotHereIsRefusedByName) {
  const auto refused = [&](std::vector<std::string> options, int code, std::vector<std::string> parts) {
    std::vector<std::string> arguments{"generate", "-m", model_.string(), "-p", "hay", "-n", "2"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return refused_with(run_program(arguments), code, parts);
  };
  EXPECT_TRUE(refused({"--suppress-tokens", "1,99999999"}, 1, {"suppress_tokens has the token 99999999"}));
  EXPECT_TRUE(refused({"--suppress-tokens", "1,x"}, 2, {"--suppress-tokens: 'x' is no id of a token"}));
  EXPECT_TRUE(refused({"--suppress-tokens", "4k"}, 2, {"--suppress-tokens: '4k' is no id of a token"}));
  EXPECT_TRUE(refused({"--logit-bias", "12"}, 2, {"--logit-bias 12", "1234-5"}));
  EXPECT_TRUE(refused({"--logit-bias", "12+x"}, 2, {"--logit-bias"}));
  EXPECT_TRUE(refused({"--logit-bias", "hay+1"}, 2, {"--logit-bias: 'hay' is no id of a token"}));
  EXPECT_TRUE(refused({"--temp", "1e-50"}, 2, {"--temp 1e-50", "write 0"}));
  EXPECT_TRUE(refused({"--repeat-penalty", "0"}, 2, {"--repeat-penalty"}));
  write("generation_config.json", R"({"num_beams": 4})");
  EXPECT_TRUE(refused({}, 1, {"generation_config.json: num_beams is 4", "--no-model-sampling"}));
  EXPECT_EQ(run_program({"generate", "-m", model_.string(), "-p", "hay", "-n", "2", "--no-model-sampling"}).exit_code,
            0);
}

TEST_F(ChatTest, AModelWithoutATemplateIsSaidToHaveNone) {
  fs::remove(model_ / "chat_template.jinja");
  EXPECT_TRUE(refused_with(chat("hay\n", {}), 1, {"has no chat template", "--chat-template"}));
  EXPECT_TRUE(
      refused_with(run_program({"generate", "--chat", "-m", model_, "-p", "hay"}), 1, {"has no chat template"}));
  EXPECT_TRUE(refused_with(run_program({"eval", "-m", model_, "-c", "256", "--chat-template", "model"}), 1,
                           {"has no chat template"}));
  EXPECT_EQ(chat("hay\n", {"--chat-template", "chatml", "-n", "1"}).exit_code, 0);
}

TEST_F(ChatTest, WhatTheTemplateRefusesIsOneLine) {
  write("chat_template.jinja",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}hay");
  EXPECT_TRUE(refused_with(run_program({"generate", "--chat", "-m", model_, "-p", "hay", "--system", "short"}), 1,
                           {"chat_template.jinja", "no system role"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model_, "-p", "hay", "--system", "short"}), 2,
                           {"--system goes with --chat"}));
}

TEST_F(ChatTest, ASystemMessageWithoutAPlaceIsRefused) {
  const std::vector<std::string> given = {"--system", "short", "-n", "1"};
  write("chat_template.jinja", "{{ messages[-1].content }}");
  EXPECT_TRUE(refused_with(chat("hay\n", given), 1, {"--system: the chat template leaves it out"}));
  for (const char* text : {"none", "Q: {task}"}) {
    std::vector<std::string> options = given;
    options.insert(options.end(), {"--chat-template", text});
    EXPECT_TRUE(refused_with(chat("hay\n", options), 1, {"--system: --chat-template ", text, "no place"}));
  }
}

TEST_F(ChatTest, AMessageOfNothingIsRefused) {
  const std::string empty = folder_.write("empty", " \n").string();
  EXPECT_TRUE(refused_with(run_program({"generate", "--chat", "-m", model_, "-f", empty, "-n", "1"}), 1,
                           {"--chat: the message is empty"}));
}

TEST_F(ChatTest, ATextForAMessageGoesThroughTheConversation) {
  for (const std::string text : {"none", "Of {task}: "}) {
    const Outcome outcome = chat("the hay\nand then\n", {"-n", "5", "--chat-template", text});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string one = text == "none" ? "the hay" : "Of the hay: ";
    const std::string two = text == "none" ? "and then" : "Of and then: ";
    const std::string first = generated(one, "5");
    EXPECT_EQ(outcome.out, first + generated(one + first.substr(0, first.size() - 1) + two, "5"));
  }
}

TEST_F(ChatTest, EndsWhereThereIsNoMoreRoom) {
  const Outcome outcome = chat("hay\nhay\nhay\n", {"-c", "20", "-n", "6"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("20 tokens of --ctx-size"), std::string::npos) << outcome.err;
}

TEST_F(ChatTest, EvaluatesWithTheModelsTemplate) {
  const Outcome outcome = run_program({"eval", "-m", model_, "-c", "512", "--tasks", "niah_single_1", "--samples", "1",
                                       "--attn", "dense", "--chat-template", "model"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace hayloft

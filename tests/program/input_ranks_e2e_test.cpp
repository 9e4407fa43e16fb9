#include <csignal>
#include <functional>

#include "tests/program/ranks_fixture.h"

// Tests what `mpirun hayloft` reads of standard input, which reaches the first rank alone, and how it is interrupted.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::Program;
using test::run_program;

class InputRanksTest : public test::RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    const fs::path source = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
    fs::create_directory(model_);
    for (const auto& entry : fs::directory_iterator(source))
      fs::create_symlink(entry, model_ / entry.path().filename());
    write(model_ / "chat_template.jinja",
          "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
          "{% if add_generation_prompt %}assistant:{% endif %}");
  }

  void expect_as_alone(const std::vector<std::string>& arguments, const std::string& text,
                       const std::vector<int>& over_so_many) const {
    const std::string input = at("input");
    write(input, text);
    const Outcome alone = Program(arguments, "", input).wait();
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    EXPECT_GT(alone.out.size(), 4u);
    for (const int ranks : over_so_many) {
      const Outcome outcome = over(ranks, arguments, input);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, alone.out) << "over " << ranks;
    }
  }

  fs::path model_ = folder_ / "model";
};

TEST_F(InputRanksTest, AConversationIsThatOfOneMachine) {
  expect_as_alone({"chat", "-m", model_, "-n", "5", "--block-tokens", "64"},
                  "the hay\n\n" + std::string(300, 'a') + " and then\n/exit\nmore\n", {2, 3});
}

TEST_F(InputRanksTest, TextAndQuestionsComeFromStandardInput) {
  // Longer than what fits into a first message.
  expect_as_alone({"generate", "-m", model_, "-f", "-", "-n", "8", "--block-tokens", "64"},
                  std::string(2000, 'a') + " the hay", {3});
  write(at("book.txt"), "The hay is in the loft. The straw is in the barn.");
  const Outcome saved =
      over(2, {"ingest", "-m", model_, "-f", at("book.txt"), "--save", at("book.hay"), "--block-tokens", "16"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  expect_as_alone({"ask", at("book.hay"), "-n", "4"}, "Where is the hay?\n\nAnd the straw?", {2});
  expect_as_alone({"chat", "--context", at("book.hay"), "-n", "4"}, "Where is the hay?\nAnd the straw?\n", {2});
}

// Else each rank would read a question of its own, or end where the others go on.
TEST_F(InputRanksTest, RanksWriteMessagesAndEndAnswersAlike) {
  write(at("book.txt"), "The hay is in the loft. The straw is in the barn.");
  const Outcome saved = run_program({"ingest", "-m", model_, "-f", at("book.txt"), "--save", at("book.hay")});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const fs::path writes = folder_ / "writes-otherwise", ends = folder_ / "ends-otherwise";
  for (const fs::path& other : {writes, ends})
    fs::copy(model_, other, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  write(writes / "chat_template.jinja", "{% for m in messages %}{{ m.role }}={{ m.content }}\n{% endfor %}assistant=");
  write(ends / "generation_config.json", R"({"eos_token_id": [0, 7]})");
  const auto with = [&](const fs::path& model, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), HAYLOFT_PROGRAM);
    arguments.insert(arguments.end(), {"-m", model, "-n", "2"});
    return arguments;
  };
  for (const std::vector<std::string>& command : {std::vector<std::string>{"ask", at("book.hay"), "-p", "Where?"},
                                                  std::vector<std::string>{"chat", "--context", at("book.hay")}}) {
    const auto of = [&](const fs::path& model) { return with(model, command); };
    expect_refused(apart({of(model_), of(writes)}), 1, {"rank 1 has another chat template"});
    expect_refused(apart({of(model_), of(ends)}), 1, {"rank 1 has another model"});
  }
}

TEST_F(InputRanksTest, WhatCannotBeReadIsSaidOnce) {
  const Outcome outcome = over(2, {"generate", "-m", model_, "-f", "-"});
  expect_refused(outcome, 1, {"the prompt is empty"});
  write(at("input"), "hay\n" + std::string(2000, 'a') + "\n");
  const Outcome full = over(2, {"chat", "-m", model_, "-c", "64", "-n", "2"}, at("input"));
  EXPECT_EQ(full.exit_code, 1);
  ASSERT_EQ(own_lines(full).size(), 1u) << full.err;
  EXPECT_NE(own_lines(full).front().find("the conversation is at its end"), std::string::npos) << full.err;
}

// By a signal to the first rank alone, and by one that mpirun passes on to all of them.
TEST_F(InputRanksTest, AStoppedAnswerLeavesTheRanksTogether) {
  write(at("input"), "hay\nmore hay\neven more\n");
  write(model_ / "generation_config.json", R"({"eos_token_id": 5119})");  // in the place of the one that ends texts
  Program program(test::Command{HAYLOFT_MPIRUN, launched(2, {"chat", "-m", model_, "-c", "4M", "--temp", "2"})},
                  at("input"));
  const auto wait_for = [&](const std::function<bool()>& come) {
    while (program.running() && !come()) ::sched_yield();
  };
  const auto stopped = [&] {
    const std::string said = program.error_output();
    int count = 0;
    for (std::size_t at = 0; (at = said.find("the answer was stopped", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const std::vector<std::function<void()>> ways{[&] { ::kill(program.children().at(0), SIGINT); },
                                                [&] { ::kill(program.id(), SIGUSR1); },
                                                [&] { ::kill(program.children().at(0), SIGINT); }};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const std::size_t before = program.output().size();
    wait_for([&] { return program.output().size() > before + 1; });
    ASSERT_TRUE(program.running()) << program.error_output();
    ways[i]();
    wait_for([&] { return stopped() > static_cast<int>(i); });
  }
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(own_lines(outcome).size(), 0u) << outcome.err;
}

TEST_F(InputRanksTest, AnInterruptedAnswerEndsTheRun) {
  Program program(test::Command{
      HAYLOFT_MPIRUN, launched(2, {"generate", "-m", model_, "-p", "hay", "-n", "1000000", "--attn", "dense"})});
  while (program.running() && program.output().empty()) ::sched_yield();
  ::kill(program.children().at(0), SIGINT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  ASSERT_EQ(own_lines(outcome).size(), 1u) << outcome.err;
  EXPECT_EQ(own_lines(outcome).front(), "hayloft: interrupted");
}

}  // namespace
}  // namespace hayloft

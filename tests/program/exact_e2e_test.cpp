#include "tests/program/program_fixture.h"
#include "tests/support/hybrid_model.h"

// --exact from outside: the text of --attn dense.
namespace hayloft::test {
namespace {

class ExactProgramTest : public ProgramTest {
 protected:
  ExactProgramTest() {
    for (int i = 0; i < 12; ++i) text_ += "the hay is in the loft and the horse is at the door, ";
  }
  std::vector<std::string> generate(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"generate", "-m", at("model"), "-p", text_, "-n", "60", "--block-tokens", "64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string text_;
};

TEST_F(ExactProgramTest, TheTextIsThatOfDense) {
  make_model();
  for (const std::vector<std::string>& drawing :
       {std::vector<std::string>{}, {"--temp", "0.9", "--seed", "7"}, {"--repeat-penalty", "1.3"}}) {
    std::vector<std::string> dense{"--attn", "dense"};
    dense.insert(dense.end(), drawing.begin(), drawing.end());
    const Outcome expected = run_program(generate(dense));
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    for (const char* draft : {"lookup", "self:sparq:r=4:k=64", "lookup,self:sparq:r=4:k=64", "none"}) {
      std::vector<std::string> exact{"--exact", "--draft", draft};
      exact.insert(exact.end(), drawing.begin(), drawing.end());
      const Outcome outcome = run_program(generate(exact));
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, expected.out) << draft;
      EXPECT_NE(outcome.err.find("attention: exact"), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(" drafted tokens accepted"), std::string::npos) << outcome.err;
    }
  }
}

TEST_F(ExactProgramTest, AutoCopiesFromTheTextWhereItAttendsExactly) {
  make_model();
  const Outcome alone = run_program(generate({"--draft", "none", "-v"})), copying = run_program(generate({"-v"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(copying.out, alone.out);
  EXPECT_NE(copying.err.find("attention: exact"), std::string::npos) << copying.err;
  EXPECT_NE(copying.err.find(" drafted tokens accepted"), std::string::npos) << copying.err;
  EXPECT_EQ(alone.err.find(" drafted tokens accepted"), std::string::npos) << alone.err;
}

TEST_F(ExactProgramTest, WhatContradictsItIsRefusedInALine) {
  make_model();
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--exact", "--attn", "sparq"}, "--draft self:sparq"},
      {{"--exact", "--audit"}, "nothing to measure"},
      {{"--draft", "lookup"}, "--draft lookup goes with --exact"},
      {{"--draft-max", "3"}, "--draft-max goes with --exact"},
      {{"--exact", "--draft", "mtp"}, "has no head that predicts further tokens"},
      {{"--exact", "--draft", "guess"}, "--draft guess: must be"},
      {{"--draft", "mtp"}, "--draft mtp goes with --exact"},
      {{"--exact", "--draft", "mtp,self"}, "names self and mtp"},
      {{"--exact", "--draft", "self:h2o"}, "--draft self:h2o"},
      {{"--exact", "--draft-max", "0"}, "--draft-max"}};
  for (const auto& [options, message] : refused) {
    const Outcome outcome = run_program(generate(options));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(ExactProgramTest, ByTheModelsHeadTheTextIsThatOfDense) {
  write_hybrid_model(folder_ / "model", {.head = true});
  for (const std::vector<std::string>& drawing : {std::vector<std::string>{}, {"--temp", "0.9", "--seed", "7"}}) {
    std::vector<std::string> dense{"--attn", "dense", "-v", "-n", "200"};
    dense.insert(dense.end(), drawing.begin(), drawing.end());
    const Outcome expected = run_program(generate(dense));
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    EXPECT_NE(expected.err.find("of mtp are left out: they predict further tokens"), std::string::npos) << expected.err;
    for (const char* draft : {"mtp", "lookup,mtp"}) {
      std::vector<std::string> exact{"--exact", "--draft", draft, "-v", "-n", "200"};
      exact.insert(exact.end(), drawing.begin(), drawing.end());
      const Outcome outcome = run_program(generate(exact));
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, expected.out) << draft;
      EXPECT_EQ(outcome.err.find("are left out"), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(" drafted tokens accepted"), std::string::npos) << outcome.err;
    }
  }
}

// A head that is right: behind a saved context it knows nothing, and soon enough what was decoded.
TEST_F(ExactProgramTest, AHeadThatIsRightIsAcceptedBehindASavedContext) {
  write_hybrid_model(folder_ / "model", {.layers = 24, .head = true, .copies = true});  // for which a draft is cheap
  write(folder_ / "text.txt", text_);
  const Outcome made = run_program(
      {"ingest", "-m", at("model"), "-f", at("text.txt"), "--save", at("text.hay"), "--block-tokens", "64"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Outcome outcome =
      run_program({"generate", "--context", at("text.hay"), "-p", " again", "-n", "60", "--exact", "--draft", "mtp"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::size_t said = outcome.err.find("exact: ");
  ASSERT_NE(said, std::string::npos) << outcome.err;
  EXPECT_LT(std::stoi(outcome.err.substr(said + 7)), 40) << outcome.err;
}

TEST_F(ExactProgramTest, OptionsOfAttentionAreSaidToHaveNoEffect) {
  make_model();
  const Outcome outcome = run_program(generate({"--exact", "--attn-k", "64", "--attn-r", "4"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("note: --attn-k has no effect: not used by --exact"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("note: --attn-r has no effect"), std::string::npos) << outcome.err;
  const Outcome dense = run_program(generate({"--exact", "--attn", "dense", "--attn-k", "64"}));
  EXPECT_EQ(dense.err.find("--attn-k"), dense.err.rfind("--attn-k")) << "once: " << dense.err;
}

TEST_F(ExactProgramTest, QuestionsToASavedContextAreAnsweredAsByDense) {
  make_model();
  write(folder_ / "text.txt", text_);
  const Outcome made = run_program(
      {"ingest", "-m", at("model"), "-f", at("text.txt"), "--save", at("text.hay"), "--block-tokens", "64"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const char* command : {"ask", "generate"}) {
    std::vector<std::string> arguments{command};
    if (std::string(command) == "ask") {
      arguments.insert(arguments.end(), {at("text.hay"), "-p", "the hay", "-p", "the horse"});
    } else {
      arguments.insert(arguments.end(), {"--context", at("text.hay")});
    }
    if (std::string(command) == "generate") arguments.insert(arguments.end(), {"-p", "the hay is"});
    arguments.insert(arguments.end(), {"-n", "30"});
    std::vector<std::string> exact = arguments, dense = arguments;
    exact.insert(exact.end(), {"--exact", "--draft", "lookup,self:sparq:r=4:k=64"});
    if (std::string(command) == "ask") {
      std::vector<std::string> quoted = exact;
      quoted.emplace_back("--quotes");
      EXPECT_TRUE(refused_with(run_program(quoted), 2, {"--quotes", "--exact", "--attn dense"}));
    }
    dense.insert(dense.end(), {"--attn", "dense"});
    const Outcome expected = run_program(dense), outcome = run_program(exact);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected.out) << command;
  }
}

}  // namespace
}  // namespace hayloft::test

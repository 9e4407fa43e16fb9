// A context that is resumed or appended to goes on as it was begun: options that say otherwise are refused or noted.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/program/program_fixture.h"

namespace hayloft::test {
namespace {

class KeptOptions : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> append(std::vector<std::string> options) const {
    options.insert(options.begin(), {"ingest", "--append", at("hay.hay"), "-f", more_});
    return options;
  }
  void begin(std::vector<std::string> options) const {
    const std::vector<std::string> fixed{"ingest", "-f",        text_,  "--save",         at("hay.hay"), "-b",
                                         "128",    "--columns", "int8", "--block-tokens", "64"};
    options.insert(options.begin(), fixed.begin(), fixed.end());
    ASSERT_EQ(run_program(options).exit_code, 0);
  }
  std::string contents() const {
    std::ifstream file(at("hay.hay"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
  std::string text_ = folder_.write("hay.txt", "Hay and straw and a needle in the hay, and hay again.");
  std::string more_ = folder_.write("more.txt", " More hay behind it.");
};

TEST_F(KeptOptions, WhatShapesTheFileIsRefused) {
  begin({});
  const std::string before = contents();
  EXPECT_TRUE(refused_with(run_program(append({"--columns", "int4"})), 1, {"--columns int4", "hay.hay", "int8"}));
  EXPECT_TRUE(refused_with(run_program(append({"--rows", "int8"})), 1, {"--rows int8", "hay.hay", "f16"}));
  EXPECT_TRUE(refused_with(run_program(append({"--rows", "q8"})), 2, {"--rows q8", "f16, int8, int4"}));
  EXPECT_TRUE(refused_with(run_program(append({"--block-tokens", "32"})), 1, {"--block-tokens 32", "hay.hay", "64"}));
  EXPECT_TRUE(refused_with(run_program(append({"--prefill", "window"})), 1, {"--prefill window", "exact"}));
  EXPECT_EQ(contents(), before);
  EXPECT_EQ(run_program(append({"--columns", "int8", "--block-tokens", "64", "--prefill", "exact"})).exit_code, 0);
}

TEST_F(KeptOptions, TheOptionsOfThePrefillThatStaysAreCompared) {
  begin({"--prefill", "window", "--prefill-window", "32", "--prefill-sinks", "2"});
  EXPECT_TRUE(refused_with(run_program(append({"--prefill-window", "48"})), 1, {"--prefill-window 48", "with 32"}));
  EXPECT_TRUE(refused_with(run_program(append({"--prefill-sinks", "3"})), 1, {"--prefill-sinks 3", "with 2"}));
  EXPECT_TRUE(refused_with(run_program(append({"--prefill", "exact"})), 1, {"--prefill exact", "with window"}));
  EXPECT_NE(run_program(append({"--prefill-k", "7", "--prefill-window", "32"}))
                .err.find("note: --prefill-k has no effect: not used by --prefill window, but by topk\n"),
            std::string::npos);
  EXPECT_EQ(run_program(append({})).exit_code, 0) << "nothing asked for, so the window stays";
}

TEST_F(KeptOptions, WhatOnlyAffectsSpeedIsNoted) {
  begin({});
  const Outcome outcome = run_program(append({"--batch", "256"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("note: --batch 256 has no effect"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("with 128, which stays"), std::string::npos) << outcome.err;
}

TEST_F(KeptOptions, WhatGoesOnBehindASavedContextKeepsItsLayout) {
  begin({});
  const auto go_on = [&](const char* command, std::vector<std::string> options) {
    options.insert(options.begin(), {command, "--context", at("hay.hay")});
    return run_program(options);
  };
  EXPECT_TRUE(refused_with(go_on("generate", {"-p", "hay", "-n", "1", "--columns", "int4"}), 1,
                           {"--columns int4", "hay.hay", "int8"}));
  EXPECT_TRUE(refused_with(go_on("chat", {"--chat-template", "chatml", "--block-tokens", "32"}), 1,
                           {"--block-tokens 32", "hay.hay", "64"}));
  const Outcome noted = go_on("generate", {"-p", "hay", "-n", "1", "-b", "256", "--prefill", "window"});
  EXPECT_EQ(noted.exit_code, 0) << noted.err;
  EXPECT_NE(noted.err.find("note: --batch 256 has no effect"), std::string::npos) << noted.err;
}

TEST_F(KeptOptions, AResumedIngestIsHeldToThemToo) {
  begin({});
  std::filesystem::rename(at("hay.hay"), at("hay.hay.part"));  // as an ingest leaves it that is killed before its end
  const std::vector<std::string> resume{"ingest", "-f", text_, "--save", at("hay.hay"), "--columns", "f16"};
  EXPECT_TRUE(refused_with(run_program(resume), 1, {"--columns f16", "int8"}));
}

TEST_F(ProgramTest, WhatIsAppendedIsReadByTheModelOfTheContext) {
  const std::string model = make_model();
  write(at("hay.txt"), "the hay");
  write(at("more.txt"), " and more of it");
  ASSERT_EQ(run_program({"ingest", "-m", model, "-f", at("hay.txt"), "--save", at("hay.hay")}).exit_code, 0);
  for (const char* way : {"--append", "--update"}) {
    const Outcome outcome = run_program({"ingest", way, at("hay.hay"), "-f", at("more.txt")});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

}  // namespace
}  // namespace hayloft::test

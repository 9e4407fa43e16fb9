// Streams that cannot be written, files named twice, and values that say something else than they seem to: nothing is
// lost, and every refusal is one line.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/program/program.h"

namespace hayloft::test {
namespace {

namespace fs = std::filesystem;

class StreamsTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string contents(const std::string& name) const {
    std::ifstream file(folder_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string context() const {
    std::string words;
    for (int i = 0; i < 300; ++i) words += "hay and straw and ";
    const std::string text = folder_.write("hay.txt", words);
    EXPECT_EQ(run_program({"ingest", "-f", text, "--save", at("hay.hay"), "--block-tokens", "64", "--batch", "256"})
                  .exit_code,
              0);
    return at("hay.hay");
  }
  static std::vector<std::string> needle(std::vector<std::string> more) {
    more.insert(more.begin(), {"needle", "-c", "512", "--depths", "1", "--attn", "dense"});
    return more;
  }

  TemporaryFolder folder_;
};

TEST_F(StreamsTest, HelpThatCannotBeWrittenIsAnError) {
  for (const std::vector<std::string>& asked : {std::vector<std::string>{"--help"}, {"plan", "--help-all"}}) {
    EXPECT_FALSE(run_program(asked).out.empty());
    EXPECT_TRUE(refused_with(run_program(asked, "exec >/dev/full"), 1, {"standard output cannot be written"}));
  }
}

TEST_F(StreamsTest, AStandardErrorThatCannotBeWrittenChangesNothing) {
  for (const char* shell : {"exec 2>/dev/full", "exec 2>&-"}) {
    const std::string file = at("needle.json");
    fs::remove(file);
    EXPECT_EQ(run_program(needle({"--json", file}), shell).exit_code, 0) << shell;
    EXPECT_TRUE(nlohmann::json::accept(contents("needle.json"))) << shell;
  }
}

TEST_F(StreamsTest, AStandardOutputThatIsFullLosesNoFile) {
  const Outcome outcome = run_program(needle({"--json", at("n.json"), "--plot", at("n.svg")}), "exec >/dev/full");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("standard output cannot be written"), std::string::npos) << outcome.err;
  EXPECT_TRUE(nlohmann::json::accept(contents("n.json")));
  EXPECT_NE(contents("n.svg").find("</svg>"), std::string::npos);
}

TEST_F(StreamsTest, AClosedStandardOutputIsNotTheNextFile) {
  const Outcome outcome = run_program({"eval", "-c", "512", "--samples", "1", "--tasks", "niah_single_1", "--digits",
                                       "6", "--attn", "dense", "--out", at("rows.jsonl")},
                                      "exec >&-");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(contents("rows.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(count, 2);  // the recipe, and a row
}

TEST_F(StreamsTest, AnOutputThatIsAnInputIsRefused) {
  const std::string saved = context();
  const std::string before = contents("hay.hay");
  fs::create_symlink(saved, at("link.hay"));
  fs::create_hard_link(saved, at("other.hay"));
  for (const std::string& out : {saved, at("link.hay"), at("other.hay")}) {
    EXPECT_TRUE(refused_with(run_program({"inspect", saved, "--json", out}), 2, {"--json", "written over", "context"}));
    EXPECT_TRUE(refused_with(run_program({"ask", saved, "-p", "x", "--audit-json", out}), 2, {"--audit-json"}));
    EXPECT_TRUE(refused_with(run_program({"generate", "--context", saved, "-p", "x", "--attention-stats", out}), 2,
                             {"--attention-stats", "--context"}));
  }
  EXPECT_EQ(contents("hay.hay"), before);
}

TEST_F(StreamsTest, AFileOfTheModelIsAnInput) {
  const fs::path model = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  const fs::path copy = folder_.path() / "model";
  fs::copy(model, copy, fs::copy_options::recursive);
  EXPECT_TRUE(refused_with(
      run_program({"generate", "-m", copy.string(), "-p", "x", "--audit-json", (copy / "config.json").string()}), 2,
      {"--audit-json", "--model"}));
  EXPECT_TRUE(nlohmann::json::accept(contents("model/config.json")));
}

TEST_F(StreamsTest, TwoOutputsInOneFileAreRefused) {
  const std::string out = at("out");
  EXPECT_TRUE(refused_with(run_program({"eval", "--out", out, "--json", out}), 2, {"--json", "--out"}));
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(StreamsTest, ValuesAreReadStrictly) {
  for (const char* seed : {"-1", "", "18446744073709551616", "0x10", "7 "}) {
    EXPECT_TRUE(refused_with(run_program(needle({std::string("--seed=") + seed})), 2, {"--seed"})) << seed;
  }
  for (const char* seconds : {"nan", "inf", "-1", "1s"}) {
    EXPECT_TRUE(refused_with(run_program({"ingest", "-f", "x", "--save", "y", "--checkpoint-seconds", seconds}), 2,
                             {"--checkpoint-seconds"}))
        << seconds;
  }
  for (const char* option : {"--profile", "--haystack", "--json"}) {
    EXPECT_TRUE(refused_with(run_program(needle({std::string(option) + "="})), 2, {option})) << option;
  }
}

TEST_F(StreamsTest, ALimitOfFileSizesIsAnErrorOfTheWrite) {
  const std::string text = folder_.write("hay.txt", std::string(40000, 'h'));
  const Outcome outcome =
      run_program({"ingest", "-f", text, "--save", at("h.hay"), "--block-tokens", "64"}, "ulimit -f 8");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
}

// The program waits for its question from a pipe, while the context that it has mapped is cut short.
TEST_F(StreamsTest, AContextThatIsCutShortWhileItIsOpenIsOneLine) {
  const std::string saved = context();
  const std::string pipe = at("questions");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Program asking({"ask", saved, "-n", "4", "--attn", "dense"}, "exec <" + pipe);
  const int questions = ::open(pipe.c_str(), O_WRONLY);  // once the program has opened it
  ASSERT_GE(questions, 0);
  while (asking.running() && asking.error_output().find("tokens\n") == std::string::npos) ::sched_yield();
  fs::resize_file(saved, 8192);
  ASSERT_EQ(::write(questions, "What is it?\n", 12), 12);
  ::close(questions);
  const Outcome outcome = asking.wait();
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("cut short"), std::string::npos) << outcome.err;
}

TEST_F(StreamsTest, JsonGoesIntoAPipeByName) {
  const Outcome outcome = run_program(needle({"--json", "/dev/stderr"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("\"schema\": \"hayloft.needle/"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace hayloft::test

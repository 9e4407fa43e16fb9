// Tests that what a file or a model says reaches a terminal without its control characters, and a pipe or a file as it
// is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/program/program.h"

namespace hayloft::test {
namespace {

namespace fs = std::filesystem;

// A pseudo-terminal: what is written to its name is read back here, and what is typed here is read from its name.
class Terminal {
 public:
  Terminal() : descriptor_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    EXPECT_GE(descriptor_, 0);
    EXPECT_EQ(::grantpt(descriptor_), 0);
    EXPECT_EQ(::unlockpt(descriptor_), 0);
    char name[256] = "";
    EXPECT_EQ(::ptsname_r(descriptor_, name, sizeof name), 0);
    name_ = name;
    held_ = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);  // so that what was written stays once the program has ended
  }
  ~Terminal() {
    ::close(held_);
    ::close(descriptor_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const std::string& name() const { return name_; }

  void type(const std::string& keys) {
    ASSERT_EQ(::write(descriptor_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  std::string written() {
    ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
    std::string text;
    char piece[4096];
    for (ssize_t got; (got = ::read(descriptor_, piece, sizeof piece)) > 0;) {
      text.append(piece, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int descriptor_;
  int held_ = -1;
  std::string name_;
};

constexpr const char* escape = "\x1b";
constexpr const char* replacement = "\xef\xbf\xbd";  // U+FFFD

class TerminalTest : public ::testing::Test {
 protected:
  // The bundled model, decoding every small letter and full stop as ESC, under a name that sets the title of a window.
  TerminalTest() {
    fs::copy(fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model", model_, fs::copy_options::recursive);
    const fs::path file = model_ / "tokenizer.json";
    auto tokenizer = nlohmann::json::parse(std::ifstream(file));
    tokenizer["decoder"] = {
        {"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"Regex", "[a-z.]"}}}, {"content", "\u011b"}}, tokenizer["decoder"]}}};
    std::ofstream(file) << tokenizer.dump();
    EXPECT_EQ(run_program({"ingest", "-m", model_, "-f", folder_.write("hay.txt", text), "--save", saved_}).exit_code,
              0);
  }

  static constexpr const char* text = "The grass is green. The sky is blue. The sun is yellow. Here we go. ";
  TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "m\x1b]0;title\x07odel";
  std::string saved_ = (folder_.path() / "hay.hay").string();
};

TEST_F(TerminalTest, TheNameOfAModelIsShownByInspect) {
  EXPECT_NE(run_program({"inspect", saved_, "--json", "-"}).out.find("\\u001b]0;title"), std::string::npos);
  Terminal terminal;
  ASSERT_EQ(run_program({"inspect", saved_}, "exec >" + terminal.name()).exit_code, 0);
  const std::string shown = terminal.written();
  EXPECT_EQ(shown.find(escape), std::string::npos) << shown;
  EXPECT_NE(shown.find(std::string("m") + replacement + "]0;title" + replacement + "odel"), std::string::npos) << shown;
}

TEST_F(TerminalTest, TheNameOfAModelIsShownInErrors) {
  fs::rename(model_, folder_.path() / "moved");
  Terminal terminal;
  EXPECT_EQ(run_program({"ask", saved_, "-p", "What?"}, "exec 2>" + terminal.name()).exit_code, 1);
  const std::string shown = terminal.written();
  EXPECT_EQ(shown.find(escape), std::string::npos) << shown;
  EXPECT_NE(shown.find("no longer at"), std::string::npos) << shown;
}

TEST_F(TerminalTest, GeneratedTextIsShownOnATerminalAndRawInAPipe) {
  const std::vector<std::string> generate{"generate", "-m", model_, "-p", text, "-n", "8", "--temp", "0"};
  const std::string raw = run_program(generate).out;
  ASSERT_NE(raw.find(escape), std::string::npos) << raw;
  Terminal terminal;
  ASSERT_EQ(run_program(generate, "exec >" + terminal.name()).exit_code, 0);
  const std::string shown = terminal.written();
  EXPECT_EQ(shown.find(escape), std::string::npos) << shown;
  EXPECT_NE(shown.find(replacement), std::string::npos) << shown;
}

TEST_F(TerminalTest, AnswersAreShownOnATerminal) {
  Terminal terminal;
  ASSERT_EQ(run_program({"ask", saved_, "-p", "The sky is", "-n", "8"}, "exec >" + terminal.name()).exit_code, 0);
  const std::string shown = terminal.written();
  EXPECT_EQ(shown.find(escape), std::string::npos) << shown;
  EXPECT_NE(shown.find(replacement), std::string::npos) << shown;
}

TEST_F(TerminalTest, LinesThatAreCutOrNoTextAreSaidAndPassedOver) {
  Terminal terminal;
  terminal.type(std::string(5000, 'a') + "\n\xFF\nThe sky is\n\x04");
  const Outcome outcome = Program({"ask", saved_, "-n", "8"}, "", terminal.name()).wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("line 1: a terminal cuts lines at 4095 bytes"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("line 2: is not UTF-8"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, run_program({"ask", saved_, "-p", "The sky is", "-n", "8"}).out);
}

TEST_F(TerminalTest, ATypedTextWithALineThatWasCutIsRefused) {
  Terminal terminal;
  terminal.type("The sky is\n" + std::string(5000, 'a') + "\n\x04");
  const Outcome outcome = Program({"generate", "-m", model_, "-f", "-", "-n", "4"}, "", terminal.name()).wait();
  EXPECT_TRUE(refused_with(outcome, 1, {"--file -, line 2: a terminal cuts lines at 4095 bytes"})) << outcome.err;
}

}  // namespace
}  // namespace hayloft::test

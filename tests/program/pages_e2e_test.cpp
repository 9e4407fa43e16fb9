#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Completions and manual pages, which the program makes from its own options.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

std::string output_of(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_program(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

bool is_there(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

// What a shell prints that runs `script`, both streams.
std::string shell(const std::string& command) {
  std::string text;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  char piece[1 << 12];
  for (std::size_t got; (got = std::fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, got);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
  return text;
}

std::set<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

class Completion : public testing::Test {
 protected:
  std::string script(const std::string& name) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << output_of({"--completion", name});
    return path;
  }
  // What bash offers behind `typed`, whose last word is being typed.
  std::set<std::string> bash(const std::string& typed) const {
    return words(shell("cd '" + std::string(folder_ / "") + "' && bash -c 'source ./bash; COMP_WORDS=(" + typed +
                       "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _hayloft; echo \"${COMPREPLY[@]}\"'"));
  }
  test::TemporaryFolder folder_;
};

TEST_F(Completion, OfBashKnowsCommandsOptionsAndTheirValues) {
  if (!is_there("bash")) GTEST_SKIP() << "no bash here";
  script("bash");
  std::ofstream(folder_ / "model.gguf") << "";
  EXPECT_EQ(bash("hayloft gen"), (std::set<std::string>{"generate"}));
  EXPECT_EQ(bash("hayloft --comp"), (std::set<std::string>{"--completion"}));
  EXPECT_EQ(bash("hayloft generate --n-pr"), (std::set<std::string>{"--n-predict"}));
  const std::set<std::string> methods = bash("hayloft needle --attn s");
  EXPECT_TRUE(methods.count("sparq")) << methods.size();
  EXPECT_EQ(bash("hayloft plan --rows int"), (std::set<std::string>{"int4", "int8"}));
  EXPECT_EQ(bash("hayloft ask --device c"), (std::set<std::string>{"cpu", "cuda"}));
  EXPECT_EQ(bash("hayloft generate -m mod"), (std::set<std::string>{"model.gguf"}));
  EXPECT_EQ(bash("hayloft ask mod"), (std::set<std::string>{"model.gguf"})) << "a context is a file";
  EXPECT_TRUE(bash("hayloft plan --ctx-size 4").empty()) << "a number is nobody's guess";
}

TEST_F(Completion, OfZshAndFishIsWhatTheseShellsRead) {
  const std::string zsh = script("zsh"), fish = script("fish");
  if (is_there("zsh")) {
    EXPECT_EQ(shell("zsh -n '" + zsh + "'"), "");
  }
  if (is_there("fish")) {
    const std::string source = "source " + fish + "; complete -C ";
    EXPECT_EQ(words(shell("fish -c '" + source + "\"hayloft gen\"'")).count("generate"), 1u);
    EXPECT_EQ(words(shell("fish -c '" + source + "\"hayloft generate --attn-r\"'")).count("--attn-r"), 1u);
    EXPECT_EQ(words(shell("fish -c '" + source + "\"hayloft plan --rows int\"'")).count("int8"), 1u);
  }
  EXPECT_TRUE(refused_with(run_program({"--completion", "tcsh"}), 2, {"--completion tcsh", "bash|zsh|fish"}));
}

TEST(ManualPage, OfEveryCommandHasEveryOption) {
  const std::string program = output_of({"--man", "hayloft"});
  const std::regex command("^\\\\fBhayloft\\\\-([a-z]+)\\\\fR\\(1\\)$");
  const std::regex option("^  (?:-\\w, |    )(--[a-z][a-z0-9-]*).*");
  std::istringstream lines(program);
  std::smatch match;
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, command)) continue;
    const std::string name = match[1];
    SCOPED_TRACE(name);
    ++commands;
    std::string page = output_of({"--man", name});
    EXPECT_EQ(page.rfind(".TH hayloft\\-" + name + " 1 ", 0), 0u) << page.substr(0, 100);
    for (std::size_t at; (at = page.find("\\-")) != std::string::npos;) page.erase(at, 1);
    std::istringstream help(output_of({name, "--help-all"}));
    for (std::string entry; std::getline(help, entry);) {
      std::smatch found;
      if (!std::regex_match(entry, found, option)) continue;
      EXPECT_NE(page.find("\\fB" + found[1].str() + "\\fR"), std::string::npos) << found[1];
    }
  }
  EXPECT_GE(commands, 12);
  EXPECT_TRUE(refused_with(run_program({"--man", "sing"}), 2, {"--man sing"}));
}

TEST(ManualPage, IsRoffThatGroffHasNothingToSayOf) {
  if (!is_there("groff")) GTEST_SKIP() << "no groff here";
  const test::TemporaryFolder folder;
  for (const char* command : {"hayloft", "generate", "plan", "attend"}) {
    const std::string path = folder / command;
    std::ofstream(path) << output_of({"--man", command});
    EXPECT_EQ(shell("groff -man -ww -z '" + path + "'"), "") << command;
  }
}

}  // namespace
}  // namespace hayloft

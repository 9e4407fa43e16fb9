#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Completions and manual pages, which are made of the program's own help.
namespace hayloft {
namespace {

using test::Outcome;
using test::run_program;

bool is_there(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

// Returns what a shell prints that runs `script`, both streams.
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

const std::string completion_files = HAYLOFT_SOURCE_DIR "/cmake/completions/";

class Completion : public ::testing::Test {
 protected:
  // Runs in a folder with a file, where `hayloft` is the program.
  std::string in_folder(const std::string& command) const {
    std::ofstream(folder_ / "model.gguf") << "";
    const std::string bin = std::filesystem::path(HAYLOFT_PROGRAM).parent_path();
    return shell("cd '" + std::string(folder_ / "") + "' && PATH='" + bin + "':$PATH && " + command);
  }
  // Returns what bash offers behind `typed`, whose last word is being typed, besides files.
  std::set<std::string> bash(const std::string& typed) const {
    return words(in_folder("bash -c 'source " + completion_files + "hayloft; COMP_WORDS=(" + typed +
                           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _hayloft hayloft; echo \"${COMPREPLY[@]}\"'"));
  }
  test::TemporaryFolder folder_;
};

TEST_F(Completion, OfBashKnowsCommandsOptionsAndTheirValues) {
  if (!is_there("bash")) GTEST_SKIP() << "no bash here";
  EXPECT_EQ(bash("hayloft gen"), (std::set<std::string>{"generate"}));
  EXPECT_EQ(bash("hayloft --list"), (std::set<std::string>{"--list-devices"}));
  EXPECT_EQ(bash("hayloft generate --n-pr"), (std::set<std::string>{"--n-predict"}));
  EXPECT_EQ(bash("hayloft needle --attn s"), (std::set<std::string>{"sparq"}));
  EXPECT_EQ(bash("hayloft plan --rows int"), (std::set<std::string>{"int4", "int8"}));
  EXPECT_EQ(bash("hayloft ask --device c"), (std::set<std::string>{"cpu", "cuda", "cuda:N"}));
  for (const char* file : {"hayloft generate -m mod", "hayloft ask mod", "hayloft plan --ctx-size 4"}) {
    EXPECT_TRUE(bash(file).empty()) << "a file, which bash itself completes: " << file;
  }
}

TEST_F(Completion, OfFishKnowsCommandsAndOptions) {
  if (!is_there("fish")) GTEST_SKIP() << "no fish here";
  const std::string source = "fish -c 'source " + completion_files + "hayloft.fish; complete -C ";
  EXPECT_EQ(in_folder(source + "\"hayloft gen\"'"), "generate\tContinue a text\n");
  EXPECT_EQ(words(in_folder(source + "\"hayloft generate --attn-r\"'")).count("--attn-r"), 1u);
  EXPECT_EQ(in_folder(source + "\"hayloft ask mod\"'"), "model.gguf\n");
}

TEST_F(Completion, OfZshIsWhatZshReads) {
  if (!is_there("zsh")) GTEST_SKIP() << "no zsh here";
  EXPECT_EQ(shell("zsh -n '" + completion_files + "_hayloft'"), "");
}

TEST(ManualPage, OfEveryCommandHasEveryOption) {
  if (!is_there("help2man")) GTEST_SKIP() << "no help2man here";
  const test::TemporaryFolder folder;
  shell("cmake -D program=" HAYLOFT_PROGRAM " -D help2man=help2man -D version=1 -D folder='" +
        std::string(folder / "") + "' -P " HAYLOFT_SOURCE_DIR "/cmake/WritePages.cmake");
  const std::regex option("^  (?:-\\w, |    )(--[a-z][a-z0-9-]*).*");
  int commands = 0;
  for (const auto& page : std::filesystem::directory_iterator(folder / "man1")) {
    const std::string name = page.path().stem();
    if (name == "hayloft") continue;
    SCOPED_TRACE(name);
    ++commands;
    std::ostringstream roff;
    roff << std::ifstream(page.path()).rdbuf();
    std::string text = roff.str();
    for (std::size_t at; (at = text.find("\\-")) != std::string::npos;) text.erase(at, 1);
    EXPECT_NE(text.find("\n.SH NAME\n" + name + " - "), std::string::npos);
    const Outcome help = run_program({name.substr(std::string("hayloft-").size()), "--help-all"});
    EXPECT_EQ(help.exit_code, 0) << help.err;
    std::istringstream lines(help.out);
    for (std::string entry; std::getline(lines, entry);) {
      std::smatch found;
      if (!std::regex_match(entry, found, option)) continue;
      EXPECT_NE(text.find("\\fB" + found[1].str() + "\\fR"), std::string::npos) << found[1];
    }
    if (is_there("groff")) {
      EXPECT_EQ(shell("groff -man -ww -z '" + page.path().string() + "'"), "");
    }
  }
  EXPECT_GE(commands, 12);
}

}  // namespace
}  // namespace hayloft

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/program/program.h"

// Tests what the program says of itself: --help, --help-all, --version.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::refused_with;
using test::run_program;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Standard output of what must succeed without a word on standard error.
std::string output_of(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_program(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << arguments.front();
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

// The names under "Commands:".
std::vector<std::string> commands() {
  std::vector<std::string> names;
  bool among_them = false;
  for (const std::string& line : lines_of(output_of({"--help"}))) {
    if (among_them && line.empty()) break;
    if (among_them) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    among_them = among_them || line == "Commands:";
  }
  EXPECT_GE(names.size(), 12u) << "hayloft --help lists its commands, a line each, under Commands:";
  return names;
}

// The first long name of every option that a help describes, in its order.
std::vector<std::string> options_in(const std::string& help) {
  static const std::regex entry("^  (?:-\\w, |    )(--[a-z][a-z0-9-]*).*");
  std::vector<std::string> names;
  std::smatch match;
  for (const std::string& line : lines_of(help)) {
    if (std::regex_match(line, match, entry)) names.push_back(match[1]);
  }
  return names;
}

void expect_fits_a_screen(const std::string& help) {
  const std::vector<std::string> lines = lines_of(help);
  EXPECT_LE(lines.size(), 45u) << help;
  for (const std::string& line : lines) EXPECT_LE(line.size(), 110u) << line;
}

TEST(Program, HelpOfEveryCommandFitsAScreenAndHasExamples) {
  for (const std::string& command : commands()) {
    SCOPED_TRACE(command);
    const std::string help = output_of({command, "--help"});
    expect_fits_a_screen(help);
    EXPECT_NE(help.find("Examples:\n  hayloft "), std::string::npos) << help;
    EXPECT_EQ(help.rfind("Usage: hayloft " + command, 0), 0u) << help;
    EXPECT_GE(options_in(help).size(), 3u) << help;
  }
}

TEST(Program, HelpShowsTheOptionsOfItsExamples) {
  static const std::regex option("--[a-z][a-z0-9-]*");
  for (const std::string& command : commands()) {
    const std::string help = output_of({command, "--help"});
    const std::size_t examples = help.find("Examples:\n");
    const std::vector<std::string> shown = options_in(help.substr(0, examples));
    for (const std::string& line : lines_of(help.substr(examples))) {
      const std::size_t at = line.find("hayloft " + command + " ");
      if (at == std::string::npos) continue;
      const std::string example = line.substr(at, line.find(" && ", at) - at);
      for (std::sregex_iterator each(example.begin(), example.end(), option), end; each != end; ++each) {
        EXPECT_EQ(std::count(shown.begin(), shown.end(), each->str()), 1) << each->str() << " of: " << line;
      }
    }
  }
}

TEST(Program, HelpAllShowsWhatHelpShowsAndTheRestOnce) {
  for (const std::string& command : commands()) {
    SCOPED_TRACE(command);
    const std::string text = output_of({command, "--help-all"});
    const std::vector<std::string> all = options_in(text);
    for (const std::string& name : options_in(output_of({command, "--help"}))) {
      EXPECT_EQ(std::count(all.begin(), all.end(), name), 1) << name;
    }
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
    for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 110u) << line;
  }
}

TEST(Program, ItsHelpFitsAScreenWithALinePerCommandAndTwoExamples) {
  const std::string help = output_of({"--help"});
  expect_fits_a_screen(help);
  const std::size_t examples = help.find("Examples:\n");
  ASSERT_NE(examples, std::string::npos);
  const std::vector<std::string> lines = lines_of(help.substr(examples));
  const auto is_example = [](const std::string& line) { return line.rfind("  hayloft ", 0) == 0; };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_example), 2);
}

TEST(Program, CommonOptionsComeInTheSameOrderInEveryCommand) {
  for (const char* flag : {"--help", "--help-all"}) {
    std::map<std::pair<std::string, std::string>, std::string> before;  // (first, second) -> a command that has them so
    for (const std::string& command : commands()) {
      const std::vector<std::string> names = options_in(output_of({command, flag}));
      for (auto first = names.begin(); first != names.end(); ++first) {
        for (auto second = first + 1; second != names.end(); ++second) {
          const auto other = before.find({*second, *first});
          EXPECT_TRUE(other == before.end()) << command << " " << flag << " has " << *first << " before " << *second
                                             << ", " << other->second << " behind it";
          before.emplace(std::pair(*first, *second), command);
        }
      }
    }
  }
}

TEST(Program, WhatFewPeopleNeedIsInHelpAllOnly) {
  const std::string few = output_of({"generate", "--help"});
  const std::string all = output_of({"generate", "--help-all"});
  for (const char* name : {"--attn-tau", "--prefill-sinks", "--kv-host", "--min-p", "--audit-json"}) {
    EXPECT_EQ(few.find(name), std::string::npos) << name;
    EXPECT_NE(all.find(name), std::string::npos) << name;
  }
  for (const char* heading :
       {"Model:", "Text:", "Context:", "Sampling:", "Attention:", "Memory:", "Device:", "Output:"}) {
    EXPECT_NE(all.find(std::string("\n") + heading + "\n"), std::string::npos) << heading;
  }
  const std::string everything = output_of({"--help-all"});
  for (const std::string& command : commands()) {
    EXPECT_NE(everything.find("\nUsage: hayloft " + command + " "), std::string::npos) << command;
  }
}

// README and docs: every flag on a line that begins with `hayloft COMMAND` is one of that command's.
TEST(Program, KnowsEveryOptionThatTheDocumentationGivesIt) {
  std::map<std::string, std::set<std::string>> known;
  std::vector<fs::path> files{fs::path(HAYLOFT_SOURCE_DIR) / "README.md"};
  for (const auto& entry : fs::directory_iterator(fs::path(HAYLOFT_SOURCE_DIR) / "docs")) {
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  }
  const std::regex call("^(?:\\$ | {4})?hayloft ([a-z]+) (.*)"), flag("(?:^| )(--[a-z][a-z0-9-]*)");
  const std::vector<std::string> names = commands();
  int seen = 0;
  for (const fs::path& file : files) {
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) {
      line = line.substr(0, line.find(" && "));
      std::smatch match;
      if (!std::regex_match(line, match, call)) continue;
      const std::string command = match[1], rest = match[2];
      if (std::find(names.begin(), names.end(), command) == names.end()) continue;
      if (!known.contains(command)) {
        const std::string help = output_of({command, "--help-all"});
        for (std::sregex_iterator it(help.begin(), help.end(), flag), end; it != end; ++it) {
          known[command].insert((*it)[1]);
        }
      }
      for (std::sregex_iterator it(rest.begin(), rest.end(), flag), end; it != end; ++it, ++seen) {
        EXPECT_TRUE(known[command].contains((*it)[1])) << file << ": hayloft " << command << " " << (*it)[1];
      }
    }
  }
  EXPECT_GE(seen, 20);
}

TEST(Program, ItsVersionNamesWhatItWasBuiltWithAndWhatItRunsOn) {
  const std::string version = output_of({"--version"});
  EXPECT_TRUE(std::regex_match(lines_of(version).front(), std::regex("hayloft \\d+\\.\\d+\\.\\d+"))) << version;
  for (const char* line : {"\ncompiler +(GCC|Clang) \\d+\\.[^\n]* build", "\nCUDA +(\\d+\\.\\d+|absent: [^\n]+)",
                           "\nFaiss +\\d+\\.\\d+\\.\\d+\n", "\nBLAS +OpenBLAS \\d+\\.\\d+[^\n]+\n",
                           "\ninstruction set +[A-Z][A-Z0-9_]+\n"}) {
    EXPECT_TRUE(std::regex_search(version, std::regex(line))) << line << " is not in\n" << version;
  }
  const bool has_cuda = output_of({"--list-devices"}).find("has no CUDA backend") == std::string::npos;
  EXPECT_EQ(version.find("absent") == std::string::npos, has_cuda) << version;
}

TEST(Program, WithoutACommandNamesThem) {
  EXPECT_TRUE(refused_with(run_program({}), 2, {"a command is needed", "generate", "inspect", "hayloft --help"}));
}

TEST(Program, AFlagThatNoMethodUsesIsNoted) {
  const Outcome outcome =
      run_program({"plan", "--shape", "2,4,2,32", "-c", "4k", "--attn", "dense,topk", "--attn-r", "8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("note: --attn-r has no effect: not used by dense, topk, but by sparq, lowrank, auto\n"),
            std::string::npos)
      << outcome.err;
  const Outcome used =
      run_program({"plan", "--shape", "2,4,2,32", "-c", "4k", "--attn", "dense,sparq", "--attn-r", "8"});
  EXPECT_EQ(used.err.find("has no effect"), std::string::npos) << used.err;
  EXPECT_TRUE(refused_with(run_program({"plan", "--shape", "2,4,2,32", "--attn", "dense:r=8"}), 2,
                           {"--attn dense:r=8: dense does not use 'r'"}));
}

}  // namespace
}  // namespace hayloft

#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/program/ranks_fixture.h"

// A text, and contexts of it that `mpirun hayloft ingest` saves in shards.
namespace hayloft::test {

class SavedRanksTest : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    std::string text;
    for (int i = 0; i < 60; ++i) text += "The hay is in the loft. The cat sleeps on the hay. ";
    write(at("text.txt"), text + "The special magic number for brave harbor is 482913. " + text);
  }

  std::vector<std::string> ingest(const std::string& context) const {
    return {"ingest", "-f", at("text.txt"), "--save", context, "--block-tokens", "64", "--batch", "64"};
  }
  static std::vector<std::string> ask(const std::string& context) {
    return {"ask", context, "-p", "The special magic number for brave harbor is", "-n", "8", "--attn", "dense"};
  }
  static nlohmann::json inspected(const std::string& context) {
    const Outcome outcome = run_program({"inspect", context, "--verify", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.exit_code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json::object();
  }
  std::vector<std::string> files_of(const std::string& name) const {
    std::vector<std::string> files;
    for (const std::string& file : left_behind()) {
      if (file.starts_with(name + ".")) files.push_back(file);
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  static std::vector<std::string> program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), HAYLOFT_PROGRAM);
    return arguments;
  }
};

}  // namespace hayloft::test

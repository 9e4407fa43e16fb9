#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Tests what a newcomer tries first: habits from llama.cpp, a folder of code, no options at all.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

TEST(LlamaHabits, GetALineOnWhatToUseHere) {
  const auto generate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-p", "hay"});
    return run_program(more);
  };
  EXPECT_TRUE(refused_with(generate({"-ngl", "99"}), 2, {"-ngl is an option of llama.cpp", "--gpu-memory"}));
  EXPECT_TRUE(
      refused_with(generate({"--n-gpu-layers=99"}), 2, {"--n-gpu-layers is an option", "hayloft generate --help"}));
  EXPECT_TRUE(refused_with(generate({"-fa"}), 2, {"-fa is an option of llama.cpp", "--attn"}));
  EXPECT_TRUE(refused_with(generate({"-ctk", "q8_0"}), 2, {"-ctk", "--rows int8"}));
  EXPECT_TRUE(refused_with(generate({"-nkvo"}), 2, {"-nkvo", "in host memory always"}));
  for (const char* option : {"--mlock", "--no-mmap", "-ub", "-sm"}) {
    EXPECT_TRUE(refused_with(generate({option}), 2, {option, "llama.cpp"})) << option;
  }
}

TEST(LlamaHabits, AreNoneWhereTheCommandHasTheOptionOrTheyAreText) {
  const Outcome text = run_program({"generate", "-p", "-ngl", "-m", "/nowhere/model.gguf"});
  EXPECT_EQ(text.err.find("llama.cpp"), std::string::npos) << text.err;
  EXPECT_TRUE(refused_with(run_program({"generate", "--nonsense"}), 2, {"--nonsense"}));
}

class IngestFolder : public ::testing::Test {
 protected:
  IngestFolder() {
    write("code/main.cpp", "int main() {}\n");
    write("code/lib/b.h", "#pragma once");
    write("code/lib/a.h", "// a\n");
    write("code/README.md", "Read me.\n");
    write("code/logo.png", std::string("\x89PNG\0\0", 6));
    write("code/latin.txt", "caf\xe9\n");
    write("code/.git/config", "[core]\n");
    std::filesystem::create_symlink("main.cpp", path("code/link.cpp"));
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string digest(const std::string& context) const {
    const Outcome outcome = run_program({"inspect", path(context), "--verify", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["content_digest"];
  }
  test::TemporaryFolder folder_;
};

TEST_F(IngestFolder, IsTheTextOfItsFilesInOrderEachUnderItsPath) {
  const Outcome whole = run_program({"ingest", "--device", "cpu", "-f", path("code"), "--save", path("code.hay")});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NE(whole.err.find("code: 4 files, "), std::string::npos) << whole.err;
  EXPECT_NE(whole.err.find("; left out: 2 are no text (latin.txt, logo.png); 1 hidden; 1 symbolic link\n"),
            std::string::npos)
      << whole.err;
  write(
      "expected.txt",
      "=== README.md ===\nRead me.\n\n=== lib/a.h ===\n// a\n\n=== lib/b.h ===\n#pragma once\n\n=== main.cpp ===\nint "
      "main() {}\n\n");
  ASSERT_EQ(
      run_program({"ingest", "--device", "cpu", "-f", path("expected.txt"), "--save", path("text.hay")}).exit_code, 0);
  EXPECT_EQ(digest("code.hay"), digest("text.hay"));
}

TEST_F(IngestFolder, TakesWhatPatternsNameAlone) {
  const Outcome some = run_program({"ingest", "--device", "cpu", "-f", path("code"), "--include", "*.h", "--include",
                                    "main.*", "--save", path("some.hay")});
  ASSERT_EQ(some.exit_code, 0) << some.err;
  EXPECT_NE(some.err.find("code: 3 files, "), std::string::npos) << some.err;
  EXPECT_NE(some.err.find("3 not of --include"), std::string::npos) << some.err;
  write("expected.txt",
        "=== lib/a.h ===\n// a\n\n=== lib/b.h ===\n#pragma once\n\n=== main.cpp ===\nint main() {}\n\n");
  ASSERT_EQ(
      run_program({"ingest", "--device", "cpu", "-f", path("expected.txt"), "--save", path("text.hay")}).exit_code, 0);
  EXPECT_EQ(digest("some.hay"), digest("text.hay"));
  EXPECT_TRUE(refused_with(run_program({"ingest", "-f", path("code"), "--include", "*.rs", "--save", path("none.hay")}),
                           1, {"code", "no file"}));
  EXPECT_TRUE(
      refused_with(run_program({"ingest", "-f", path("code/main.cpp"), "--include", "*.h", "--save", path("none.hay")}),
                   2, {"--include", "folder"}));
}

// 16 KB of text: its keys and values are two thirds of a megabyte for each of the bundled model's sliding windows less.
TEST_F(IngestFolder, AShortTextIsASmallFileThatIsOpenedWithoutReadingItAgain) {
  std::string text;
  while (text.size() < 6000) text += "The old mill by the river turns its wheel and nobody asks it why. ";
  write("short.txt", text);
  ASSERT_EQ(run_program({"ingest", "--device", "cpu", "-f", path("short.txt"), "--save", path("short.hay")}).exit_code,
            0);
  const Outcome inspected = run_program({"inspect", path("short.hay"), "--json", "-"});
  const nlohmann::json json = nlohmann::json::parse(inspected.out);
  EXPECT_TRUE(json["indices"].empty()) << json["indices"];
  const auto tokens = json["tokens"].get<std::uint64_t>();
  EXPECT_LT(tokens, 2048u) << "less than a chunk";
  // K and V of two heads of 64 components in 16 bits: in the global layer of every token, in three others of 32.
  const std::uint64_t rows = (tokens + 3 * 33) * 2 * 2 * 64 * 2;
  EXPECT_LT(json["bytes"], rows + 20 * 4096);
}

TEST(EvalWithoutOptions, AsksTheBundledModelWhatItHasLearned) {
  const Outcome outcome =
      run_program({"eval", "--device", "cpu", "-c", "1k", "--samples", "4", "--attn", "dense", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("note:"), std::string::npos) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["recipe"]["digits"], 6) << outcome.out.substr(0, 2000);
  int hits = 0, rows = 0;
  for (const nlohmann::json& row : report["rows"]) {
    ++rows;
    hits += row["score"] == 1;
  }
  EXPECT_EQ(rows, 12) << "three tasks";
  EXPECT_GE(hits, 11);
  const Outcome other = run_program(
      {"eval", "--device", "cpu", "-c", "512", "--samples", "1", "--attn", "dense", "--tasks", "vt", "--no-recall"});
  EXPECT_NE(other.err.find("note: the bundled model was not taught vt"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace hayloft

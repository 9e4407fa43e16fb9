#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/program/program.h"

// No command writes over what it reads, by whatever name, and no two outputs are one file.
namespace hayloft::test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class FileRolesTest : public ::testing::Test {
 protected:
  FileRolesTest() {
    folder_.write("hay.txt", "The quiet hay lies in the loft. The grass is green. ");
    EXPECT_EQ(run_program({"ingest", "-f", at("hay.txt"), "--save", saved_}).exit_code, 0);
    before_ = contents(saved_);
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void refuses(const Arguments& arguments, const Arguments& parts, const std::string& input = "/dev/null") const {
    const Outcome outcome = Program(arguments, "", input).wait();
    EXPECT_TRUE(refused_with(outcome, 2, parts)) << ::testing::PrintToString(arguments);
    EXPECT_EQ(contents(saved_), before_) << ::testing::PrintToString(arguments);
  }

  TemporaryFolder folder_;
  const std::string saved_ = at("hay.hay");
  std::string before_;
};

TEST_F(FileRolesTest, AContextIsNoTextForItself) {
  fs::create_symlink(saved_, at("link.hay"));
  fs::create_symlink(folder_.path(), at("elsewhere"));
  fs::create_hard_link(saved_, at("other.hay"));
  fs::create_directory(at("below"));
  const Arguments names{saved_,          at("link.hay"),          at("other.hay"),           at("below/../hay.hay"),
                        at("./hay.hay"), at("elsewhere/hay.hay"), "/proc/self/root" + saved_};
  for (const std::string& name : names) {
    for (const char* writes : {"--update", "--append", "--save"}) {
      refuses({"ingest", "-f", name, writes, saved_}, {writes, "written over", "--file", "which is read"});
      refuses({"ingest", "-f", at("hay.txt"), name, writes, saved_}, {writes, "written over", "--file"});
    }
  }
}

TEST_F(FileRolesTest, NorIsItInAFolderOrOnStandardInput) {
  fs::create_directories(at("texts/deep"));
  fs::create_hard_link(saved_, at("texts/deep/hay.hay"));
  folder_.write("texts/a.txt", "Hay.");
  refuses({"ingest", "-f", at("texts"), "--update", saved_}, {"--update", "--file", "which is read"});
  refuses({"ingest", "-f", folder_.path().string(), "--append", saved_}, {"--append", "--file", "which is read"});
  refuses({"ingest", "-f", "-", "--update", saved_}, {"--update", "standard input"}, saved_);
  refuses({"ingest", "-f", "/dev/stdin", "--update", saved_}, {"--update"}, saved_);
  // What is not read of the folder may be written.
  const Outcome chosen =
      run_program({"ingest", "-f", at("texts"), "--include", "*.txt", "--update", at("texts/deep/hay.hay")});
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
}

TEST_F(FileRolesTest, WhatLiesBesideAContextIsPartOfIt) {
  folder_.write("new.hay.part", "a text of this name");
  refuses({"ingest", "-f", at("new.hay.part"), "--save", at("new.hay")}, {"--save", "beside", "--file"});
  refuses({"ask", saved_, "-p", "x", "--audit-json", saved_ + ".hot"}, {"--audit-json", "context"});
  refuses({"eval", "--text", at("hay.txt"), "--json", at("hay.txt")}, {"--json", "--text"});
  // A shard by its name, whatever is in it.
  const std::string shard = saved_ + ".5f3a9c2100d7e1b4.1of2";
  std::ofstream(shard) << "a shard";
  refuses({"generate", "--context", saved_, "-p", "x", "--audit-json", shard}, {"--audit-json", "--context"});
  EXPECT_EQ(contents(shard), "a shard");
}

TEST_F(FileRolesTest, AnOutputIsNeitherTheKeptProfileNorTheBundledModelNorStandardInput) {
  fs::create_directories(at("cache/hayloft"));
  folder_.write("cache/hayloft/profile.json", "{}");
  const std::string cache = "export XDG_CACHE_HOME=" + at("cache");
  const std::string profile = at("cache/hayloft/profile.json");
  for (const Arguments& arguments :
       {Arguments{"needle", "--json", profile}, Arguments{"bench", "--shape", "1,1,1,32", "--json", profile},
        Arguments{"link", "--json", profile}}) {
    EXPECT_TRUE(refused_with(run_program(arguments, cache), 2, {"--json", "written over", "profile"}));
  }
  EXPECT_EQ(contents(profile), "{}");
  folder_.write("questions", "Where is the hay?\n");
  refuses({"ask", saved_, "--audit-json", at("questions")}, {"--audit-json", "standard input"}, at("questions"));
  EXPECT_EQ(contents(at("questions")), "Where is the hay?\n");
}

TEST_F(FileRolesTest, AFileIsNotWrittenToStandardOutput) {
  for (const Arguments& arguments :
       {Arguments{"ingest", "-f", at("hay.txt"), "--save", "-"}, Arguments{"export", saved_, "--out", "-"},
        Arguments{"eval", "-c", "1k", "--out", "-"}, Arguments{"link", "--profile", "-"}}) {
    EXPECT_TRUE(refused_with(run_program(arguments, "cd " + folder_.path().string()), 2,
                             {" -: is written to a file, and not to standard output"}))
        << arguments.front();
  }
  EXPECT_FALSE(fs::exists(at("-")));
}

TEST_F(FileRolesTest, ALinkThatLeadsInACircleCannotBeReadWhereItIsRead) {
  fs::create_symlink(at("round"), at("round"));
  EXPECT_TRUE(refused_with(run_program({"ingest", "-f", at("round"), "--save", at("new.hay")}), 1,
                           {"--file " + at("round"), "cannot be read", "symbolic links"}));
  EXPECT_TRUE(refused_with(run_program({"inspect", at("round")}), 1, {at("round"), "cannot be opened"}));
  EXPECT_TRUE(refused_with(run_program({"inspect", saved_, "--json", at("round")}), 1, {"cannot be written"}));
}

}  // namespace
}  // namespace hayloft::test

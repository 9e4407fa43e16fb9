#include "offload/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "offload/error.h"
#include "offload/temporary_file.h"

namespace hayloft::offload {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "hayloft-output-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }

  fs::path folder_;
};

TEST_F(OutputFileTest, AppearsWholeWhenCommitted) {
  OutputFile file(folder_ / "out.json");
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(folder_ / "out.json"));
  file.commit();
  EXPECT_EQ(contents(folder_ / "out.json"), "one two");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, LeavesNothingBehindWithoutCommit) {
  {
    OutputFile file(folder_ / "out.json");
    file.write("half");
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(OutputFileTest, KeepsTheOldFileUntilTheNewOneIsCommitted) {
  put(folder_ / "out.json", "old");
  {
    OutputFile file(folder_ / "out.json");
    file.write("half");
  }
  EXPECT_EQ(contents(folder_ / "out.json"), "old");
  OutputFile file(folder_ / "out.json");
  file.write("new");
  file.commit();
  EXPECT_EQ(contents(folder_ / "out.json"), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, WritesThroughASymbolicLinkInsteadOfReplacingIt) {
  put(folder_ / "real", "old");
  fs::create_symlink("real", folder_ / "link");
  OutputFile file(folder_ / "link");
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(contents(folder_ / "real"), "new");
}

TEST_F(OutputFileTest, CreatesWhatADanglingSymbolicLinkLeadsTo) {
  fs::create_symlink("real", folder_ / "link");
  OutputFile file(folder_ / "link");
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(contents(folder_ / "real"), "new");
}

TEST_F(OutputFileTest, RefusesLinksInACircle) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  EXPECT_THROW(require_writable(folder_ / "a"), Error);
}

TEST_F(OutputFileTest, KeepsThePermissionsOfTheFileItReplaces) {
  put(folder_ / "secret", "old");
  fs::permissions(folder_ / "secret", fs::perms::owner_read | fs::perms::owner_write);
  OutputFile file(folder_ / "secret");
  file.write("new");
  file.commit();
  EXPECT_EQ(fs::status(folder_ / "secret").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(OutputFileTest, WritesADescriptorOfThisProcessWhereItStands) {
  const fs::path target = folder_ / "out";
  const int descriptor = ::open(target.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::write(descriptor, "one ", 4), 4);
  {
    OutputFile file("/dev/fd/" + std::to_string(descriptor));
    file.write("two");
    file.commit();
  }
  ::close(descriptor);
  EXPECT_EQ(contents(target), "one two");
  EXPECT_THROW(require_writable("/dev/fd/" + std::to_string(descriptor)), Error);
}

TEST_F(OutputFileTest, RemovesWhatAKilledProcessLeftAndNothingElse) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_GT(gone, 0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const std::string abandoned = ".out.json." + std::to_string(gone) + ".0.partial";
  const std::string held = ".out.json." + std::to_string(gone) + ".1.partial";
  const std::string own = ".out.json." + std::to_string(::getpid()) + ".1234567.partial";
  const std::string other = ".other." + std::to_string(gone) + ".0.partial";
  for (const std::string& name : {abandoned, held, own, other}) put(folder_ / name, "half");
  const int holder = ::open((folder_ / held).c_str(), O_RDONLY);
  hold_temporary(holder);

  require_writable(folder_ / "out.json");
  EXPECT_FALSE(fs::exists(folder_ / abandoned));
  EXPECT_TRUE(fs::exists(folder_ / held));
  EXPECT_TRUE(fs::exists(folder_ / own));
  EXPECT_TRUE(fs::exists(folder_ / other));
  ::close(holder);
}

TEST_F(OutputFileTest, WritesADeviceInPlace) {
  OutputFile file("/dev/null");
  file.write("gone");
  file.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(OutputFileTest, RefusesAFolderAndAMissingFolderByName) {
  for (const fs::path& path : {folder_, folder_ / "", folder_ / "missing" / "out.json"}) {
    try {
      require_writable(path);
      ADD_FAILURE() << path << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(OutputFileTest, SaysThatTheDiskIsFull) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  OutputFile file("/dev/full");
  EXPECT_THROW(file.write("anything"), Error);
}

TEST_F(OutputFileTest, AskingWhetherAPlaceIsWritableTouchesNothing) {
  put(folder_ / "out.json", "old");
  require_writable(folder_ / "out.json");
  require_writable(folder_ / "other.json");
  EXPECT_EQ(contents(folder_ / "out.json"), "old");
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace hayloft::offload

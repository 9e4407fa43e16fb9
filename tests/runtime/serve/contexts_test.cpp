#include "runtime/serve/contexts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "offload/error.h"
#include "offload/snapshot/shards.h"
#include "runtime/context/hot_file.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

namespace fs = std::filesystem;

class ContextsTest : public ::testing::Test {
 protected:
  static void write(const fs::path& path, std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  // A context in two shards, with what is noted of its reads.
  void add_sharded(const std::string& name, std::uint64_t saving) const {
    const fs::path path = contexts.path(name);
    for (int i = 0; i < 2; ++i) write(offload::shard_path(path, saving, {i, 2}), {});
    write(runtime::hot_file_of(path), {});
    write(path, offload::encode_manifest({.saving = saving, .shards = 2, .tokens = 7}));
  }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder.path()), {}); }

  const test::TemporaryFolder folder;
  const Contexts contexts{folder.path()};
};

TEST_F(ContextsTest, WhatIsRemovedLeavesNoFileAndTouchesNoOther) {
  add_sharded("book", 1);
  add_sharded("book2", 2);
  EXPECT_TRUE(contexts.remove("book"));
  EXPECT_FALSE(contexts.contains("book"));
  EXPECT_EQ(files(), 4);
  EXPECT_FALSE(contexts.remove("book"));
  EXPECT_TRUE(contexts.remove("book2"));
  EXPECT_EQ(files(), 0);
}

TEST_F(ContextsTest, ADamagedManifestIsRemovedWithoutShards) {
  add_sharded("book", 1);
  const fs::path path = contexts.path("book");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(20).put('x');
  file.close();
  EXPECT_TRUE(contexts.remove("book"));
  EXPECT_EQ(files(), 2);
}

TEST_F(ContextsTest, WhatIsNoContextIsLeftAlone) {
  fs::create_directory(contexts.path("folder"));
  ASSERT_EQ(::mkfifo(contexts.path("pipe").c_str(), 0600), 0);
  fs::create_symlink(folder.path(), contexts.path("elsewhere"));
  fs::create_symlink(contexts.path("round"), contexts.path("round"));
  for (const char* name : {"folder", "pipe", "elsewhere", "round"}) {
    EXPECT_FALSE(contexts.contains(name)) << name;
    EXPECT_FALSE(contexts.remove(name)) << name;
    EXPECT_TRUE(fs::exists(fs::symlink_status(contexts.path(name)))) << name;
  }
  folder.write("model.hay", "GGUF and so on");
  folder.write("empty.hay", "");
  folder.write("long.hay", std::string(20000, 'x'));
  for (const char* name : {"model", "empty", "long"}) {
    try {
      contexts.remove(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no saved context"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(fs::exists(contexts.path(name))) << name;
  }
}

TEST_F(ContextsTest, WhatLiesBesideAContextWithoutBelongingToItStays) {
  add_sharded("book", 1);
  fs::remove(runtime::hot_file_of(contexts.path("book")));
  fs::create_directory(runtime::hot_file_of(contexts.path("book")));
  EXPECT_TRUE(contexts.remove("book"));
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace hayloft::runtime::serve

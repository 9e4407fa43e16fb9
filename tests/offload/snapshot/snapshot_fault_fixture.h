#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/snapshot_fixture.h"
#include "tests/support/temporary_folder.h"

// A file that is written in steps of some tokens, and what it must hold whatever happened on the way.
namespace hayloft::offload {

using test::small_description;
using test::SmallContext;

inline constexpr std::int64_t kTokens = 120;  // what every run in the end has read
inline constexpr std::int64_t kStep = 13;

inline SnapshotCalls without_sync() {  // where nothing depends on it, since it takes milliseconds
  SnapshotCalls calls = system_calls();
  calls.sync = [](int) { return 0; };
  return calls;
}

// An index of sorts, which knows how many tokens it is for; over a page, so that it can be torn.
inline SnapshotAttachment index_of(std::int64_t tokens) {
  return {"index", std::vector<std::byte>(5000, static_cast<std::byte>(tokens))};
}

class SnapshotFaultTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const std::filesystem::path part_ = folder_ / "ctx.hay.part";
  const std::filesystem::path final_ = folder_ / "ctx.hay";
  const Topology topology_;
  Arena arena_{topology_, ArenaOptions{std::uint64_t{64} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};
  std::map<std::int64_t, std::string> digests_;

  const std::string& digest_of(std::int64_t tokens) {
    std::string& digest = digests_[tokens];
    if (digest.empty()) {
      SmallContext context(arena_);
      context.grow_to(tokens);
      digest = context.digest();
    }
    return digest;
  }

  // Goes on from the last checkpoint to the end, as a program does that is run again.
  void complete(SnapshotWriter writer, const std::function<void(std::int64_t)>& saved = {}) {
    SmallContext context(arena_, writer.snapshot());
    for (std::int64_t at = writer.token_count(); at < kTokens;) {
      context.grow_to(at = std::min(kTokens, at + kStep));
      context.save(writer, std::vector{index_of(at)});
      if (saved) saved(at);
    }
    writer.finish(final_);
  }

  void expect_complete() {
    const Snapshot snapshot = Snapshot::open(final_);
    snapshot.verify();
    EXPECT_EQ(snapshot.content_digest(), digest_of(kTokens));
    EXPECT_FALSE(std::filesystem::exists(part_));
  }

  // The file's content is that of its number of tokens, which is returned.
  std::int64_t expect_whole(const std::filesystem::path& path) {
    const Snapshot snapshot = Snapshot::open(path, Snapshot::Accept::unfinished);
    snapshot.verify();
    EXPECT_EQ(snapshot.content_digest(), digest_of(snapshot.token_count()));
    if (const auto index = snapshot.attachment("index")) {
      EXPECT_TRUE(std::ranges::equal(*index, index_of(snapshot.token_count()).bytes));
    }
    return snapshot.token_count();
  }
};

}  // namespace hayloft::offload

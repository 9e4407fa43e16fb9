#include <unistd.h>

#include "tests/offload/snapshot/snapshot_fault_fixture.h"

// Files that are written together go back to the checkpoint that all of them have.
namespace hayloft::offload {
namespace {

struct Killed {};

class TakeBackTest : public SnapshotFaultTest {
 protected:
  // With checkpoints at 0, 13, 26 and 39 tokens.
  void write() {
    SnapshotWriter writer = SnapshotWriter::create(part_, test::small_description(), true, without_sync());
    SmallContext context(arena_);
    for (std::int64_t at = kStep; at <= 3 * kStep; at += kStep) {
      context.grow_to(at);
      context.save(writer, std::vector{index_of(at)});
    }
  }
};

TEST_F(TakeBackTest, TheCheckpointBeforeTheLastIsThatOfTheFileAgain) {
  write();
  {
    SnapshotWriter writer = SnapshotWriter::open_to_append(part_, without_sync());
    EXPECT_EQ(writer.sequence(), 4u);
    EXPECT_TRUE(writer.take_back());
    EXPECT_EQ(writer.sequence(), 3u);
    EXPECT_EQ(writer.token_count(), 2 * kStep);
    EXPECT_FALSE(writer.take_back()) << "only one is kept";
  }
  EXPECT_EQ(expect_whole(part_), 2 * kStep);
  complete(SnapshotWriter::open_to_append(part_, without_sync()));
  expect_complete();
}

TEST_F(TakeBackTest, AFileThatWasJustBegunHasNothingToGoBackTo) {
  SnapshotWriter writer = SnapshotWriter::create(part_, test::small_description(), true, without_sync());
  EXPECT_FALSE(writer.take_back());
  SmallContext context(arena_);
  context.grow_to(kStep);
  context.save(writer);
  EXPECT_TRUE(writer.take_back());
  EXPECT_EQ(writer.token_count(), 0);
}

// A process that is killed while it goes back, or writes the next checkpoint over the one that was taken back, leaves
// one of them.
TEST_F(TakeBackTest, AKillAtAnyCallLeavesACheckpoint) {
  bool ended = false;
  for (int call = 0; !ended; ++call) {
    SCOPED_TRACE(call);
    write();
    int left = call;
    const auto counted = [&left] {
      if (left-- == 0) throw Killed();
    };
    SnapshotCalls calls;
    calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) {
      counted();
      return ::pwrite(descriptor, data, bytes, offset);
    };
    calls.sync = [&](int) {
      counted();
      return 0;
    };
    calls.resize = [&](int descriptor, off_t bytes) {
      counted();
      return ::ftruncate(descriptor, bytes);
    };
    try {
      SnapshotWriter writer = SnapshotWriter::open_to_append(part_, calls);
      writer.take_back();
      SmallContext context(arena_, writer.snapshot());
      context.grow_to(3 * kStep);
      context.save(writer, std::vector{index_of(3 * kStep)});
      ended = true;
    } catch (const Killed&) {
    }
    const std::int64_t tokens = expect_whole(part_);
    EXPECT_TRUE(tokens == 2 * kStep || tokens == 3 * kStep) << tokens;
    complete(SnapshotWriter::open_to_append(part_, without_sync()));
    expect_complete();
  }
}

}  // namespace
}  // namespace hayloft::offload

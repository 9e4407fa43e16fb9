// The disk fills up or fails while a file is being written: the file then holds its last checkpoint or the one that was
// being written, whole.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>

#include "tests/offload/snapshot/snapshot_fault_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;

// Returns what a message says of a checkpoint at so many tokens.
std::string kept(std::int64_t tokens) {
  return tokens == 0 ? "nothing was saved" : fmt::format("the checkpoint at {} tokens is kept", tokens);
}

TEST_F(SnapshotFaultTest, AFullDiskKeepsTheLastCheckpointAndTheSameCommandGoesOnOnceThereIsRoom) {
  struct Limit {  // of the size of this process' files, put back at the end
    Limit() {
      ::getrlimit(RLIMIT_FSIZE, &before);
      handler = ::signal(SIGXFSZ, SIG_IGN);
    }
    ~Limit() {
      set(before.rlim_cur);
      ::signal(SIGXFSZ, handler);
    }
    void set(rlim_t bytes) const {
      const rlimit limit{bytes, before.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    rlimit before{};
    void (*handler)(int) = nullptr;
  } const limit;

  int full = 0;
  for (rlim_t bytes = 20000; bytes < 400000; bytes += 9973) {
    SCOPED_TRACE(bytes);
    std::filesystem::remove(final_);
    { const SnapshotWriter created = SnapshotWriter::create(part_, small_description(), false, without_sync()); }
    std::int64_t saved = 0;
    std::string message;
    limit.set(bytes);
    try {
      complete(SnapshotWriter::open_to_append(part_, without_sync()), [&](std::int64_t tokens) { saved = tokens; });
    } catch (const Error& error) {
      message = error.what();
    }
    limit.set(limit.before.rlim_cur);
    if (message.empty()) break;  // it all fits
    ++full;
    EXPECT_NE(message.find(part_.string()), std::string::npos) << message;
    EXPECT_NE(message.find("File too large"), std::string::npos) << message;
    EXPECT_NE(message.find(kept(saved)), std::string::npos) << message;
    EXPECT_NE(message.find("free space"), std::string::npos) << message;
    EXPECT_EQ(expect_whole(part_), saved);
    complete(SnapshotWriter::open_to_append(part_, without_sync()));
    expect_complete();
  }
  EXPECT_GT(full, 5);
  expect_complete();
}

TEST_F(SnapshotFaultTest, ACheckpointThatFailedForWantOfSpaceCanBeTriedAgainByTheSameWriter) {
  bool full = false;
  SnapshotCalls calls = without_sync();
  calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
    if (!full) return ::pwrite(descriptor, data, bytes, offset);
    errno = ENOSPC;
    return -1;
  };
  SnapshotWriter writer = SnapshotWriter::create(part_, small_description(), false, calls);
  SmallContext context(arena_);
  context.grow_to(40);
  context.save(writer);
  context.grow_to(kTokens);
  full = true;
  EXPECT_TRUE(refuses([&] { context.save(writer); }, {"No space left on device", "checkpoint at 40 tokens is kept"}));
  EXPECT_EQ(writer.token_count(), 40);
  full = false;
  context.save(writer);
  writer.finish(final_);
  expect_complete();
}

TEST_F(SnapshotFaultTest, ADiskThatFailsAtAnyWriteOrSyncKeepsACheckpoint) {
  for (const bool sync : {false, true}) {
    for (int failing = 0;; ++failing) {
      SCOPED_TRACE(fmt::format("{} {}", sync ? "sync" : "write", failing));
      std::filesystem::remove(final_);
      { const SnapshotWriter created = SnapshotWriter::create(part_, small_description(), false, without_sync()); }
      int left = failing;
      const auto fails = [&] { return left-- == 0; };
      SnapshotCalls calls;
      calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
        errno = EIO;
        return !sync && fails() ? -1 : ::pwrite(descriptor, data, bytes, offset);
      };
      calls.sync = [&](int) {
        errno = EIO;
        return sync && fails() ? -1 : 0;
      };
      calls.resize = ::ftruncate;
      std::int64_t saved = 0;
      std::string message;
      try {
        complete(SnapshotWriter::open_to_append(part_, calls), [&](std::int64_t tokens) { saved = tokens; });
      } catch (const Error& error) {
        message = error.what();
      }
      if (message.empty()) {
        EXPECT_GT(failing, 15);
        break;
      }
      EXPECT_NE(message.find(kept(saved) + "; check the disk"), std::string::npos) << message;
      // A slot whose sync fails may be on the disk all the same.
      const std::int64_t found = expect_whole(part_);
      EXPECT_TRUE(found == saved || (sync && found == std::min(kTokens, saved + kStep))) << found << " " << saved;
      complete(SnapshotWriter::open_to_append(part_, without_sync()));
      expect_complete();
      if (HasFailure()) return;
    }
  }
}

TEST_F(SnapshotFaultTest, AnAppendThatFailsAfterAFinishThatFailedKeepsWhatWasThere) {
  for (int first = 0; first < 6; ++first) {
    for (int second = 0; second < 40; ++second) {
      SCOPED_TRACE(fmt::format("call {}, then call {}", first, second));
      std::filesystem::remove(part_);
      std::filesystem::remove(final_);
      int left = 0;
      const auto fails = [&] {
        errno = EIO;
        return left-- == 0;
      };
      SnapshotCalls calls;
      calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
        return fails() ? -1 : ::pwrite(descriptor, data, bytes, offset);
      };
      calls.sync = [&](int) { return fails() ? -1 : 0; };
      calls.resize = [&](int descriptor, off_t bytes) { return fails() ? -1 : ::ftruncate(descriptor, bytes); };

      left = -1;
      {
        SnapshotWriter writer = SnapshotWriter::create(part_, small_description(), false, calls);
        SmallContext context(arena_);
        for (const std::int64_t tokens : {kStep, 2 * kStep}) {
          context.grow_to(tokens);
          context.save(writer);
        }
        left = first;
        EXPECT_THROW(writer.finish(final_), Error);
      }
      EXPECT_EQ(expect_whole(part_), 2 * kStep);
      left = second;
      std::int64_t saved = 2 * kStep;
      try {
        complete(SnapshotWriter::open_to_append(part_, calls), [&](std::int64_t tokens) { saved = tokens; });
      } catch (const Error&) {
        EXPECT_GE(expect_whole(part_), saved);
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(SnapshotFaultTest, AfterAFailedSyncTheWriterWritesNoMore) {
  int syncs = 0;
  SnapshotCalls calls = system_calls();
  calls.sync = [&](int) {
    errno = EIO;
    return ++syncs == 3 ? -1 : 0;
  };
  SnapshotWriter writer = SnapshotWriter::create(part_, small_description(), false, calls);
  SmallContext context(arena_);
  context.grow_to(kStep);
  EXPECT_TRUE(refuses([&] { context.save(writer); }, {"cannot be synced", "Input/output error"}));
  const std::string before = bytes_of(part_);
  const std::initializer_list<std::string> parts = {part_.string(), "an earlier sync", "run the same command again"};
  EXPECT_TRUE(refuses([&] { context.save(writer); }, parts));
  EXPECT_TRUE(refuses([&] { writer.finish(final_); }, parts));
  EXPECT_EQ(bytes_of(part_), before);
}

TEST_F(SnapshotFaultTest, AFileThatCannotBeBegunLeavesNothingBehind) {
  SnapshotCalls calls = without_sync();
  calls.write = [](int, const void*, std::size_t, off_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(part_, small_description(), false, calls); },
                      {part_.string(), "No space left on device", "nothing was saved"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(SnapshotFaultTest, ShortAndInterruptedWritesAreGoneOnWith) {
  std::mt19937 random(1);
  SnapshotCalls calls = without_sync();
  calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
    errno = EINTR;
    return random() % 3 == 0 ? -1 : ::pwrite(descriptor, data, 1 + random() % bytes, offset);
  };
  { const SnapshotWriter created = SnapshotWriter::create(part_, small_description(), false, calls); }
  complete(SnapshotWriter::open_to_append(part_, calls));
  expect_complete();
}

}  // namespace
}  // namespace hayloft::offload

// What can happen to a file while it is being written: the machine stops, the disk fills up or fails, the process is
// killed. Whatever it was, the file then holds its last checkpoint or the one that was being written, whole.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/snapshot_fixture.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;
using test::small_description;
using test::SmallContext;

constexpr std::int64_t kTokens = 120;  // what every run in the end has read
constexpr std::int64_t kStep = 13;

SnapshotCalls without_sync() {  // where nothing depends on it, since it takes milliseconds
  SnapshotCalls calls = system_calls();
  calls.sync = [](int) { return 0; };
  return calls;
}

// An index of sorts, which knows how many tokens it is for; over a page, so that it can be torn.
SnapshotAttachment index_of(std::int64_t tokens) {
  return {"index", std::vector<std::byte>(5000, static_cast<std::byte>(tokens))};
}

class SnapshotFaultTest : public testing::Test {
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

// ---- The machine stops ----

// What a writer did to a file, and what a disk may hold of it when the machine stops after any of it.
class Recording {
 public:
  SnapshotCalls calls() {
    return {[this](int descriptor, const void* data, std::size_t bytes, off_t offset) {
              steps_.push_back(
                  {Step::write, static_cast<std::size_t>(offset), std::string(static_cast<const char*>(data), bytes)});
              return ::pwrite(descriptor, data, bytes, offset);
            },
            [this](int) {
              steps_.push_back({Step::sync, 0, {}});
              return 0;
            },
            [this](int descriptor, off_t bytes) {
              steps_.push_back({Step::resize, static_cast<std::size_t>(bytes), {}});
              return ::ftruncate(descriptor, bytes);
            }};
  }

  std::size_t size() const { return steps_.size(); }
  bool is_sync(std::size_t step) const { return steps_[step].kind == Step::sync; }

  enum class Loss { everything, the_last_half, any_sector };

  // `image` as `count` steps may leave it: what was synced is there; of the rest, nothing, all but the end of the last
  // write, or any choice of sectors.
  std::string after(std::string image, std::size_t count, Loss loss, std::mt19937& random) const {
    std::size_t synced = count;
    while (synced > 0 && steps_[synced - 1].kind != Step::sync) --synced;
    for (std::size_t i = 0; i < synced; ++i) apply(image, steps_[i], [](std::size_t) { return true; });
    if (loss == Loss::everything) return image;
    for (std::size_t i = synced; i < count; ++i) {
      if (loss == Loss::any_sector) {
        apply(image, steps_[i], [&](std::size_t) { return random() % 2 == 0; });
      } else {
        const bool last = i + 1 == count;
        const std::size_t torn = random() % (steps_[i].data.size() / sector + 1);
        apply(image, steps_[i], [&](std::size_t index) { return !last || index < torn; });
      }
    }
    return image;
  }

 private:
  static constexpr std::size_t sector = 512;
  struct Step {
    enum Kind { write, sync, resize } kind;
    std::size_t place;
    std::string data;
  };

  template <class Survives>
  static void apply(std::string& image, const Step& step, Survives&& survives) {
    if (step.kind == Step::resize) image.resize(step.place);
    for (std::size_t i = 0; step.kind == Step::write && i < step.data.size(); i += sector) {
      if (!survives(i / sector)) continue;
      const std::string piece = step.data.substr(i, sector);
      image.resize(std::max(image.size(), step.place + i + piece.size()));
      image.replace(step.place + i, piece.size(), piece);
    }
  }

  std::vector<Step> steps_;
};

TEST_F(SnapshotFaultTest, AMachineThatStopsAtAnyMomentLeavesTheLastCheckpointOrTheNext) {
  std::string image;
  Recording recording;
  std::map<std::size_t, std::int64_t> checkpoints = {{0, 0}};  // after so many steps, so many tokens
  {
    { const SnapshotWriter created = SnapshotWriter::create(part_, small_description(), false, without_sync()); }
    image = bytes_of(part_);
    complete(SnapshotWriter::open_to_append(part_, recording.calls()),
             [&](std::int64_t tokens) { checkpoints[recording.size()] = tokens; });
    expect_complete();
  }
  ASSERT_GT(checkpoints.size(), 9u);

  std::mt19937 random(1);
  int torn = 0;
  for (std::size_t steps = 0; steps <= recording.size(); ++steps) {
    for (const auto loss : {Recording::Loss::everything, Recording::Loss::the_last_half, Recording::Loss::any_sector}) {
      SCOPED_TRACE(fmt::format("{} of {} steps, loss {}", steps, recording.size(), static_cast<int>(loss)));
      folder_.write("ctx.hay.part", recording.after(image, steps, loss, random));
      std::filesystem::remove(final_);
      const std::int64_t tokens = expect_whole(part_);
      const auto next = checkpoints.upper_bound(steps);
      const std::int64_t last = std::prev(next)->second;
      EXPECT_TRUE(tokens == last || (next != checkpoints.end() && tokens == next->second)) << tokens << ", " << last;
      torn += tokens != last;
      complete(SnapshotWriter::open_to_append(part_, without_sync()));
      expect_complete();
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(torn, 0);  // some stops come after the slot is down and before its sync has returned
}

// ---- The disk fills up, or fails ----

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
    EXPECT_NE(message.find(fmt::format("the checkpoint at {} tokens is kept", saved)), std::string::npos) << message;
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
      EXPECT_NE(message.find(fmt::format("the checkpoint at {} tokens is kept; check the disk", saved)),
                std::string::npos)
          << message;
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

// ---- The process is killed ----

class SnapshotKillTest : public SnapshotFaultTest {
 protected:
  // Runs the program in a process of its own, with `prepare` done first, and says whether it got to its end.
  template <class Prepare>
  bool run(Prepare&& prepare) {
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 1;
      try {
        const SnapshotCalls calls = prepare();
        complete(std::filesystem::exists(part_) ? SnapshotWriter::open_to_append(part_, calls)
                                                : SnapshotWriter::create(part_, small_description(), false, calls));
        status = 0;
      } catch (const std::exception& error) {
        std::fputs(error.what(), stderr);
      }
      ::_exit(status);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return false;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return true;
  }

  // A killed run leaves a file that opens, or none yet; what was in it before is in it still.
  std::int64_t expect_nothing_lost(std::int64_t before) {
    const auto path = std::filesystem::exists(final_) ? final_ : part_;
    if (!std::filesystem::exists(path)) {
      EXPECT_EQ(before, 0);
      return 0;
    }
    const std::int64_t tokens = expect_whole(path);
    EXPECT_GE(tokens, before);
    return tokens;
  }

  void start_over() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      std::filesystem::remove(entry.path());
    }
  }
};

TEST_F(SnapshotKillTest, AProcessKilledAtAnyOfItsWritesHasLostNothing) {
  std::mt19937 random(1);
  int kills = 0;
  for (int round = 0; round < 6; ++round) {
    start_over();
    std::int64_t saved = 0;
    while (true) {
      // The child dies at one of its writes, with none, half or all of it done.
      auto left = std::make_shared<unsigned>(static_cast<unsigned>(random() % 30));
      const std::size_t halves = random() % 3;
      SnapshotCalls calls = without_sync();
      calls.write = [left, halves](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
        if ((*left)-- > 0) return ::pwrite(descriptor, data, bytes, offset);
        if (::pwrite(descriptor, data, bytes * halves / 2, offset) < 0) return -1;
        return ::raise(SIGKILL);
      };
      if (run([&] { return calls; })) break;
      ++kills;
      saved = expect_nothing_lost(saved);
      if (HasFailure()) return;
    }
    expect_complete();
  }
  std::printf("%d kills between and within writes, no wrong content\n", kills);
  EXPECT_GE(kills, 10);
}

TEST_F(SnapshotKillTest, AProcessKilledAtAnyTimeHasLostNothing) {
  constexpr int most = 60;
  std::mt19937 random(1);
  int kills = 0;
  int runs = 0;
  while (runs < most) {
    start_over();
    std::int64_t saved = 0;
    while (runs++ < most) {
      const long microseconds = static_cast<long>(random() % 20000);
      const bool ended = run([&] {
        sigevent event{};
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGKILL;
        timer_t timer{};
        const itimerspec after{{}, {0, 1000 * microseconds + 1}};
        ::timer_create(CLOCK_MONOTONIC, &event, &timer);
        ::timer_settime(timer, 0, &after, nullptr);
        return without_sync();
      });
      if (ended) {
        expect_complete();
        break;
      }
      ++kills;
      saved = expect_nothing_lost(saved);
      if (HasFailure()) return;
      if (std::filesystem::exists(final_)) break;  // killed on its last steps
    }
  }
  std::printf("%d kills at random times in %d runs, no wrong content\n", kills, most);
}

}  // namespace
}  // namespace hayloft::offload

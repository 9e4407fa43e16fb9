// The machine stops while a file is being written, or the process is killed: the file then holds its last checkpoint or
// the one that was being written, whole.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/offload/snapshot/snapshot_fault_fixture.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;

// ---- The machine stops ----

// Records what a writer did to a file, and what a disk may hold of it when the machine stops after any of it.
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

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "offload/error.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// The program where memory is short: by its own budget, by the process' limits, by its control group. It ends with one
// line and leaves nothing but whole checkpoints, from which a run with more memory goes on.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using offload::Snapshot;
using test::Outcome;
using test::refused_with;
using test::run_program;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // their shadow memory is terabytes of address space
#else
constexpr bool sanitized = false;
#endif

class MemoryLimit : public ::testing::Test {
 protected:
  MemoryLimit() {
    const auto grammar = runtime::eval::make_grammar(4);
    std::string text;
    for (int i = 0; i < 120; ++i) text += grammar->next() + " ";
    folder.write("text.txt", text);
  }

  std::vector<std::string> ingest(const fs::path& path, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{
        "ingest",         "-f", folder / "text.txt",    "--save", path,        "--batch", "48",
        "--block-tokens", "16", "--checkpoint-seconds", "0",      "--threads", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::string one_go() const {
    const Outcome outcome = run_program(ingest(folder / "one.hay"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Snapshot::open(folder / "one.hay").content_digest();
  }

  // Expects nothing of a refused run, or a context that verifies and is not called finished.
  void expect_nothing_half_written() const {
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename();
      if (name == "text.txt" || name == "one.hay") continue;
      EXPECT_EQ(name, "limited.hay.part");
      Snapshot::open(entry.path(), Snapshot::Accept::unfinished).verify();
    }
  }

  // Returns whether the program comes to its first line, which it does not where CUDA's runtime, which registers
  // kernels before that, finds no memory for them and does not look.
  static bool program_begins(const std::string& limit, std::uint64_t mib) {
    const int exit_code = run_program({"--version"}, fmt::format("{} {}", limit, mib * 1024)).exit_code;
    return exit_code == 0 || exit_code == 1;
  }

  // Runs with ever higher limits until one is enough, and on from what the others left.
  void climb(const std::string& limit, std::uint64_t lowest_mib, std::uint64_t step_mib) const {
    const std::string expected = one_go();
    const fs::path path = folder / "limited.hay";
    int refused = 0;
    for (std::uint64_t mib = lowest_mib;; mib += step_mib) {
      SCOPED_TRACE(fmt::format("{} {} MiB", limit, mib));
      ASSERT_LT(mib, 8192u) << "no limit is enough";
      Outcome outcome = run_program(ingest(path), fmt::format("{} {}", limit, mib * 1024));
      if (outcome.exit_code == 127) continue;  // the loader found no room for the libraries: not ours to word
      if (outcome.exit_code == 0) break;
      if (outcome.exit_code != 1 && !program_begins(limit, mib)) continue;
      if (outcome.err.starts_with("plan: ")) outcome.err.erase(0, outcome.err.find('\n') + 1);  // said as reading began
      EXPECT_TRUE(refused_with(outcome, 1, {"ulimit"}));
      EXPECT_FALSE(fs::exists(path));
      expect_nothing_half_written();
      ++refused;
    }
    EXPECT_GE(refused, 3);
    fmt::print("{}: refused {} times, enough at last\n", limit, refused);
    EXPECT_EQ(Snapshot::open(path).content_digest(), expected);
  }

  test::TemporaryFolder folder;
};

TEST_F(MemoryLimit, OfAddressSpaceIsRefusedInOneLineAndLeavesNothingHalfWritten) {
  if (sanitized) GTEST_SKIP() << "sanitizers need more address space than any limit";
  climb("ulimit -v", 64, 4);  // below, the system has no room for the program itself
}

TEST_F(MemoryLimit, OfDataIsRefusedInOneLineAndLeavesNothingHalfWritten) {
  if (sanitized) GTEST_SKIP() << "sanitizers need more address space than any limit";
  climb("ulimit -d", 6, 2);
}

// Faiss multiplies by OpenBLAS, which tries for ever where it is refused memory.
TEST_F(MemoryLimit, OfAddressSpaceIsRefusedInOneLineWhereFaissNeedsMore) {
  if (sanitized) GTEST_SKIP() << "sanitizers need more address space than any limit";
  const auto needle = [](const char* attn) {
    return run_program({"needle", "--ctx-size", "8k", "--attn", attn, "--depths", "1", "--threads", "2"},
                       fmt::format("ulimit -v {}", 256 * 1024));
  };
  const Outcome own = needle("topk"), faiss = needle("topk:engine=faiss");
  EXPECT_EQ(own.exit_code, 0) << own.err;
  EXPECT_EQ(faiss.exit_code, 1) << faiss.err;
  const std::size_t line = faiss.err.find("hayloft: the system refused ");
  ASSERT_NE(line, std::string::npos) << faiss.err;
  EXPECT_NE(faiss.err.find("Faiss", line), std::string::npos) << faiss.err;
  EXPECT_NE(faiss.err.find("ulimit", line), std::string::npos) << faiss.err;
  EXPECT_EQ(faiss.err.find('\n', line) + 1, faiss.err.size()) << faiss.err;
  EXPECT_NE(own.err.find("plan: "), std::string::npos) << own.err;
  EXPECT_EQ(faiss.err.find("plan: "), std::string::npos) << "refused when something had been read: " << faiss.err;
}

// A control group of this one's with a limit, where the system lets one be made.
class ControlGroup {
 public:
  explicit ControlGroup(std::uint64_t bytes) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
      const std::size_t path = line.find('/');
      const bool v1 = line.find(":memory:") != std::string::npos;
      if (path == std::string::npos || (!v1 && line.rfind("0::", 0) != 0)) continue;
      const fs::path parent = fs::path(v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") / line.substr(path + 1);
      const fs::path group = parent / fmt::format("hayloft-test-{}", ::getpid());
      std::error_code error;
      if (!fs::create_directory(group, error) || error) continue;
      folder_ = group;
      std::ofstream limit(group / (v1 ? "memory.limit_in_bytes" : "memory.max"));
      if (limit << bytes << std::flush) return;
      fs::remove(group, error);
      folder_.clear();
    }
  }
  ~ControlGroup() {
    std::error_code error;
    if (!folder_.empty()) fs::remove(folder_, error);
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  explicit operator bool() const { return !folder_.empty(); }
  std::string enter() const { return fmt::format("echo $$ > {}/cgroup.procs", folder_.string()); }

 private:
  fs::path folder_;
};

TEST_F(MemoryLimit, OfAControlGroupIsWhatTheProgramPlansWith) {
  if (sanitized) GTEST_SKIP() << "sanitizers take more memory than the program";
  const ControlGroup group(std::uint64_t{96} << 20);
  if (!group) GTEST_SKIP() << "this process may not make a control group with a memory limit";
  const std::vector<std::string> needle{"needle", "--ctx-size", "256k", "--attn", "dense", "--depths", "1"};
  EXPECT_TRUE(refused_with(run_program(needle, group.enter()), 1, {"262144", "MiB", "machine with"}));
  const std::string expected = one_go();
  const Outcome fits = run_program(ingest(folder / "limited.hay"), group.enter());
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_EQ(Snapshot::open(folder / "limited.hay").content_digest(), expected);
}

TEST_F(MemoryLimit, OfTheBudgetIsRefusedWithNumbersAndLeavesNothingHalfWritten) {
  const std::string expected = one_go();
  const fs::path path = folder / "limited.hay";
  for (const char* budget : {"4KiB", "100KiB", "400KiB"}) {
    EXPECT_TRUE(refused_with(run_program(ingest(path, {"--host-memory", budget})), 1, {"--host-memory"})) << budget;
    EXPECT_FALSE(fs::exists(path));
    expect_nothing_half_written();
  }
  const Outcome enough = run_program(ingest(path));
  ASSERT_EQ(enough.exit_code, 0) << enough.err;
  EXPECT_EQ(Snapshot::open(path).content_digest(), expected);

  const std::vector<std::string> append{"ingest", "--append", path, "-f", folder / "text.txt", "--checkpoint-seconds",
                                        "0",      "--again"};
  std::vector<std::string> short_of_memory = append;
  short_of_memory.insert(short_of_memory.end(), {"--host-memory", "100KiB"});
  EXPECT_TRUE(refused_with(run_program(short_of_memory), 1, {"--host-memory"}));
  Snapshot::open(path, Snapshot::Accept::unfinished).verify();
  ASSERT_EQ(run_program(append).exit_code, 0);
  EXPECT_GT(Snapshot::open(path).token_count(), Snapshot::open(folder / "one.hay").token_count());
}

}  // namespace
}  // namespace hayloft

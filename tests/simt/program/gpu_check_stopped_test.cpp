#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/simt/program/gpu_check_fixture.h"

// scripts/gpu-check when a suite never ends, or somebody stops it.
namespace hayloft::test {
namespace {

// A compute-sanitizer that runs the suite as a process of its own; one suite never ends.
class GpuCheckSanitizer : public GpuCheckScript {
 protected:
  GpuCheckSanitizer() {
    script("bin/compute-sanitizer",
           "for suite; do :; done\nbasename \"$suite\" >>" + (folder_ / "order").string() + "\n\"$suite\" &\nwait $!");
    script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
    script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
    script("tree/tests/matmul_test_cuda", "echo '[       OK ] M.IsRight (3 ms)'");
    script("tree/tests/decode_test_cuda", "echo $$ >" + (folder_ / "pid").string() + "; exec sleep 600");
  }
  ~GpuCheckSanitizer() override {
    if (alive(suite())) ::kill(std::stoi(suite()), SIGKILL);
  }
  std::string suite() const {
    const std::vector<std::string> pid = lines(folder_ / "pid");
    return pid.empty() ? "none" : pid.front();
  }
};

TEST_F(GpuCheckSanitizer, ASuiteOutOfTimeIsEndedAndNoError) {
  run("sanitizer", own_path() + "HAYLOFT_CHECK_SUITE=2");
  EXPECT_EQ(lines(folder_ / "order"),
            (std::vector<std::string>{"decode_test_cuda", "decode_test_cuda", "matmul_test_cuda", "a_test_cuda"}))
      << "for races first, there those of attention and selection alone";
  const nlohmann::json step = report()["steps"][1];
  EXPECT_EQ(step["outcome"], "out of time");
  EXPECT_EQ(step["data"]["failed"], 0);
  EXPECT_EQ(step["data"]["passed"], 2);
  EXPECT_EQ(step["data"]["out_of_time"], 1);
  EXPECT_EQ(verdict("under compute-sanitizer"), "not measured");
  EXPECT_TRUE(wait_for([&] { return !alive(suite()); }));
}

TEST_F(GpuCheckSanitizer, StoppedItEndsWhatItHasStarted) {
  Running check(command("sanitizer", own_path()));
  ASSERT_TRUE(wait_for([&] { return alive(suite()); }));
  check.signal(SIGTERM);
  EXPECT_EQ(check.wait(), 1);
  EXPECT_FALSE(alive(suite()));
}

// A machine with nvidia-smi and a program whose `link` says that it has begun and waits until it may end, or the
// test is over.
class GpuCheckWithSmi : public GpuCheckScript {
 protected:
  GpuCheckWithSmi() {
    script("bin/nvidia-smi", "case \"$*\" in *memory.used*) echo 100; echo \"$1\" >>" + (folder_ / "asked").string() +
                                 ";; *) echo 'A \"GPU\", 16 GiB';; esac");
    script("tree/bin/hayloft", "case \"$*\" in link*) touch " + (folder_ / "begun").string() + "; until [ -e " +
                                   (folder_ / "gate").string() + " ] || ! [ -e " + (folder_ / "begun").string() +
                                   " ]; do sleep 0.05; done; exit;; esac\nexec " + HAYLOFT_PROGRAM " \"$@\"");
    script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  }
  void open_gate() const { folder_.write("gate", ""); }
  // Returns what there is of gpu-check itself.
  std::vector<std::string> processes() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string command = contents(entry.path() / "cmdline");
      const bool check = command.find("/scripts/gpu-check") != std::string::npos;
      if (check && command.find(folder_.path().string()) != std::string::npos) found.push_back(entry.path().filename());
    }
    return found;
  }
  bool has_begun() const {
    return wait_for([&] { return fs::exists(folder_ / "begun"); });
  }
};

TEST_F(GpuCheckWithSmi, TheReportIsWholeWhileAStepRuns) {
  Running check(command("tests link", own_path()));
  ASSERT_TRUE(has_begun()) << contents(folder_ / "err");
  const nlohmann::json so_far = report();
  EXPECT_NE(so_far["memory"].get<std::string>().find(" kB"), std::string::npos);
  EXPECT_EQ(so_far["gpu"], "A \"GPU\", 16 GiB");
  ASSERT_EQ(so_far["steps"].size(), 1u);
  EXPECT_EQ(so_far["steps"][0]["device_peak_MiB"], 100);
  for (const std::string& asked : lines(folder_ / "asked")) EXPECT_EQ(asked, "--id=0000:01:00.0");
  EXPECT_NE(summary().find(so_far["memory"].get<std::string>() + ";"), std::string::npos);
  open_gate();
  check.wait();
  EXPECT_EQ(report()["steps"].size(), 2u);
  int files = 0;
  for ([[maybe_unused]] const auto& file : fs::directory_iterator(folder_ / "out")) ++files;
  EXPECT_EQ(files, 2) << "nothing but the report and its summary";
}

TEST_F(GpuCheckWithSmi, StoppedItKeepsTheReportAndTheMachinesDescription) {
  Running check(command("tests link", own_path()));
  ASSERT_TRUE(has_begun());
  const std::size_t asked = lines(folder_ / "asked").size();
  ASSERT_TRUE(wait_for([&] { return lines(folder_ / "asked").size() > asked; }));  // the first time after two seconds
  check.signal(SIGTERM);
  EXPECT_EQ(check.wait(), 1);
  open_gate();
  const nlohmann::json stopped = report();
  EXPECT_NE(stopped["memory"].get<std::string>().find(" kB"), std::string::npos);
  ASSERT_EQ(stopped["steps"].size(), 2u);
  EXPECT_EQ(stopped["steps"][1]["outcome"], "stopped by a signal");
  EXPECT_GE(stopped["steps"][1]["seconds"], 1);
}

TEST_F(GpuCheckWithSmi, NothingAsksForMemoryAfterItWasKilled) {
  Running check(command("link", own_path()));
  ASSERT_TRUE(has_begun());
  check.signal(SIGKILL);
  check.wait();
  EXPECT_TRUE(wait_for([&] { return processes().empty(); }));
  for (const std::string& left : processes()) ::kill(std::stoi(left), SIGKILL);
  open_gate();
}

}  // namespace
}  // namespace hayloft::test

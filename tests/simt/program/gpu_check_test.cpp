#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

// scripts/gpu-check as on a machine with a GPU, which is the double of this folder.
namespace hayloft {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary)
              .rdbuf();  // what cannot be read, as of a process that has ended, is empty
  return text.str();
}

// Until `done`, for at most a minute; whether it came.
template <class Done>
bool wait_for(const Done& done) {
  for (int i = 0; i < 6000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::vector<std::string> lines(const fs::path& path) {
  std::vector<std::string> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(line);
  return all;
}

// Whether a process is there and has not ended.
bool alive(const std::string& pid) {
  std::string stat = contents("/proc/" + pid + "/stat");  // "7 (name) S ..."
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end + 2, 1) != "Z";
}

// A command of bash. Ended with this object, unless it has ended by itself.
class Running {
 public:
  explicit Running(const std::string& command) {
    const char* const argv[] = {"/bin/bash", "-c", command.c_str(), nullptr};
    if (posix_spawn(&pid_, argv[0], nullptr, nullptr, const_cast<char* const*>(argv), environ) != 0) pid_ = -1;
  }
  ~Running() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    wait();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  int wait() {  // the exit code, -1 after a signal
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

// A build tree with suites and a program of its own.
class GpuCheckScript : public testing::Test {
 protected:
  void script(const std::string& path, const std::string& text) const {
    const fs::path file = folder_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text << '\n';
    fs::permissions(file, fs::perms::owner_all);
  }
  std::string summary() const { return contents(folder_ / "out/summary.md"); }
  nlohmann::json report() const { return nlohmann::json::parse(contents(folder_ / "out/gpu-check.json")); }
  // settings: what bash does before it turns into the script.
  std::string command(const std::string& steps, const std::string& settings) const {
    return settings + " HAYLOFT_BUILD=" + (folder_ / "tree").string() +
           " exec bash " HAYLOFT_SOURCE_DIR "/scripts/gpu-check " + (folder_ / "out").string() + " " + steps + " 2>" +
           (folder_ / "err").string();
  }
  int run(const std::string& steps, const std::string& settings) const {
    return Running(command(steps, settings)).wait();
  }
  std::string verdict(const std::string& what) const {
    const nlohmann::json found = report();
    for (const nlohmann::json& line : found["shows"]) {
      if (line["what"].get<std::string>().find(what) != std::string::npos) return line["verdict"];
    }
    return "no such line";
  }
  // The program, but with this to say of the machine; what it is called with is kept.
  void program_that_lists(const std::string& devices) const {
    script("tree/bin/hayloft", "case \"$1\" in --list-devices) echo '" + devices +
                                   "'; exit;; bench | needle | link) echo \"$*\" >>" + (folder_ / "calls").string() +
                                   "; exit;; esac\nexec " HAYLOFT_PROGRAM " \"$@\"");
  }
  // Programs in folder_/bin come before the system's.
  std::string own_path() const { return "PATH=" + (folder_ / "bin").string() + ":$PATH "; }

  test::TemporaryFolder folder_;
};

TEST_F(GpuCheckScript, AStepThatFailsIsShownAndDoesNotStopTheRest) {
  script("tree/bin/hayloft", R"(case "$*" in link*) echo 'the "link" is out of order' >&2; exit 3;;
  needle*int4* | needle*staged*) exit 4;; esac)"
                             "\nexec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  script("tree/tests/b_test_cuda",
         "echo '[ RUN      ] B.IsWrong'\necho 'b_test.cpp:7: Failure'\necho '[  FAILED  ] B.IsWrong (3 ms)'\nexit 1");
  const int status = run("tests link bench needle",
                         "HAYLOFT_SECONDS=100000 HAYLOFT_CHECK_NEEDLES=256 HAYLOFT_CHECK_DEPTHS=1 "
                         "HAYLOFT_CHECK_BENCH=1280 HAYLOFT_CHECK_SHAPE=1,4,1,128 "
                         "HAYLOFT_CHECK_METHOD=0.01 HAYLOFT_CHECK_BLOCK=128");
  EXPECT_EQ(status, 1);
  const nlohmann::json found = report();
  std::string outcomes;
  for (const nlohmann::json& step : found["steps"]) {
    outcomes += step["step"].get<std::string>() + ": " + step["outcome"].get<std::string>() + "\n";
  }
  EXPECT_EQ(outcomes,
            "tests: failed, exit code 1\nlink: failed, exit code 3\nneedle-256: passed\nneedle-256-cpu: passed\n"
            "bench-1280: passed\nbench-1280-sm: passed\nbench-1280-copy: passed\nbench-1280-both: passed\n"
            "needle-256-int4: failed, exit code 4\nneedle-256-int4-cpu: failed, exit code 4\n"
            "needle-256-staged: failed, exit code 4\n");
  EXPECT_EQ(found["failed_steps"], 5);
  EXPECT_EQ(found["steps"][0]["data"]["passed"], 1);
  EXPECT_EQ(found["steps"][0]["data"]["failed"], 1);
  EXPECT_NE(found["steps"][0]["log_tail"].get<std::string>().find("b_test.cpp:7: Failure"), std::string::npos);
  EXPECT_EQ(found["steps"][1]["log_tail"], "the \"link\" is out of order");
  EXPECT_EQ(found["steps"][1]["data"], nullptr);
  EXPECT_EQ(found["steps"][4]["data"]["complete"], true);

  EXPECT_EQ(verdict("CUDA tests"), "NOT met");
  EXPECT_EQ(verdict("needle at 256"), "met");
  EXPECT_EQ(verdict("the arena's peak"), "met");
  EXPECT_EQ(verdict("the driver's peak"), "met");
  EXPECT_EQ(verdict("selection of 1024"), "NOT met") << "a short context proves nothing";
  EXPECT_EQ(verdict("int8 columns"), "not measured") << "there is no link to compare with";
  EXPECT_NE(summary().find("## tests: failed, exit code 1"), std::string::npos);
  EXPECT_NE(summary().find("column scan"), std::string::npos);
}

TEST_F(GpuCheckScript, AStepOutOfTimeSaysHowFarItCame) {
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  script("tree/tests/b_test_cuda", "sleep 60");
  EXPECT_EQ(run("tests", "HAYLOFT_SECONDS=24"), 1);  // six for the tests
  const nlohmann::json step = report()["steps"][0];
  EXPECT_EQ(step["outcome"], "out of time");
  EXPECT_EQ(step["log_tail"].get<std::string>().rfind("- a_test_cuda: 1 passed, 0 failed, 0 skipped", 0), 0u);
  EXPECT_EQ(step["data"]["complete"], false);
  EXPECT_EQ(step["data"]["passed"], 1);
}

TEST_F(GpuCheckScript, CublasIsFoundWhereTheLoaderDoesNotLook) {
  script("bin/python3", "echo " + (folder_ / "site/nvidia").string());
  script("site/nvidia/cu13/lib/libcublas.so.13", "");
  script("tree/bin/hayloft", R"(case "$1:$LD_LIBRARY_PATH" in --list-devices:) echo 'cuda  none: needs cuBLAS'; exit;;
  --list-devices:*) echo 'cuda  a device'; exit;; esac)"
                             "\nexec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda",
         R"([ -e "$LD_LIBRARY_PATH/libcublas.so.13" ] && echo '[       OK ] A.IsRight (3 ms)')");
  run("tests", "unset LD_LIBRARY_PATH; " + own_path());
  EXPECT_EQ(report()["device"], "a device");
  EXPECT_NE(report()["notes"].get<std::string>().find("cuBLAS was found in /"), std::string::npos);
  EXPECT_EQ(report()["steps"][0]["outcome"], "passed") << contents(folder_ / "err");
}

TEST_F(GpuCheckScript, WithoutADeviceNothingIsRun) {
  script("tree/bin/hayloft", R"(case "$1" in --list-devices) echo 'cuda  none: no driver'; exit;; esac)"
                             "\nexec " HAYLOFT_PROGRAM R"( "$@")");
  EXPECT_EQ(run("", ""), 1);
  EXPECT_EQ(report()["device"], "none: no driver");
  EXPECT_TRUE(report()["steps"].empty());
  EXPECT_NE(summary().find("there is no CUDA device"), std::string::npos);
}

TEST_F(GpuCheckScript, AFolderThatCannotBeWrittenIsRefusedBeforeAnythingRuns) {
  script("tree/bin/hayloft", "touch " + (folder_ / "called").string());
  folder_.write("file", "");
  for (const std::string& out : {std::string("/proc"), std::string("/proc/none"), (folder_ / "file").string()}) {
    EXPECT_EQ(Running("HAYLOFT_BUILD=" + (folder_ / "tree").string() +
                      " exec bash " HAYLOFT_SOURCE_DIR "/scripts/gpu-check " + out + " 2>" + (folder_ / "err").string())
                  .wait(),
              1);
    EXPECT_EQ(contents(folder_ / "err"),
              "gpu-check: cannot write to " + out + "; name a folder that can be written to\n");
  }
  EXPECT_FALSE(fs::exists(folder_ / "called"));
}

TEST_F(GpuCheckScript, OfSomeStepsOnlyWhatTheyMeasureCounts) {
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  EXPECT_EQ(run("tests", ""), 0) << contents(folder_ / "err");
  EXPECT_NE(summary().find("Not asked for, and so not measured: link bench needle sanitizer."), std::string::npos);
  EXPECT_EQ(verdict("CUDA tests"), "met");
  EXPECT_EQ(verdict("selection of 1024"), "not measured");
  script("tree/tests/b_test_cuda", "echo '[  FAILED  ] B.IsWrong (3 ms)'; exit 1");
  EXPECT_EQ(run("tests", ""), 1);
}

TEST_F(GpuCheckScript, ARunTakesWhatTheMachineHas) {
  const std::string memory = " GiB of the memory can be taken\ncuda  A card at 0000:01:00.0, ";
  program_that_lists("cpu   x; 3.4" + memory + "24.0 GiB, of which 23.5 GiB may be used");
  run("bench", "HAYLOFT_CHECK_BENCH=1280");
  ASSERT_FALSE(lines(folder_ / "calls").empty());
  for (const std::string& call : lines(folder_ / "calls")) {
    EXPECT_NE(call.find("--gpu-memory 16GiB"), std::string::npos) << call;
    EXPECT_NE(call.find("--host-memory 2GiB"), std::string::npos) << "six tenths: " << call;
  }
  fs::remove(folder_ / "calls");
  program_that_lists("cpu   x; 251.0" + memory + "15.6 GiB, of which 14.9 GiB may be used");
  run("bench", "HAYLOFT_CHECK_BENCH=1280");
  ASSERT_FALSE(lines(folder_ / "calls").empty());
  for (const std::string& call : lines(folder_ / "calls")) {
    EXPECT_EQ(call.find("--gpu-memory"), std::string::npos) << call;
  }
  EXPECT_NE(lines(folder_ / "calls").front().find("--host-memory 27GiB"), std::string::npos);
  EXPECT_NE(summary().find("may use the 15257 MiB"), std::string::npos) << summary();
}

TEST_F(GpuCheckScript, ACardWithLessThan16GiBIsChecked) {
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  run("needle bench",
      "HAYLOFT_SIMT_MEMORY=14.6GiB HAYLOFT_SECONDS=100000 HAYLOFT_CHECK_NEEDLES=256 HAYLOFT_CHECK_DEPTHS=1 "
      "HAYLOFT_CHECK_BENCH=1280 HAYLOFT_CHECK_SHAPE=1,4,1,128 HAYLOFT_CHECK_METHOD=0.01 HAYLOFT_CHECK_BLOCK=128");
  const nlohmann::json found = report();
  EXPECT_EQ(found["steps"].size(), 9u);
  for (const nlohmann::json& step : found["steps"]) {
    EXPECT_EQ(step["outcome"], "passed") << step["step"] << step["log_tail"];
    if (step["data"]["device"] != "cuda") continue;
    const auto budget_MiB = step["data"]["device_memory"]["budget_bytes"].get<std::int64_t>() >> 20;
    EXPECT_LE(budget_MiB, 14438) << "14.6 GiB less 512 MiB";
    EXPECT_GT(budget_MiB, 14400) << step["step"];
  }
  EXPECT_EQ(verdict("the arena's peak"), "met");
  EXPECT_EQ(verdict("the driver's peak"), "met");
  EXPECT_EQ(verdict("needle at 256"), "met");
}

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
            (std::vector<std::string>{"decode_test_cuda", "matmul_test_cuda", "a_test_cuda"}));
  const nlohmann::json step = report()["steps"][0];
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
  // What there is of gpu-check itself.
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
}  // namespace hayloft

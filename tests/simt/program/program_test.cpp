#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tests/program.h"
#include "tests/temporary_folder.h"

// The program and scripts/gpu-check as on a machine with a GPU, which is the double of this folder. Contexts are as
// short as a needle allows.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::run_program;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json needle(const std::string& device, const fs::path& json) {
  const Outcome outcome = run_program({"needle", "--device", device, "-c", "352", "--depths", "1", "--block-tokens",
                                       "32", "--attn", "dense,sparq:k=32,topk:k=16", "--json", json});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(contents(json));
}

TEST(ProgramOnADevice, AnswersANeedleRunAsOnTheCpu) {
  const test::TemporaryFolder folder;
  const nlohmann::json cuda = needle("cuda", folder / "cuda.json");
  const nlohmann::json cpu = needle("cpu", folder / "cpu.json");
  EXPECT_EQ(cuda["device"], "cuda");
  EXPECT_EQ(cuda["complete"], true);
  ASSERT_EQ(cuda["rows"].size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* field : {"method", "expected", "answer", "link_bytes_per_token", "near_bytes_per_token"}) {
      EXPECT_EQ(cuda["rows"][i][field], cpu["rows"][i][field]) << field << " of " << cpu["rows"][i]["method"];
    }
    EXPECT_GT(cuda["rows"][i]["link_bytes_per_token"], 0);
  }
  const nlohmann::json& memory = cuda["device_memory"];
  EXPECT_GT(memory["peak_bytes"], 0);
  EXPECT_LE(memory["peak_bytes"], memory["budget_bytes"]);
  EXPECT_GE(memory["driver_peak_bytes"], memory["peak_bytes"]);
  EXPECT_TRUE(cpu["device_memory"].is_null());
}

TEST(ProgramOnADevice, BenchSplitsAStepByStagesAndKeepsWhatItHas) {
  const test::TemporaryFolder folder;
  const fs::path json = folder / "bench.json";
  // The second context does not fit, so the run fails with the first one measured.
  const Outcome outcome = run_program({"bench",
                                       "--device",
                                       "cuda",
                                       "--gpu-memory",
                                       "16GiB",
                                       "-c",
                                       "512,4M",
                                       "--shape",
                                       "2,4,1,64",
                                       "--block-tokens",
                                       "128",
                                       "--host-memory",
                                       "64MiB",
                                       "--seconds",
                                       "0.01",
                                       "--attn",
                                       "sparq:k=64:window=0",
                                       "--columns",
                                       "int4",
                                       "--link",
                                       "copy",
                                       "--json",
                                       json});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("512 tokens, int4 columns, sparq r=16 k=64 w=0: "), std::string::npos) << outcome.err;
  const nlohmann::json kept = nlohmann::json::parse(contents(json));
  EXPECT_EQ(kept["complete"], false);
  EXPECT_EQ(kept["link"], "copy");
  EXPECT_GT(kept["device_memory"]["peak_bytes"], 0);
  ASSERT_EQ(kept["rows"].size(), 1u);
  const nlohmann::json& row = kept["rows"][0];
  EXPECT_EQ(row["k"], 64);
  EXPECT_EQ(row["window"], 0);
  for (const char* stage : {"column scan", "selection", "rows"}) EXPECT_GT(row["stage_ms"][stage], 0) << stage;
  // Three blocks of 128 lie in the store of each of two layers; 16 columns of half a byte, a scale for 64 tokens.
  EXPECT_EQ(row["link_bytes"]["columns"], 2 * 384 * 16 / 2);
  EXPECT_EQ(row["link_bytes"]["scales"], 2 * 384 / 64 * 16 * 2);
  EXPECT_EQ(row["link_bytes"]["rows"], 2 * 64 * 4 * 64);
}

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
  int run(const std::string& steps, const std::string& settings) const {
    const std::string command = settings + " HAYLOFT_BUILD=" + (folder_ / "tree").string() +
                                " bash " HAYLOFT_SOURCE_DIR "/scripts/gpu-check " + (folder_ / "out").string() + " " +
                                steps + " 2>" + (folder_ / "err").string();
    return WEXITSTATUS(std::system(command.c_str()));
  }

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

  const auto verdict = [&](const std::string& what) -> std::string {
    for (const nlohmann::json& line : found["shows"]) {
      if (line["what"].get<std::string>().find(what) != std::string::npos) return line["verdict"];
    }
    return "no such line";
  };
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
  run("tests", "unset LD_LIBRARY_PATH; PATH=" + (folder_ / "bin").string() + ":$PATH");
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

}  // namespace
}  // namespace hayloft

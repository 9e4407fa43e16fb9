#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/simt/program/gpu_check_fixture.h"

// Tests what scripts/gpu-check runs, measures and judges.
namespace hayloft::test {
namespace {

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
            "needle-256-q4: passed\nneedle-256-q4-cpu: passed\n"
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

TEST_F(GpuCheckScript, ACublasThatDoesNotStartIsFollowedByTheNextThatIsFound) {
  script("bin/python3", "echo " + (folder_ / "site/nvidia").string());
  script("site/nvidia/cu13/lib/libcublas.so.13", "");
  script("site/nvidia/cublas/lib/libcublas.so.12", "");
  script("tree/bin/hayloft",
         R"(case "$1:$LD_LIBRARY_PATH" in --list-devices:*/nvidia/cublas/lib*) echo 'cuda  a device'; exit;;
  --list-devices:*) echo 'cuda  none: cuBLAS does not start'; exit;; esac)"
         "\nexec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  run("tests", "unset LD_LIBRARY_PATH; " + own_path());
  EXPECT_EQ(report()["device"], "a device");
}

TEST_F(GpuCheckScript, ATreeThatHasTheProgramAloneSaysWhatBuildsTheRest) {
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  EXPECT_EQ(run("tests", ""), 1);
  EXPECT_NE(report()["steps"][0]["log_tail"].get<std::string>().find(
                "scripts/build release -DHAYLOFT_CUDA=ON builds them, which scripts/try does not"),
            std::string::npos);
}

TEST_F(GpuCheckScript, ATranslatingIommuAndWslAreNoted) {
  const fs::path device = folder_ / "system/sys/bus/pci/devices/0000:01:00.0";
  fs::create_directories(device / "iommu_group");
  fs::create_directories(folder_ / "system/proc");
  std::ofstream(device / "iommu_group/type") << "DMA-FQ\n";
  std::ofstream(folder_ / "system/proc/version") << "Linux version 5.15.90.1-microsoft-standard-WSL2\n";
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  script("tree/tests/a_test_cuda", "echo '[       OK ] A.IsRight (3 ms)'");
  EXPECT_EQ(run("tests", "HAYLOFT_CHECK_ROOT=" + (folder_ / "system").string()), 0) << contents(folder_ / "err");
  EXPECT_EQ(report()["bus"]["iommu_type"], "DMA-FQ");
  const std::string notes = report()["notes"];
  EXPECT_NE(notes.find("iommu=pt"), std::string::npos) << notes;
  EXPECT_NE(notes.find("This is WSL"), std::string::npos) << notes;
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
  EXPECT_NE(summary().find("Not asked for, and so not measured: link bench needle model sanitizer."),
            std::string::npos);
  EXPECT_EQ(verdict("CUDA tests"), "met");
  EXPECT_EQ(verdict("selection of 1024"), "not measured");
  script("tree/tests/b_test_cuda", "echo '[  FAILED  ] B.IsWrong (3 ms)'; exit 1");
  EXPECT_EQ(run("tests", ""), 1);
}

TEST_F(GpuCheckScript, StepsOfAModelStandBesideWhatTheirBytesTake) {
  script("tree/bin/hayloft", R"(for last; do :; done
  case "$1" in link) echo '{"link": {"figures": [{"test": "device_local_copy", "value": 450},
    {"test": "host_to_device_memcpy_ce", "page_bytes": 4096, "footprint_bytes": 1024, "value": 25}]}}' >"$last"; exit;; esac)"
                             "\nexec " HAYLOFT_PROGRAM R"( "$@")");
  run("link model",
      "HAYLOFT_SECONDS=100000 HAYLOFT_CHECK_MODEL='64 192' HAYLOFT_CHECK_BLOCK=64 "
      "HAYLOFT_CHECK_MODEL_SHAPE='--layers 1 --heads 4 --kv-heads 2 --hidden 256 --inner 256 --vocabulary 300'");
  const nlohmann::json found = report();
  ASSERT_EQ(found["steps"].size(), 6u) << contents(folder_ / "err");
  for (std::size_t i = 1; i < 6; ++i) {
    const nlohmann::json& step = found["steps"][i];
    EXPECT_EQ(step["outcome"], "passed") << step["step"] << step["log_tail"];
    EXPECT_EQ(step["data"]["prompt_tokens"], i < 4 ? 65 : 193) << step["step"];
    EXPECT_EQ(step["data"]["steps"], 32);
    EXPECT_GT(step["data"]["ms_per_token"], 0);
    // q, k, v, o, gate, up, down and the output, in 144 bytes for 256 weights, and three norms.
    EXPECT_EQ(step["data"]["weight_bytes"], 144 * (256 + 128 + 128 + 256 + 3 * 256 + 300) + 3 * 1024);
  }
  EXPECT_EQ(verdict("an 8B of random weights"), "NOT met") << "the double takes longer than a device's bytes";
  EXPECT_NE(summary().find(" ms at 450 and 25.0 GB/s: 0.0"), std::string::npos) << summary();
  EXPECT_EQ(
      verdict("an 8B of random weights in Q4_K behind 65 tokens, sparq:k=512:r=16, its kernels launched one by one"),
      "")
      << "for who compares";
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

class GpuCheckScriptSlow : public GpuCheckScript {};

TEST_F(GpuCheckScriptSlow, ACardWithLessThan16GiBIsChecked) {
  script("tree/bin/hayloft", "exec " HAYLOFT_PROGRAM R"( "$@")");
  run("needle bench",
      "HAYLOFT_SIMT_MEMORY=14.6GiB HAYLOFT_SECONDS=100000 HAYLOFT_CHECK_NEEDLES=256 HAYLOFT_CHECK_DEPTHS=1 "
      "HAYLOFT_CHECK_BENCH=1280 HAYLOFT_CHECK_SHAPE=1,4,1,128 HAYLOFT_CHECK_METHOD=0.01 HAYLOFT_CHECK_BLOCK=128");
  const nlohmann::json found = report();
  EXPECT_EQ(found["steps"].size(), 11u);
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

}  // namespace
}  // namespace hayloft::test

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tests/program/program.h"
#include "tests/program/served.h"
#include "tests/support/temporary_folder.h"

// The program as on a machine with a GPU, which is the double of this folder. Contexts are as short as a needle allows.
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
  EXPECT_GT(memory["driver_peak_bytes"], 0);  // what is set aside for steps counts as used before the driver holds it
  EXPECT_TRUE(cpu["device_memory"].is_null());
}

TEST(ProgramOnADevice, LeavesExpertsToTheProcessorAndAnswersTheSame) {
  const std::string model = (fs::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/qwen3moe.gguf").string();
  const auto generate = [&](const std::string& device, const std::string& experts) {
    return run_program({"generate", "-m", model, "-p", "a needle in hay", "-n", "6", "--temp", "0", "--verbose",
                        "--device", device, "--experts", experts});
  };
  const Outcome cpu = generate("cpu", "auto"), near = generate("cuda", "near"), there = generate("cuda", "device");
  EXPECT_EQ(near.exit_code, 0) << near.err;
  EXPECT_EQ(near.out, cpu.out);
  EXPECT_EQ(there.out, cpu.out);
  EXPECT_TRUE(std::regex_search(near.err, std::regex("\nexperts: .* near the processor\n"))) << near.err;
  EXPECT_EQ(there.err.find("near the processor"), std::string::npos) << there.err;
  EXPECT_EQ(cpu.err.find("near the processor"), std::string::npos) << cpu.err;
}

TEST(ProgramOnADevice, AServerCountsExpertsThatCameOverTheLink) {
  const std::string model = (fs::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/qwen3moe.gguf").string();
  test::Served served({"--device", "cuda", "--experts", "link"}, model);
  EXPECT_EQ(served.post("/v1/completions", test::greedy("a needle in hay", 4)).status, 200);
  EXPECT_GT(served.metric("experts_asked_total"), 0);
  EXPECT_GT(served.metric("experts_link_bytes_total"), 0);
}

TEST(ProgramOnADevice, IsListedByItsPlaceOnTheBusWithWhatMemoryIsFree) {
  const Outcome outcome = run_program({"--list-devices"});
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex("^cpu   .*; [0-9.]+ [MGT]iB of the memory can be taken\\n"
                                                        "cuda  SIMT shim at 0000:01:00.0, compute capability 9.0, .*, "
                                                        "24.0 GiB, of which 23.5 GiB may be used\\n$")))
      << outcome.out;
}

TEST(ProgramOnADevice, AServerWhoseDeviceIsLostAnswers503AndEndsWithACodeOfItsOwn) {
  ASSERT_EQ(::setenv("HAYLOFT_SIMT_LOST", "1000", 1), 0);  // more than loading takes, less than the answer below
  test::Served served({"--device", "cuda"});
  ::unsetenv("HAYLOFT_SIMT_LOST");
  const test::HttpAnswer answer = served.post("/v1/completions", test::greedy("hay", 200));
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("the device is lost to this process"), std::string::npos) << answer.body;
  const Outcome outcome = served.program().wait();
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("hayloft: CUDA: the device is lost"), std::string::npos) << outcome.err;
}

TEST(ProgramOnADevice, OneOfSeveralIsNamedByItsNumber) {
  ASSERT_EQ(::setenv("HAYLOFT_SIMT_DEVICES", "2", 1), 0);
  const Outcome list = run_program({"--list-devices"});
  const Outcome second =
      run_program({"bench", "--device", "cuda:1", "-c", "512", "--shape", "1,2,1,64", "--block-tokens", "128",
                   "--host-memory", "64MiB", "--seconds", "0.01", "--verbose"});
  const Outcome third = run_program({"bench", "--device", "cuda:2", "-c", "512"});
  ::unsetenv("HAYLOFT_SIMT_DEVICES");
  EXPECT_TRUE(std::regex_search(list.out, std::regex("\ncuda:0  SIMT shim at 0000:01:00.0, .*\n"
                                                     "cuda:1  SIMT shim at 0000:02:00.0, .*\n$")))
      << list.out;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("device: SIMT shim at 0000:02:00.0"), std::string::npos) << second.err;
  EXPECT_EQ(third.exit_code, 1);
  EXPECT_NE(third.err.find("--device cuda:2: this process sees 2 devices, cuda:0 to cuda:1"), std::string::npos)
      << third.err;
  for (const char* device : {"cuda:", "cuda:x", "cuda:-1", "cuda:99999"}) {
    EXPECT_EQ(run_program({"bench", "--device", device, "-c", "512"}).exit_code, 2) << device;
  }
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

}  // namespace
}  // namespace hayloft

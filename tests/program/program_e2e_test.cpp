#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "tests/program/program_fixture.h"

// The program from outside: what it prints, what it writes, and how it refuses bad input.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using runtime::SafetensorsFile;
using test::Outcome;
using test::ProgramTest;
using test::refused_with;
using test::run_program;

using Nothing = std::vector<std::string>;

TEST_F(ProgramTest, ListsDevices) {
  const Outcome outcome = run_program({"--list-devices"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.rfind("cpu ", 0), 0u) << outcome.out;
}

TEST_F(ProgramTest, ADeviceThatIsNotThereIsRefusedInOneLineAndNotMissedWhenNobodyAsksForIt) {
  if (run_program({"--list-devices"}).out.find("cuda  none: ") == std::string::npos) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  make_tensors();
  const test::TemporaryFolder root;
  ASSERT_EQ(::setenv("HAYLOFT_SYSTEM_ROOT", root.path().c_str(), 1), 0);
  EXPECT_TRUE(refused_with(attend({"--device", "cuda"}), 1, {"--device cpu"}));
  const Outcome outcome = attend({"--device", "auto", "--gpu-memory", "16GiB", "--kv-host", "pinned", "--link", "sm"});
  EXPECT_EQ(outcome.exit_code, 0);
  const std::string unused =
      "note: --gpu-memory, --kv-host, --link have no effect: not used by --device auto where no GPU computes, but by "
      "cuda\n";
  EXPECT_EQ(outcome.err, unused);
  EXPECT_EQ(attend({"--device", "auto"}).err, "");
  // Where the system shows one, a CPU that computes in its place is said, by whoever was free to choose.
  fs::create_directories(root / "dev");
  std::ofstream(root / "dev/nvidia0").put('\n');
  const std::string said = "note: an NVIDIA GPU is here (/dev/nvidia0), but the CPU computes: ";
  const Outcome idle = attend({});
  EXPECT_EQ(idle.exit_code, 0);
  EXPECT_EQ(idle.err.rfind(said, 0), 0u) << idle.err;
  EXPECT_EQ(std::count(idle.err.begin(), idle.err.end(), '\n'), 1) << idle.err;
  EXPECT_EQ(run_program({"--list-devices"}).err.rfind(said, 0), 0u);
  EXPECT_EQ(attend({"--device", "cpu"}).err, "");
  ::unsetenv("HAYLOFT_SYSTEM_ROOT");
}

TEST_F(ProgramTest, WrongUsageIsOneLineWithAHintAndExitCodeTwo) {
  EXPECT_TRUE(refused_with(run_program({}), 2, {"a command is needed", "hayloft --help"}));
  EXPECT_TRUE(refused_with(run_program({"nedle"}), 2, {"nedle"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--depth", "3"}), 2, {"--depth", "hayloft needle --help"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--attn", "sparse"}), 2, {"sparse", "dense, sparq, topk, window"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--ctx-size", "64q"}), 2, {"--ctx-size", "'64q'"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--ctx-size", "4T"}), 2, {"--ctx-size 4T", "2147483647"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--attn-k", "0"}), 2, {"--attn-k 0"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--attn-k", "many"}), 2, {"--attn-k", "'many'"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--host-memory", "lots"}), 2, {"--host-memory", "'lots'"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--device", "tpu"}), 2, {"tpu", "auto|cpu|cuda"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--gpu-memory", "0"}), 2, {"--gpu-memory 0"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--kv-host", "ram"}), 2, {"ram", "auto|pinned|staged|mmap"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--link", "pcie"}), 2, {"pcie", "auto|sm|copy|both"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--plot", "heat.jpg"}), 2, {"heat.jpg", ".svg"}));
  EXPECT_TRUE(refused_with(run_program({"attend", "--in", "x"}), 2, {"--out"}));
  EXPECT_TRUE(refused_with(attend({"--attn", "dense,topk"}), 2, {"one method"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", "x"}), 2, {"--prompt"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", "x", "-p", "hi", "-f", "y"}), 2, {"--prompt", "--file"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", "x", "-p", "hi", "--top-p", "2"}), 2, {"--top-p 2"}));
}

TEST_F(ProgramTest, AttendWritesItsTensorsAndItsCounters) {
  make_tensors();
  const Outcome outcome = attend({"--attn", "sparq", "--attn-r", "4", "--attn-k", "10", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["schema"], "hayloft.attend/1");
  EXPECT_EQ(json["counters"][1]["elements"], 2 * (100 * 4 + 2 * 10 * 16 + 4 * 16));
  const SafetensorsFile file(at("y.safetensors"));
  EXPECT_EQ(file.at("y").shape, (std::vector<std::int64_t>{2, 4, 16}));
  EXPECT_EQ(file.at("positions").shape, (std::vector<std::int64_t>{2, 2, 10}));
  EXPECT_EQ(file.at("alpha").shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(left_behind(), (std::vector<std::string>{"y.safetensors"}));
}

TEST_F(ProgramTest, AShareOfTheContextIsAK) {
  make_tensors();
  ASSERT_EQ(attend({"--attn", "topk", "--attn-k", "5%", "--attn-select", "kv-head"}).exit_code, 0);
  EXPECT_EQ(SafetensorsFile(at("y.safetensors")).at("positions").shape, (std::vector<std::int64_t>{2, 2, 5}));
}

TEST_F(ProgramTest, AttendRefusesBadTensorsAndWritesNothing) {
  EXPECT_TRUE(refused_with(attend({}), 1, {"qkv.safetensors"})) << "missing";

  make_tensors();
  const std::string whole = contents(at("qkv.safetensors"));
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{40}, whole.size() - 1}) {
    write(at("qkv.safetensors"), whole.substr(0, bytes));
    EXPECT_TRUE(refused_with(attend({}), 1, {"qkv.safetensors"})) << "cut to " << bytes << " bytes";
  }
  const auto with_header = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    const std::size_t found = changed.find(from);
    ASSERT_NE(found, std::string::npos) << from;
    changed.replace(found, from.size(), to);
    write(at("qkv.safetensors"), changed);
  };
  with_header("F32", "I32");
  EXPECT_TRUE(refused_with(attend({}), 1, {"qkv.safetensors", "I32"}));
  with_header("[2,4,16]", "[8,16  ]");
  EXPECT_TRUE(refused_with(attend({}), 1, {"qkv.safetensors", "[8, 16]"}));
  with_header("\"q\"", "\"p\"");
  EXPECT_TRUE(refused_with(attend({}), 1, {"qkv.safetensors", "q"}));
  EXPECT_EQ(left_behind(), Nothing());
}

TEST_F(ProgramTest, AttendRefusesOptionsOutOfRangeAndWritesNothing) {
  make_tensors();
  EXPECT_TRUE(refused_with(attend({"--attn", "topk", "--attn-k", "101"}), 1, {"--attn-k 101", "100"}));
  EXPECT_TRUE(refused_with(attend({"--attn", "sparq", "--attn-k", "8", "--attn-r", "17"}), 1, {"--attn-r 17", "16"}));
  EXPECT_TRUE(refused_with(attend({"--attn", "sparq", "--attn-r", "0"}), 2, {"--attn-r 0"}));
  EXPECT_TRUE(refused_with(attend({"--attn", "sparq", "--attn-k", "8", "--attn-window", "9"}), 1, {"--attn-window 9"}));
  EXPECT_TRUE(refused_with(attend({"--block-tokens", "1000"}), 2, {"--block-tokens 1000", "a power of two from 16"}));
  EXPECT_TRUE(refused_with(attend({"--host-memory", "4k"}), 1, {"--host-memory"}));
  EXPECT_TRUE(refused_with(attend({"--threads", "100000"}), 2, {"--threads 100000", "at most"}));
  EXPECT_EQ(left_behind(), Nothing());
}

TEST_F(ProgramTest, OutputsThatCannotBeWrittenAreRefusedBeforeTheWork) {
  make_tensors();
  const std::string nowhere = at("missing/file");
  EXPECT_TRUE(refused_with(run_program({"attend", "--in", at("qkv.safetensors"), "--out", nowhere}), 1, {nowhere}));
  EXPECT_TRUE(refused_with(attend({"--json", nowhere}), 1, {nowhere}));
  // The model does not exist either; the output is looked at first.
  EXPECT_TRUE(refused_with(run_program({"needle", "-m", at("no-model"), "--json", nowhere}), 1, {nowhere}));
  EXPECT_TRUE(refused_with(run_program({"needle", "-m", at("no-model"), "--plot", nowhere + ".svg"}), 1, {nowhere}));
  EXPECT_TRUE(refused_with(run_program({"needle", "-m", at("no-model"), "--haystack", nowhere}), 1, {nowhere}));
  EXPECT_EQ(left_behind(), Nothing());
}

TEST_F(ProgramTest, BenchPrintsATableAndWritesItsFigures) {
  const fs::path json = folder_ / "bench.json";
  const Outcome outcome =
      run_program({"bench", "--device", "cpu", "--shape", "2,4,2,32", "-c", "1000", "--block-tokens", "64", "--attn",
                   "dense,sparq:k=16:r=8", "--columns", "f16,int8", "--seconds", "0.01", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("| 1000 | int8 | sparq r=8 k=16 |"), std::string::npos) << outcome.out;
  const nlohmann::json figures = nlohmann::json::parse(std::ifstream(json));
  EXPECT_EQ(figures["device"], "cpu");
  EXPECT_TRUE(figures["link"].is_null()) << "there is none to choose";
  EXPECT_EQ(figures["complete"], true);
  ASSERT_EQ(figures["rows"].size(), 4u);
  for (const char* of : {"k", "window"}) EXPECT_TRUE(figures["rows"][0][of].is_null()) << "dense has none: " << of;
  EXPECT_EQ(figures["rows"][1]["k"], 16);
}

}  // namespace
}  // namespace hayloft

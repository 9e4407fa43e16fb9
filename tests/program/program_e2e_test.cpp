#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// The program from outside: what it prints, what it writes, and how it refuses bad input.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using runtime::SafetensorsFile;
using test::Outcome;
using test::Program;
using test::refused_with;
using test::run_program;

// A byte-level tokenizer of 128 entries, as many as the golden models have: printable ASCII, the newline, and merges of
// "e" with letters to make up the number.
nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object();
  const auto add = [&](const std::string& entry) {
    const auto id = static_cast<int>(vocabulary.size());
    vocabulary.emplace(entry, id);
  };
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c));
  add("\u0120");  // the space and the newline, as byte-level vocabularies write them
  add("\u010a");
  nlohmann::json merges = nlohmann::json::array();
  for (char c = 'a'; c <= 'z'; ++c) {
    add(std::string("e") + c);
    merges.push_back(std::string("e ") + c);
  }
  for (char c = 'a'; vocabulary.size() < 128; ++c) {
    add(std::string("o") + c);
    merges.push_back(std::string("o ") + c);
  }
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

class ProgramTest : public testing::Test {
 protected:
  // A golden model with a tokenizer: random weights, everything else as in a real one.
  fs::path make_model(const std::string& golden = "smollm3") {
    const fs::path model = folder_ / "model";
    fs::remove_all(model);
    fs::create_directory(model);
    const fs::path source = fs::path(HAYLOFT_SOURCE_DIR) / "tests" / "golden" / "models" / golden;
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(source / file, model / file);
    write(model / "tokenizer.json", small_tokenizer().dump());
    return model;
  }

  // q [2][4][16], k and v [2][100][16] of small numbers.
  std::string make_tensors() const {
    std::vector<float> values(2 * 100 * 16);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<runtime::TensorToWrite> tensors{{"q", "F32", {2, 4, 16}, bytes.first(2 * 4 * 16 * 4)},
                                                      {"k", "F32", {2, 100, 16}, bytes},
                                                      {"v", "F32", {2, 100, 16}, bytes}};
    runtime::write_safetensors(folder_ / "qkv.safetensors", tensors);
    return folder_ / "qkv.safetensors";
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string at(const char* name) const { return folder_ / name; }

  // Names in the folder, without those that the test put there.
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      if (name != "qkv.safetensors" && name != "model") names.push_back(name);
    }
    return names;
  }

  Outcome attend(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"attend", "--in", at("qkv.safetensors"), "--out", at("y.safetensors")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  test::TemporaryFolder folder_;
};

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
  EXPECT_TRUE(refused_with(attend({"--device", "cuda"}), 1, {"--device cpu"}));
  const Outcome outcome = attend({"--device", "auto", "--gpu-memory", "16GiB", "--kv-host", "pinned", "--link", "sm"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ProgramTest, WhatIsNoReportOfGpuCheckIsNamedWithTheReasonAndWhatToDo) {
  const std::string advice = "name the gpu-check.json that";
  const auto judged = [&](const std::string& file) { return run_program({"judge", file}); };
  const std::string none = folder_ / "none.json";
  EXPECT_TRUE(refused_with(judged(none), 1, {none + ": cannot be read: No such file", advice}));
  EXPECT_TRUE(refused_with(judged(folder_.path()), 1, {folder_.path().string() + ": a folder", advice}));
  const std::string broken = folder_.write("broken.json", "{\"schema\": nothing}");
  EXPECT_TRUE(refused_with(judged(broken), 1, {broken + ": not valid JSON at byte 13", advice}));
  const std::string huge = folder_.write("huge.json", "[1e999]");
  EXPECT_TRUE(refused_with(judged(huge), 1, {huge + ": not valid JSON: ", advice}));
  const std::string bench = folder_.write("bench.json", R"({"schema": "hayloft.bench/1"})");
  EXPECT_TRUE(refused_with(judged(bench), 1, {bench + ": not a report of gpu-check", advice}));
}

TEST_F(ProgramTest, OfAPartialReportOnlyWhatWasMeasuredIsJudged) {
  const std::string report = folder_.write("gpu-check.json", R"({"schema": "hayloft.gpu-check/1", "steps": []})");
  EXPECT_EQ(run_program({"judge", report}).exit_code, 1);
  EXPECT_EQ(run_program({"judge", report, "--partial"}).exit_code, 0);
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
  EXPECT_TRUE(refused_with(run_program({"needle", "--plot", "heat.pdf"}), 2, {"heat.pdf", ".svg or .png"}));
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
  EXPECT_TRUE(refused_with(attend({"--block-tokens", "1000"}), 1, {"1000"}));
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

TEST_F(ProgramTest, GenerateStreamsTextToStandardOutputAndTheRestToStandardError) {
  const std::string model = make_model();
  const std::vector<std::string> arguments{"generate", "-m", model, "-p", "the hay", "-n", "12"};
  const Outcome first = run_program(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_GE(first.out.size(), 2u);
  EXPECT_NE(first.err.find("prompt: 7 tokens"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("ms/token"), std::string::npos) << first.err;
  EXPECT_EQ(run_program(arguments).out, first.out) << "greedy decoding is repeatable";

  std::vector<std::string> sparse = arguments;
  sparse.insert(sparse.end(), {"--attn", "sparq:r=8:k=4096"});
  EXPECT_EQ(run_program(sparse).out, first.out) << "with all components and positions SparQ is dense attention";
}

TEST_F(ProgramTest, GenerateSamplesTheSameTextFromTheSameSeed) {
  const std::string model = make_model("llama");
  const auto sample = [&](const std::string& seed) {
    return run_program({"generate", "-m", model, "-p", "hay", "-n", "24", "--temp", "1.5", "--seed", seed}).out;
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST_F(ProgramTest, GenerateReadsItsPromptFromAFile) {
  const std::string model = make_model();
  write(folder_.path() / "prompt.txt", "the hay");
  const Outcome from_file = run_program({"generate", "-m", model, "-f", at("prompt.txt"), "-n", "12"});
  EXPECT_EQ(from_file.exit_code, 0) << from_file.err;
  EXPECT_EQ(from_file.out, run_program({"generate", "-m", model, "-p", "the hay", "-n", "12"}).out);
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-f", at("no.txt")}), 1, {at("no.txt")}));
}

TEST_F(ProgramTest, PrefillIsChosenAndRefusedByItsOptions) {
  const std::string model = make_model("llama");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", model, "-p", "the hay the hay the hay the hay", "-n", "12"});
    return run_program(more);
  };
  const Outcome exact = generate({});
  ASSERT_EQ(exact.exit_code, 0) << exact.err;
  EXPECT_EQ(generate({"--prefill", "exact"}).out, exact.out);
  EXPECT_EQ(generate({"--prefill", "window", "--prefill-window", "64"}).out, exact.out) << "it covers the prompt";
  EXPECT_EQ(generate({"--prefill", "topk", "--prefill-k", "100%"}).out, exact.out);
  EXPECT_NE(generate({"--prefill", "window", "--prefill-window", "1", "--prefill-sinks", "0"}).out, exact.out);
  EXPECT_TRUE(refused_with(generate({"--prefill", "magic"}), 2, {"--prefill magic", "exact|window|topk"}));
  EXPECT_TRUE(refused_with(generate({"--prefill-window", "0"}), 2, {"--prefill-window 0"}));
  EXPECT_TRUE(refused_with(generate({"--prefill-k", "0%"}), 2, {"--prefill-k 0%"}));
}

TEST_F(ProgramTest, ModelsThatCannotBeReadAreRefused) {
  const auto generate = [&](const fs::path& model) {
    return run_program({"generate", "-m", model, "-p", "the hay", "-n", "2"});
  };
  EXPECT_TRUE(refused_with(generate(folder_ / "model"), 1, {"model"})) << "no such folder";

  fs::path model = make_model();
  const std::string config = contents(model / "config.json");
  write(model / "config.json", std::regex_replace(config, std::regex("\"smollm3\""), "\"mamba\""));
  EXPECT_TRUE(refused_with(generate(model), 1, {"config.json", "mamba"}));
  write(model / "config.json",
        std::regex_replace(config, std::regex("\"intermediate_size\": 64"), "\"intermediate_size\": 72"));
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors", "72"})) << "another shape than the weights have";

  model = make_model();
  auto tokenizer = small_tokenizer();
  tokenizer["model"].erase("merges");
  write(model / "tokenizer.json", tokenizer.dump());
  EXPECT_TRUE(refused_with(generate(model), 1, {"tokenizer.json", "merges"}));

  model = make_model();
  const std::string weights = contents(model / "model.safetensors");
  write(model / "model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors"}));
  fs::remove(model / "model.safetensors");
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors"}));
}

TEST_F(ProgramTest, AContextThatDoesNotFitIsRefusedWithNumbersBeforeTheWork) {
  const std::string model = make_model();
  EXPECT_TRUE(
      refused_with(run_program({"generate", "-m", model, "-p", "the hay", "--ctx-size", "1M", "--host-memory", "1MiB"}),
                   1, {"1048576", "1.0 MiB", "--host-memory"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-p", "the hay", "-n", "20", "--ctx-size", "26"}), 1,
                           {"--ctx-size 26", "27"}));
  EXPECT_TRUE(
      refused_with(run_program({"needle", "-m", model, "--ctx-size", "1M", "--attn", "dense", "--host-memory", "1MiB"}),
                   1, {"1048576", "1.0 MiB", "--host-memory"}));
}

TEST_F(ProgramTest, NeedleEndsInATableAPictureAndJson) {
  const std::string model = make_model();
  const Outcome outcome =
      run_program({"needle", "-m", model, "--ctx-size", "1k,2k", "--depths", "3", "--attn", "dense,topk", "--attn-k",
                   "32", "--attn", "window", "--json", at("n.json"), "--plot", at("n.svg"), "--block-tokens", "256"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("attention"), std::string::npos);
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex(R"(window k=32 +2k +\d/3)"))) << outcome.out;
  EXPECT_EQ(contents(at("n.svg")).rfind("<?xml", 0), 0u);
  const auto json = nlohmann::json::parse(contents(at("n.json")));
  EXPECT_EQ(json["model"], "model");
  EXPECT_EQ(json["device"], "cpu");
  ASSERT_EQ(json["rows"].size(), 3u * 2u * 3u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["recall"].is_null(), row["attn"] == "dense");
    EXPECT_EQ(row["hit"], row["expected"] == row["answer"]);
  }
  EXPECT_EQ(left_behind().size(), 2u) << "the JSON and the picture, no temporary files";
}

TEST_F(ProgramTest, AShortContextLeavesTheMethodsSomethingToSelect) {
  const std::vector<std::string> arguments{"needle",   "--ctx-size", "4096",   "--attn",    "sparq:r=1:k=4",
                                           "--depths", "3",          "--json", at("n.json")};
  const Outcome chosen = run_program(arguments);
  ASSERT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_EQ(chosen.out.find("attended to"), std::string::npos) << chosen.out;
  for (const auto& row : nlohmann::json::parse(contents(at("n.json")))["rows"]) {
    EXPECT_LT(row["recall"], 0.7) << "one column and four positions find less than all of the best four";
    EXPECT_LT(row["attended_share"], 0.2);
  }
  std::vector<std::string> whole = arguments;  // the whole context in the tail
  whole.insert(whole.end(), {"--block-tokens", "4096"});
  const Outcome forced = run_program(whole);
  ASSERT_EQ(forced.exit_code, 0) << forced.err;
  for (const std::string& text : {forced.out, forced.err}) {
    EXPECT_NE(text.find("* sparq r=1 k=4 at 4k attended to 100.0% of the context"), std::string::npos) << text;
  }
  for (const auto& row : nlohmann::json::parse(contents(at("n.json")))["rows"]) {
    EXPECT_EQ(row["recall"], 1);
    EXPECT_EQ(row["attended_share"], 1);
    EXPECT_EQ(row["block_tokens"], 4096);
  }
}

TEST_F(ProgramTest, NeedlesAreFoundByEveryColumnFormat) {
  // The bundled model; nearly the whole context lies in the store.
  for (const std::string format : {"f16", "int8", "int4"}) {
    const Outcome outcome = run_program({"needle", "--ctx-size", "4k", "--depths", "3", "--attn", "sparq,topk",
                                         "--attn-k", "64", "--block-tokens", "64", "--columns", format, "--json", "-"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    ASSERT_EQ(json["rows"].size(), 6u);
    for (const auto& row : json["rows"]) EXPECT_TRUE(row["hit"]) << format << ": " << row;
  }
  EXPECT_TRUE(refused_with(run_program({"needle", "--columns", "int3"}), 2, {"--columns int3", "f16, int8, int4"}));
}

TEST_F(ProgramTest, IntegerColumnsAreAskedForKeptAndShown) {
  write(at("text.txt"), std::string(3000, 'a') + " and the hay");
  const Outcome made = run_program({"ingest", "-f", at("text.txt"), "--save", at("small.hay"), "--columns", "int4",
                                    "--block-tokens", "64", "--batch", "128"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Outcome shown = run_program({"inspect", at("small.hay")});
  EXPECT_TRUE(std::regex_search(shown.out, std::regex("columns +int4"))) << shown.out;
  const Outcome asked = run_program({"ask", at("small.hay"), "-p", "hay", "-n", "2"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  const Outcome planned =
      run_program({"plan", "--shape", "32,32,8,128", "-c", "1M", "--columns", "int4", "--json", "-"});
  const Outcome plain = run_program({"plan", "--shape", "32,32,8,128", "-c", "1M", "--json", "-"});
  const auto columns = [](const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out)["plans"][0]["bytes"]["host_columns"].get<double>();
  };
  // 64 levels of half a byte and a scale of two bytes, instead of 64 times two bytes.
  EXPECT_DOUBLE_EQ(columns(planned) / columns(plain), 34.0 / 128);
}

TEST_F(ProgramTest, NeedleWithJsonOnStandardOutputKeepsTheTableAway) {
  const Outcome outcome = run_program(
      {"needle", "-m", make_model(), "--ctx-size", "1k", "--depths", "1", "--attn", "dense", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rows"].size(), 1u);
  EXPECT_NE(outcome.err.find("attention"), std::string::npos);
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
  EXPECT_EQ(figures["rows"].size(), 4u);
}

TEST_F(ProgramTest, CtrlCStopsCleanly) {
  const std::string model = make_model();
  // The haystack is a pipe: when it opens here the program has opened it too, so it is past its start and short of its
  // end.
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  Program program({"needle", "-m", model, "--ctx-size", "256k", "--attn", "dense", "--json", at("n.json"), "--haystack",
                   at("pipe")});
  std::ofstream haystack(at("pipe"));  // returns once the program has opened the other end
  haystack << "The hay is in the loft. The cat is on the hay. The loft is over the barn.\n";
  haystack.close();
  program.interrupt();
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("hayloft: interrupted\n"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(at("n.json")));
}

}  // namespace
}  // namespace hayloft

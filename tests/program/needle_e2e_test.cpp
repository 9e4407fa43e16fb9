#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/program/program_fixture.h"

// `hayloft needle` from outside, and the formats of key columns.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::Program;
using test::ProgramTest;
using test::refused_with;
using test::run_program;

TEST_F(ProgramTest, NeedleEndsInATableAPictureAndJson) {
  const std::string model = make_model();
  const Outcome outcome =
      run_program({"needle", "-m", model, "--ctx-size", "1k,2k", "--depths", "3", "--attn", "dense,topk", "--attn-k",
                   "32", "--attn", "window", "--json", at("n.json"), "--plot", at("n.svg"), "--block-tokens", "256"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("attention"), std::string::npos);
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex(R"(window k=32 +2k +\d/3)"))) << outcome.out;
  EXPECT_EQ(contents(at("n.svg")).rfind("<svg", 0), 0u);
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
  const nlohmann::json written = nlohmann::json::parse(contents(at("n.json")));
  for (const auto& row : written.at("rows")) {
    EXPECT_LT(row["recall"], 0.7) << "one column and four positions find less than all of the best four";
    EXPECT_LT(row["attended_share"], 0.2);
  }
  std::vector<std::string> whole = arguments;  // the whole context in the tail
  whole.insert(whole.end(), {"--block-tokens", "4096"});
  const Outcome forced = run_program(whole);
  ASSERT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_NE(forced.out.find("* sparq r=1 k=4 at 4k attended to 100.0% of the context"), std::string::npos)
      << forced.out;
  EXPECT_EQ(forced.err.find("* sparq"), std::string::npos) << "it is said once: " << forced.err;
  const nlohmann::json forced_rows = nlohmann::json::parse(contents(at("n.json")));
  for (const auto& row : forced_rows.at("rows")) {
    EXPECT_EQ(row["recall"], 1);
    EXPECT_EQ(row["attended_share"], 1);
    EXPECT_EQ(row["block_tokens"], 4096);
  }
}

TEST_F(ProgramTest, ALengthOrAMethodThatStandsThereTwiceIsRefused) {
  EXPECT_TRUE(refused_with(run_program({"needle", "-c", "4k,1k,4096"}), 2, {"--ctx-size", "4096", "twice"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--attn", "sparq,dense", "--attn", "sparq:r=16"}), 2,
                           {"--attn", "sparq r=16 k=128", "twice"}));
}

TEST_F(ProgramTest, NeedlesAreFoundByEveryColumnFormat) {
  // The bundled model; nearly the whole context lies in the store.
  for (const std::string format : {"f16", "int8", "int4", "planes"}) {
    const Outcome outcome = run_program({"needle", "--ctx-size", "4k", "--depths", "3", "--attn", "sparq,topk",
                                         "--attn-k", "64", "--block-tokens", "64", "--columns", format, "--json", "-"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    ASSERT_EQ(json["rows"].size(), 6u);
    for (const auto& row : json["rows"]) EXPECT_TRUE(row["hit"]) << format << ": " << row;
  }
  EXPECT_TRUE(refused_with(run_program({"needle", "--columns", "int3"}), 2, {"--columns int3", "f16, int8, int4"}));
}

TEST_F(ProgramTest, AMethodOfPlanesMakesTheColumnsPlanesUnlessOthersAreAskedFor) {
  const std::vector<std::string> needle = {"needle",         "--ctx-size", "4k", "--depths",       "3", "--attn",
                                           "planes:bits=16", "--attn-k",   "64", "--block-tokens", "64"};
  std::vector<std::string> with_json = needle;
  with_json.insert(with_json.end(), {"--json", "-"});
  const Outcome outcome = run_program(with_json);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json printed = nlohmann::json::parse(outcome.out);
  for (const auto& row : printed.at("rows")) EXPECT_TRUE(row["hit"]) << row;
  std::vector<std::string> other = needle;
  other.insert(other.end(), {"--columns", "int4"});
  EXPECT_TRUE(refused_with(run_program(other), 1, {"planes bits=16", "int4", "--columns planes"}));
  EXPECT_TRUE(refused_with(run_program({"needle", "--attn", "planes:bits=9999"}), 1, {"--attn-bits 9999"}));
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

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// hayloft link and hayloft plan as a user runs them.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

TEST(LinkAndPlan, TheProfileOfOneGivesTheOtherItsTimes) {
  const test::TemporaryFolder folder;
  const std::string profile = folder / "profile.json";
  const Outcome measured =
      run_program({"link", "--seconds", "0.1", "--footprint", "64MiB", "--format", "csv", "--profile", profile});
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_EQ(measured.out.rfind("what,head_dim,group,rate,unit,slowest,fastest,turns\n", 0), 0u) << measured.out;
  EXPECT_NE(measured.err.find("skipped"), std::string::npos) << measured.err;
  EXPECT_NE(measured.out.find("\n\"near-memory read, node "), std::string::npos) << measured.out;

  EXPECT_GT(nlohmann::json::parse(std::ifstream(profile))["near_reads"][0]["GBps"], 0);

  const Outcome planned =
      run_program({"plan", "--shape", "32,32,8,128", "--ctx-size", "64k,1M", "--attn", "dense,sparq:k=512",
                   "--host-memory", "900GiB", "--profile", profile, "--json", "-"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  const nlohmann::json json = nlohmann::json::parse(planned.out);
  ASSERT_EQ(json["plans"].size(), 2u);
  EXPECT_EQ(json["plans"][1]["methods"][1]["attn"], "sparq r=16 k=512");
  EXPECT_GT(json["plans"][1]["methods"][0]["ms_per_token"]["dense"], 0);
}

TEST(LinkAndPlan, ExactAnswersArePlannedFromAShareOfAcceptedDrafts) {
  const std::vector<std::string> plan{
      "plan",  "--shape", "32,32,8,128", "-c",     "128k",        "--gpu-memory", "20GiB", "--host-memory",
      "90GiB", "--card",  "rtx4090",     "--attn", "sparq:k=512", "--json",       "-",     "--accepted"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plan.begin(), plan.end());
    return run_program(more);
  };
  const Outcome planned = with({"0.9"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  const nlohmann::json json = nlohmann::json::parse(planned.out)["plans"][0];
  EXPECT_EQ(json["accepted"], 0.9);
  ASSERT_EQ(json["exact"].size(), 3u);
  EXPECT_EQ(json["exact"][2]["draft"], "self, by sparq r=16 k=512");
  EXPECT_LT(json["exact"][2]["predicted_on_card_ms_per_token"], json["exact"][0]["predicted_on_card_ms_per_token"]);
  EXPECT_TRUE(refused_with(with({"1.1"}), 2, {"--accepted"}));
  EXPECT_TRUE(refused_with(with({"0.9", "--ranks", "2"}), 2, {"--accepted: --exact is not over ranks"}));
}

TEST(LinkAndPlan, WhatWasNotMeasuredIsInTheJson) {
  const test::TemporaryFolder folder;
  const Outcome measured =
      run_program({"link", "--device", "cpu", "--seconds", "0.1", "--footprint", "64MiB", "--link-footprint",
                   "1GiB,4GiB", "--profile", folder / "p.json", "--json", "-"});
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  const nlohmann::json json = nlohmann::json::parse(measured.out);
  const std::string why = ": no GPU is used (hayloft --list-devices says why)";
  const std::vector<std::string> wanted{
      "host to device, device to host, column streams and row gathers over the link" + why,
      "--link-footprint 1.0 GiB" + why, "--link-footprint 4.0 GiB" + why};
  EXPECT_EQ(json["skipped"], nlohmann::json(wanted));
  for (const std::string& what : wanted) EXPECT_NE(measured.err.find("skipped: " + what), std::string::npos);
}

TEST(Bench, ADamagedProfileThatNobodyNamedGivesNoFloorAndStopsNothing) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(std::filesystem::path(folder / "hayloft"));
  std::ofstream(folder / "hayloft/profile.json") << "{]";
  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"bench", "--device",       "cpu", "--shape", "1,2,1,32", "-c",
                                       "300",   "--block-tokens", "64",  "--attn",  "dense",    "--seconds",
                                       "0.01",  "--json",         "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  ASSERT_EQ(setenv("XDG_CACHE_HOME", std::string(folder / "").c_str(), 1), 0);
  const Outcome unnamed = bench({});
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(unnamed.exit_code, 0) << unnamed.err;
  EXPECT_FALSE(nlohmann::json::parse(unnamed.out)["rows"][0].contains("floor_ms"));
  EXPECT_TRUE(refused_with(bench({"--profile", folder / "hayloft/profile.json"}), 1,
                           {"profile.json", "not valid JSON", "; measure again with hayloft link"}));
}

TEST(Bench, TimesTheMethodsOverEachColumnFormat) {
  const Outcome done = run_program({"bench", "--shape", "2,4,2,32", "--ctx-size", "1000", "--block-tokens", "64",
                                    "--attn", "dense,sparq:k=64", "--seconds", "0.01", "--json", "-"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  const nlohmann::json json = nlohmann::json::parse(done.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_GT(json["rows"][1]["stage_ms"]["select_sparq"], 0);
  EXPECT_TRUE(refused_with(run_program({"bench", "--shape", "2,4,3,32"}), 2, {"--shape", "4", "3"}));
  EXPECT_TRUE(refused_with(run_program({"bench", "--columns", "int3"}), 2, {"--columns int3", "int4"}));
}

TEST(LinkAndPlan, ADeviceThatIsNotHereIsPlannedForByItsMemory) {
  const test::TemporaryFolder folder;
  const auto plan = [](const std::string& gpu_memory) {
    return run_program(
        {"plan", "--shape", "32,32,8,128", "--ctx-size", "64k", "--gpu-memory", gpu_memory, "--json", "-"});
  };
  const Outcome fits = plan("24GiB");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  const nlohmann::json json = nlohmann::json::parse(fits.out)["plans"][0];
  const nlohmann::json& bytes = json["bytes"];
  EXPECT_EQ(bytes["device"], bytes["tails"].get<std::uint64_t>() + bytes["question"].get<std::uint64_t>() +
                                 bytes["workspace"].get<std::uint64_t>() + bytes["weights"].get<std::uint64_t>() +
                                 bytes["scratch"].get<std::uint64_t>());
  EXPECT_LT(bytes["total"], bytes["host_rows"].get<std::uint64_t>() + bytes["host_columns"].get<std::uint64_t>() +
                                bytes["weights"].get<std::uint64_t>())
      << "the weights are on the device";
  const Outcome short_of = plan("12GiB");
  EXPECT_EQ(short_of.exit_code, 3) << short_of.err;
  EXPECT_NE(nlohmann::json::parse(short_of.out)["plans"][0]["shortfall"].get<std::string>().find("--gpu-memory"),
            std::string::npos)
      << short_of.out;
}

TEST(LinkAndPlan, HostMemoryThatIsNotHereIsPlannedWith) {
  const Outcome outcome = run_program({"plan", "--shape", "32,32,8,128", "-c", "1M", "--columns", "int4",
                                       "--host-memory", "900GiB", "--gpu-memory", "24GiB", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json plan = nlohmann::json::parse(outcome.out)["plans"][0];
  EXPECT_TRUE(plan["fits"]) << plan["shortfall"];
  EXPECT_TRUE(plan["remedy"].is_null());
  EXPECT_EQ(plan["bytes"]["host_budget"], std::uint64_t{900} << 30);
}

TEST(LinkAndPlan, AMisfitIsSaidWithWhatWouldFitAndByTheExitStatus) {
  const std::vector<std::string> run{"plan",   "--shape",     "32,32,8,128",  "-c",   "1M",
                                     "--attn", "dense,sparq", "--gpu-memory", "24GiB"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return run_program(more);
  };
  const Outcome text = plan({"--host-memory", "90GiB"});
  EXPECT_EQ(text.exit_code, 3) << text.err;
  EXPECT_NE(text.out.find("\nIt does not fit: "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\nThe longest context that fits: "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\nThe cheapest change that makes this one fit: --columns int4 --rows int8 (then "),
            std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find(" PFLOP |"), std::string::npos) << text.out;

  const Outcome json = plan({"--host-memory", "90GiB", "--json", "-"});
  EXPECT_EQ(json.exit_code, 3);
  const nlohmann::json remedy = nlohmann::json::parse(json.out)["plans"][0]["remedy"];
  const std::string longest = std::to_string(remedy["longest_tokens"].get<std::int64_t>());
  EXPECT_EQ(plan({"--host-memory", "90GiB", "-c", longest}).exit_code, 0);
  EXPECT_EQ(plan({"--host-memory", "90GiB", "--columns", "int4", "--rows", "int8"}).exit_code, 0);
  EXPECT_EQ(plan({"--host-memory", "90GiB", "-c", "4k,1M"}).exit_code, 3) << "one that does not fit is enough";
}

TEST(LinkAndPlan, RatesOfADeviceThatIsNotHereGiveTimes) {
  const std::vector<std::string> run{"plan",         "--shape", "28,24,8,128",   "-c",   "128k", "--attn", "dense,topk",
                                     "--gpu-memory", "16GiB",   "--host-memory", "60GiB"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return run_program(more);
  };
  const Outcome outcome = plan({"--link-rate", "25GB/s", "--device-rate", "400", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json dense = nlohmann::json::parse(outcome.out)["plans"][0]["methods"][0];
  double link_ms = 0;
  for (const nlohmann::json& stage : dense["predicted_on_card"]) link_ms += stage["link_ms"].get<double>();
  EXPECT_GT(link_ms, 0);
  const Outcome faster = plan({"--link-rate", "50", "--device-rate", "400", "--json", "-"});
  double faster_ms = 0;
  const nlohmann::json faster_dense = nlohmann::json::parse(faster.out)["plans"][0]["methods"][0];
  for (const nlohmann::json& stage : faster_dense["predicted_on_card"]) {
    faster_ms += stage["link_ms"].get<double>();
  }
  EXPECT_NEAR(faster_ms, link_ms / 2, 1e-9 * link_ms);
  const Outcome text = plan({"--link-rate", "25", "--device-rate", "400"});
  EXPECT_NE(text.out.find("not in it: the search of "), std::string::npos) << "topk searches beside the memory\n"
                                                                           << text.out;
  EXPECT_TRUE(refused_with(plan({"--link-rate", "25"}), 2, {"--link-rate", "--device-rate"}));
  EXPECT_TRUE(refused_with(plan({"--link-rate", "0"}), 2, {"--link-rate 0"}));
}

TEST(LinkAndPlan, AProfileSaysWhoseItIsAndItsMachineIsPlannedFor) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "profile.json";
  ASSERT_EQ(
      run_program({"link", "--device", "cpu", "--seconds", "0.1", "--footprint", "64MiB", "--profile", path}).exit_code,
      0);
  nlohmann::json profile = nlohmann::json::parse(std::ifstream(path));
  for (const char* field : {"host", "date", "version"}) EXPECT_FALSE(profile[field].get<std::string>().empty());
  EXPECT_TRUE(profile.contains("processor"));
  profile["host"] = "cellar";
  profile["processor"] = "Another Processor";
  profile["memory_bytes"] = std::uint64_t{700} << 30;
  profile["threads"] = 96;
  std::ofstream(path) << profile;
  const auto plan = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--shape", "32,32,8,128", "-c", "1M", "--device", "cpu"});
    return run_program(more);
  };
  const Outcome other = plan({"--machine", path, "--json", "-"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_GT(nlohmann::json::parse(other.out)["plans"][0]["methods"][0]["ms_per_token"]["total"], 0);
  EXPECT_EQ(other.err, "");
  const Outcome card = run_program({"plan", "--shape", "2,32,8,128", "-c", "4k", "--attn", "dense", "--machine", path,
                                    "--card", "rtx4060", "--json", "-"});
  EXPECT_EQ(nlohmann::json::parse(card.out)["plans"][0]["bytes"]["device_budget"], (std::uint64_t{15} << 29))
      << "in that machine, with the memory that it has";
  const Outcome unused = plan({"-c", "4k", "--card", "rtx4060"});
  EXPECT_NE(unused.err.find("--card has no effect"), std::string::npos) << unused.err;
  EXPECT_EQ(unused.out.find("card"), std::string::npos) << unused.out;

  const std::string kept = folder / "hayloft/profile.json";
  std::filesystem::create_directories(std::filesystem::path(kept).parent_path());
  std::filesystem::copy_file(path, kept);
  ASSERT_EQ(setenv("XDG_CACHE_HOME", std::string(folder / "").c_str(), 1), 0);
  const Outcome unnamed = plan({"-c", "4k", "--json", "-"});
  const Outcome bench = run_program({"bench", "--device", "cpu", "--shape", "1,2,1,32", "-c", "300", "--block-tokens",
                                     "64", "--attn", "dense", "--seconds", "0.01", "--json", "-"});
  unsetenv("XDG_CACHE_HOME");
  const std::string said = "is of another machine, cellar (Another Processor): not used";
  EXPECT_NE(unnamed.err.find(said), std::string::npos) << unnamed.err;
  EXPECT_TRUE(nlohmann::json::parse(unnamed.out)["plans"][0]["methods"][0]["ms_per_token"].is_null());
  EXPECT_NE(bench.err.find(said), std::string::npos) << bench.err;
  EXPECT_FALSE(nlohmann::json::parse(bench.out)["rows"][0].contains("floor_ms"));
  const Outcome named = plan({"-c", "4k", "--profile", path});
  EXPECT_NE(named.err.find("is of another machine, cellar (Another Processor); hayloft link measures anew"),
            std::string::npos)
      << named.err;
  EXPECT_NE(named.out.find("per token"), std::string::npos);
  EXPECT_TRUE(refused_with(plan({"--machine", path, "--profile", path}), 2, {"--machine", "--profile"}));
  EXPECT_TRUE(refused_with(plan({"--machine", path, "-t", "2"}), 2, {"--threads", "--machine"}));
  const Outcome one = plan({"-c", "4k", "--profile", path, "-t", "1"});
  EXPECT_NE(one.err.find("is of 96 threads and so are its times; the plan is of 1: "), std::string::npos) << one.err;
}

TEST(LinkAndPlan, ExpertsHeldAreOfAMixtureLikeTheModelAndOfExpertsThatCrossALink) {
  const test::TemporaryFolder folder;
  const auto plan = [&](const char* model, int experts, std::vector<std::string> more) {
    const std::string held = folder.write(
        "held.json", nlohmann::json{{"schema", "hayloft.attention/1"},
                                    {"experts", {{{"experts", experts}, {"held", {{{"kept", 1}, {"mean", 0.5}}}}}}}}
                         .dump());
    const std::string config = std::string(HAYLOFT_SOURCE_DIR "/tests/golden/models/") + model + "/config.json";
    more.insert(more.begin(), {"plan", "-m", config, "-c", "1k", "--attn", "dense", "--experts-held", held});
    return run_program(more);
  };
  const auto notes = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err.find("note: --experts-held has no effect: ") != std::string::npos;
  };
  const Outcome without = plan("llama", 8, {"--device", "cpu"});
  EXPECT_TRUE(notes(without));
  EXPECT_NE(without.err.find("the model has no experts"), std::string::npos) << without.err;
  EXPECT_TRUE(notes(plan("mixtral", 4, {"--gpu-memory", "1GiB", "--experts", "near"})));
  EXPECT_FALSE(notes(plan("mixtral", 4, {"--gpu-memory", "1GiB", "--experts", "link"})));
  EXPECT_TRUE(refused_with(plan("mixtral", 16, {"--gpu-memory", "1GiB", "--experts", "link"}), 1,
                           {"held.json", "16 experts", "has 4"}));
}

TEST(LinkAndPlan, WrongUsageIsRefused) {
  const test::TemporaryFolder folder;
  for (const char* size : {"--hidden", "--intermediate", "--vocab"}) {
    EXPECT_TRUE(refused_with(run_program({"plan", "-m", "model", size, "5"}), 2, {size, "--shape"}));
  }
  EXPECT_TRUE(refused_with(run_program({"plan", "--shape", "32,32,8,128", "--yarn-orig-ctx", "64"}), 2,
                           {"--yarn-orig-ctx 64 goes with -m"}));
  EXPECT_TRUE(refused_with(run_program({"plan"}), 2, {"-m", "--shape"}));
  EXPECT_TRUE(refused_with(run_program({"plan", "--shape", "32,32,8"}), 2, {"--shape 32,32,8", "head-dim"}));
  EXPECT_TRUE(
      refused_with(run_program({"plan", "--shape", "32,32,8,128", "--attn", "sparq:r=200"}), 2, {"200", "128"}));
  EXPECT_TRUE(refused_with(run_program({"link", "--footprint", "1MiB"}), 2, {"--footprint", "64MiB"}));
  EXPECT_TRUE(refused_with(run_program({"link", "--seconds", "nan"}), 2, {"--seconds", "nan", "0.1", "3600"}));
  EXPECT_TRUE(refused_with(run_program({"link", "--seconds", "inf"}), 2, {"--seconds", "inf"}));
  EXPECT_TRUE(refused_with(run_program({"bench", "--seconds", "nan"}), 2, {"--seconds", "nan", "0.01"}));
  EXPECT_TRUE(refused_with(run_program({"plan", "--shape", "32,32,8,128", "--profile", folder / "none.json"}), 1,
                           {"none.json"}));
}

}  // namespace
}  // namespace hayloft

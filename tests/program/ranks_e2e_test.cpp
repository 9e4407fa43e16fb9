#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/machine/profile.h"
#include "tests/program/ranks_fixture.h"

// `mpirun hayloft` from outside.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::Program;
using test::RanksTest;
using test::run_program;

TEST_F(RanksTest, NeedlesAreFoundByAnyNumberOfRanksAsByOneMachine) {
  const std::vector<std::string> arguments{
      "needle", "--ctx-size",     "4k",  "--depths", "3", "--attn", "dense,sparq,topk,window", "--attn-k",
      "64",     "--block-tokens", "256", "--json",   "-"};
  const Outcome alone = run_program(arguments);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out);
  EXPECT_EQ(expected["ranks"], 1);
  EXPECT_EQ(expected["rows"][0]["network_messages_per_token"], 0);
  for (const int ranks : {1, 2, 3, 4}) {
    const Outcome outcome = over(ranks, arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(json["ranks"], ranks);
    ASSERT_EQ(json["rows"].size(), expected["rows"].size());
    for (std::size_t i = 0; i < json["rows"].size(); ++i) {
      for (const char* field : {"method", "depth", "hit", "answer", "expected", "attended_share",
                                "link_bytes_per_token", "near_bytes_per_token", "positions_scored_per_token"}) {
        EXPECT_EQ(json["rows"][i][field], expected["rows"][i][field]) << field << " over " << ranks;
      }
    }
  }
}

// The bundled model has one global layer, whose queries are those of one machine, and a prompt this short is compared
// whole where an index would be.
TEST_F(RanksTest, HeavyHittersIndicesAndFaissAnswerAsByOneMachine) {
  std::vector<std::string> arguments{"needle", "--ctx-size",     "4k",  "--depths", "3", "--attn", "", "--attn-k",
                                     "64",     "--block-tokens", "256", "--json",   "-"};
  for (const char* attn : {"h2o", "ann", "topk:engine=faiss"}) {
    arguments[6] = attn;
    const Outcome alone = run_program(arguments);
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    const auto expected = nlohmann::json::parse(alone.out);
    for (const int ranks : {2, 3}) {
      const Outcome outcome = over(ranks, arguments);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const auto json = nlohmann::json::parse(outcome.out);
      ASSERT_EQ(json["rows"].size(), expected["rows"].size());
      for (std::size_t i = 0; i < json["rows"].size(); ++i) {
        for (const char* field : {"method", "hit", "answer", "attended_share", "positions_scored_per_token"}) {
          EXPECT_EQ(json["rows"][i][field], expected["rows"][i][field]) << field << " over " << ranks;
        }
        // By h2o what was drawn is all that is told.
        EXPECT_EQ(json["rows"][i]["network_messages_per_token"], attn == std::string("h2o") ? 1 : 3) << attn;
      }
    }
  }
}

TEST_F(RanksTest, TheNetworkCarriesWhatTheFormulaSaysAtEveryLength) {
  const Outcome outcome = over(3, {"needle", "--ctx-size", "2k,8k", "--depths", "2", "--attn", "dense,topk,sparq",
                                   "--attn-k", "64", "--block-tokens", "256", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto config =
      nlohmann::json::parse(contents(fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model/config.json"));
  const double layers = static_cast<double>(std::ranges::count(config["layer_types"], "full_attention"));
  const double heads = config["num_attention_heads"], kv_heads = config["num_key_value_heads"];
  const double d = config["head_dim"];
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 12u);
  for (const auto& row : json["rows"]) {
    const double attention = 4 * heads * (d + 2);
    const double k = row["k"].is_null() ? 0 : row["k"].get<double>() - row["window"].get<double>();
    double messages = 1, sent = attention, further = 0;
    if (row["attn"] == "topk") messages = 2, sent += 8 * heads * k;
    if (row["attn"] == "sparq") {
      messages = 2;
      sent += (4 * kv_heads + 4 * heads) * k + 16 * heads;
      further = row["network_messages_per_token"].get<double>() - layers * messages - 1;
      EXPECT_GE(further, 0) << row;
    }
    sent = layers * sent + further * ((4 * kv_heads + 4 * heads) * std::floor(k / 6) + 4);
    EXPECT_EQ(row["network_messages_per_token"], layers * messages + further + 1) << row;
    EXPECT_NEAR(row["network_sent_bytes_per_token"].get<double>(), sent + 4, 1e-6 * sent)
        << row;  // and the drawn token
    EXPECT_NEAR(row["network_received_bytes_per_token"].get<double>(), 2 * sent, 1e-6 * sent) << row;
  }
}

TEST_F(RanksTest, RanksWriteATextOnce) {
  const std::string model = make_model();
  for (const std::string temperature : {"0", "0.8"}) {
    const std::vector<std::string> arguments{
        "generate",       "-m", model,    "-p",       std::string(600, 'a') + " the hay", "-n", "24",
        "--block-tokens", "64", "--temp", temperature};  // by auto, which reads so little whole
    const Outcome alone = run_program(arguments);
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    for (const int ranks : {2, 3}) {
      const Outcome outcome = over(ranks, arguments);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, alone.out);
      const auto first = outcome.err.find("generated: 24 tokens");
      EXPECT_NE(first, std::string::npos) << outcome.err;
      EXPECT_EQ(outcome.err.find("generated:", first + 1), std::string::npos) << "said by one rank";
      EXPECT_NE(outcome.err.find("network per token:"), std::string::npos) << outcome.err;
    }
  }
}

// A profile of a machine where dense attention is fast, which only the first rank has: the others would choose sparq.
TEST_F(RanksTest, AutoChoosesByWhatTheFirstRankHasMeasured) {
  runtime::plan::MachineProfile profile;
  profile.machine = "made up";
  profile.device = "cpu";
  profile.threads = 1;
  profile.footprint_bytes = std::uint64_t{1} << 30;
  profile.near_read = profile.weight_stream = profile.matmul = profile.layer_overhead_us = 10;
  profile.near_reads = {{0, 1, 10}};
  runtime::AttentionRates rates{.head_dim = 64, .group = 2};
  for (double& rate : rates.column_scans) rate = 1;
  for (double* rate : {&rates.exact_scan, &rates.row_gather, &rates.tail, &rates.sparq_tail, &rates.row_scan,
                       &rates.causal, &rates.ann_search, &rates.column_select_us, &rates.exact_select_us}) {
    *rate = 1;
  }
  rates.dense = 1000;
  profile.attention = {rates};
  write(at("profile.json"), runtime::plan::profile_json(profile));
  const std::vector<std::string> arguments{"needle", "--ctx-size", "4k",       "--depths", "2",
                                           "--attn", "auto",       "--attn-k", "64",       "--block-tokens",
                                           "256",    "--json",     "-"};
  std::vector<std::string> measured = arguments;
  measured.insert(measured.end(), {"--profile", at("profile.json")});
  const Outcome alone = run_program(measured);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out);
  EXPECT_EQ(expected["rows"][0]["attended_share"], 1);
  EXPECT_LT(nlohmann::json::parse(run_program(arguments).out)["rows"][0]["attended_share"], 0.5);
  std::vector<std::string> all{"-n", "1", "--oversubscribe", HAYLOFT_PROGRAM};
  all.insert(all.end(), measured.begin(), measured.end());
  all.insert(all.end(), {":", "-n", "1", HAYLOFT_PROGRAM});
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Outcome outcome = test::Program(test::Command{HAYLOFT_MPIRUN, all}).wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  for (std::size_t i = 0; i < 2; ++i) {
    for (const char* field : {"answer", "attended_share", "link_bytes_per_token", "near_bytes_per_token"}) {
      EXPECT_EQ(json["rows"][i][field], expected["rows"][i][field]) << field;
    }
  }
}

TEST_F(RanksTest, AnEvaluationIsThatOfOneMachineAndGoesOnWhereItStopped) {
  std::string text;
  for (int line = 0; line < 200; ++line) text += "Line " + std::to_string(line * 7919 % 1000) + " of the hay.\n";
  write(at("text.txt"), text);
  const auto with = [&](const char* samples, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"eval",
                                       "-c",
                                       "1k",
                                       "--tasks",
                                       "niah_single_1,perplexity",
                                       "--text",
                                       at("text.txt"),
                                       "--scored-tokens",
                                       "8",
                                       "--attn",
                                       "dense,topk,pages",
                                       "--attn-k",
                                       "64",
                                       "--block-tokens",
                                       "64",
                                       "--agreement",
                                       "--samples",
                                       samples,
                                       "--json",
                                       "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const Outcome alone = run_program(with("2", {"--no-recall"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out);
  EXPECT_EQ(expected["ranks"], 1);
  ASSERT_EQ(over(2, with("1", {"--out", at("rows.jsonl")})).exit_code, 0);
  const Outcome outcome = over(2, with("2", {"--out", at("rows.jsonl")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("no recall"), std::string::npos) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["recipe"]["ranks"], 2);
  ASSERT_EQ(json["rows"].size(), expected["rows"].size());
  const std::string lines = contents(at("rows.jsonl"));
  EXPECT_EQ(std::ranges::count(lines, '\n'), static_cast<std::ptrdiff_t>(json["rows"].size() + 1));
  for (const auto& row : json["rows"]) {
    const auto same = std::ranges::find_if(expected["rows"], [&](const auto& other) {
      return other["task"] == row["task"] && other["sample"] == row["sample"] && other["attn"] == row["attn"];
    });
    ASSERT_NE(same, expected["rows"].end()) << row;
    EXPECT_EQ(row["prediction"], (*same)["prediction"]);
    const double score = row["score"], other = (*same)["score"];
    if (row["measure"] == "perplexity") {
      // Logits are those of one machine to 2^-10 of the largest, which a token of that loss is about as far from.
      EXPECT_NEAR(std::log(score), std::log(other), 2 * std::log(other) / 1024);
    } else {
      EXPECT_EQ(score, other);
    }
    EXPECT_TRUE(row["recall"].is_null());
    EXPECT_GT(row["network_messages_per_token"], 0);
  }
  expect_refused(over(3, with("2", {"--out", at("rows.jsonl")})), 1, {"rows.jsonl", "ranks 2 (here 3)"});
}

TEST_F(RanksTest, TheNetworkIsMeasuredAndPlannedBy) {
  const Outcome measured = over(3, {"link", "--seconds", "0.1", "--json", at("network.json")});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_NE(measured.out.find("dense, window"), std::string::npos) << measured.out;
  EXPECT_NE(measured.err.find("all ranks are on one machine"), std::string::npos) << measured.err;
  const auto network = nlohmann::json::parse(contents(at("network.json")));
  EXPECT_EQ(network["ranks"], 3);
  EXPECT_EQ(network["one_machine"], true);
  const Outcome planned = run_program({"plan", "--shape", "2,4,2,64", "--device", "cpu", "--ranks", "4", "--network",
                                       at("network.json"), "--ctx-size", "64k", "--attn", "dense", "--json", "-"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_NE(planned.err.find("not of a network"), std::string::npos) << planned.err;
  const auto step = nlohmann::json::parse(planned.out)["plans"][0]["methods"][0]["network"];
  const double latency = network["latency_us"], rate = network["Gbitps"];
  const double messages = step["messages_per_token"], received = step["received_bytes_per_token"];
  EXPECT_NEAR(step["ms_per_token"].get<double>(), messages * 2 * latency / 1e3 + 8 * received / (rate * 1e6), 1e-6);
  expect_refused(over(2, {"link", "--tests", "memory"}), 2, {"--tests", "over ranks"});
}

TEST_F(RanksTest, WhatRanksCannotDoTogetherIsRefusedInOneLineBeforeAnyWork) {
  const std::string nothing = at("no-model");
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"generate", "-m", nothing, "-p", "hay"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return over(2, arguments);
  };
  expect_refused(generate({"--attn", "h2o", "--prefill", "topk"}), 2, {"--prefill topk", "exact"});
  expect_refused(generate({"--attn", "pages", "--block-tokens", "16"}), 2, {"--attn pages", "--block-tokens"});
  expect_refused(over(2, {"eval", "-m", nothing, "--attention-stats", at("stats.json")}), 2, {"--attention-stats"});
  expect_refused(generate({"--attn", "dense", "--prefill", "window"}), 2, {"--prefill window", "exact"});
  expect_refused(generate({"--attn", "dense", "--gpu-memory", "8GiB"}), 2, {"--gpu-memory", "--device cuda"});
  expect_refused(generate({"--attn", "dense", "--audit"}), 2, {"--audit", "alone"});
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"plan", "--shape", "32,32,8,128"}, {"index", nothing}}) {
    expect_refused(over(2, command), 2,
                   {"does not run over ranks", "needle, generate, chat, ingest, ask, serve, eval"});
  }
}

TEST_F(RanksTest, WhatIsWrongOnAllRanksIsSaidOnce) {
  expect_refused(over(3, {"needle", "-m", at("no-model"), "--attn", "dense"}), 1, {"no-model"});
  expect_refused(over(2, {"needle", "--attn", "nonsense"}), 2, {"nonsense"});
}

TEST_F(RanksTest, RanksOfAnotherModelOrTextAreRefusedAtTheStart) {
  const std::string model = make_model("llama");
  fs::copy(model, folder_ / "other", fs::copy_options::recursive);
  std::ofstream(folder_ / "other" / "tokenizer.json", std::ios::app) << "\n";
  write(at("text.txt"), "the hay is in the loft");
  write(at("other.txt"), "the hay is in the barn");
  const std::vector<std::string> usual{HAYLOFT_PROGRAM, "generate", "-m", model,    "-f",
                                       at("text.txt"),  "-n",       "2",  "--attn", "dense"};
  const auto with = [&](std::size_t place, const std::string& value) {
    std::vector<std::string> changed = usual;
    changed[place] = value;
    return changed;
  };
  expect_refused(apart({usual, with(3, at("other"))}), 1, {"rank 1 has another model"});
  expect_refused(apart({usual, with(5, at("other.txt"))}), 1, {"rank 1 has another text"});
  expect_refused(apart({usual, with(7, "3")}), 1, {"rank 1 has another command line"});
  const auto save = [&](const char* name) {
    return std::vector<std::string>{HAYLOFT_PROGRAM, "ingest", "-m", model, "-f", at("text.txt"), "--save", at(name)};
  };
  expect_refused(apart({save("one.hay"), save("two.hay")}), 1, {"rank 1 has another command line"});
  // Who has none waited for nobody, and the other for ever.
  std::vector<std::string> eval{HAYLOFT_PROGRAM, "eval", "-m", model, "--tasks", "niah_single_1", "--samples", "1"};
  eval.insert(eval.end(), {"-c", "1k", "--attn", "dense"});
  std::vector<std::string> kept = eval;
  kept.insert(kept.end(), {"--out", at("rows.jsonl")});
  expect_refused(apart({kept, eval}), 1, {"rank 1 has another command line"});
  expect_refused(apart({usual, with(3, at("missing"))}), 1, {"rank 1: ", "missing"});
}

TEST_F(RanksTest, ARankThatIsKilledEndsTheRun) {
  struct Case {
    const char* when;  // what is printed by then
    std::vector<std::string> arguments;
  };
  // Each would go on for minutes.
  for (const Case& of : {Case{"context 1M", {"--ctx-size", "1M", "--depths", "1"}},
                         Case{"depth", {"--ctx-size", "32k", "--depths", "400"}}}) {
    std::vector<std::string> arguments{"needle", "--attn", "dense"};
    arguments.insert(arguments.end(), of.arguments.begin(), of.arguments.end());
    Program program(test::Command{HAYLOFT_MPIRUN, launched(3, arguments)});
    program.wait_until_printed(of.when);
    const std::vector<pid_t> ranks = program.children();
    ASSERT_EQ(ranks.size(), 3u) << program.error_output();
    ::kill(ranks[1], SIGKILL);
    const Outcome outcome = program.wait();
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_TRUE(std::regex_search(outcome.err, std::regex("rank 1 .*signal 9"))) << outcome.err;
    // mpirun may end without passing on what the first rank wrote in its last instant.
    ASSERT_LE(own_lines(outcome).size(), 1u) << outcome.err;
    for (const std::string& line : own_lines(outcome))
      EXPECT_NE(line.find("a rank is lost"), std::string::npos) << line;
    for (const pid_t rank : ranks) wait_until_gone(rank);
  }
}

TEST_F(RanksTest, AProgramAloneLoadsNoMpi) {
  const Outcome outcome = run_program({"--version"}, "export LD_DEBUG=files LD_DEBUG_OUTPUT=" + at("loaded"));
  ASSERT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex("MPI +[0-9]"))) << outcome.out;
  std::string loaded;
  for (const std::string& name : left_behind()) loaded += contents(folder_ / name);
  EXPECT_NE(loaded.find("libtbb"), std::string::npos) << "the loader says what it loads";
  EXPECT_EQ(loaded.find("libmpi"), std::string::npos);
}

}  // namespace
}  // namespace hayloft

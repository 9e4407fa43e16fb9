#include "runtime/eval/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

// Tables, JSON and the plot of an evaluation.
namespace hayloft::runtime::eval {
namespace {

EvalRow make_row(const std::string& task, std::int64_t ctx_size, const std::string& method, double score,
                 Measure measure = Measure::share) {
  EvalRow row;
  row.task = task;
  row.ctx_size = ctx_size;
  row.attn = parse_method(method, {});
  row.score = score;
  row.measure = measure;
  row.near_bytes_per_token = method == "dense" ? 0 : 1024;
  row.link_bytes_per_token = method == "dense" ? 1 << 20 : 1024;
  row.ms_per_token = 1;
  return row;
}

// Two tasks, two lengths, two methods.
EvalReport small_report() {
  EvalReport report;
  report.recipe.model = "m";
  for (const std::int64_t length : {8192, 4096}) {
    for (const char* method : {"dense", "topk"}) {
      const bool best = method == std::string("dense") || length == 4096;
      report.rows.push_back(make_row("vt", length, method, best ? 1 : 0.5));
      report.rows.push_back(make_row("vt", length, method, best ? 1 : 0.25));
      report.rows.push_back(make_row("cwe", length, method, best ? 0.8 : 0));
    }
  }
  return report;
}

using Lines = std::vector<std::vector<std::string>>;

TEST(EvalReport, ScoresAreMeansOverSamplesAndTheLastLineTheMeanOverTasks) {
  EXPECT_EQ(score_table(small_report(), 8192), (Lines{{"8k", "dense", "topk k=128"},
                                                      {"vt", "100.00", "37.50"},
                                                      {"cwe", "80.00", "0.00"},
                                                      {"mean of 2", "90.00", "18.75"}}));
}

TEST(EvalReport, AMethodThatLacksATaskHasNoMeanOverTasks) {
  EvalReport report = small_report();
  report.rows.push_back(make_row("vt", 8192, "window", 1));
  EXPECT_EQ(score_table(report, 8192).back(), (std::vector<std::string>{"mean of 2", "90.00", "18.75", "-"}));
  EXPECT_EQ(length_table(report).back(), (std::vector<std::string>{"window k=128", "-", "-", "-", "-", "-"}));
  EXPECT_EQ(eval_scatter(report)->panels[1].points.size(), 2u);
}

TEST(EvalReport, WithMoreMethodsThanTasksTheTableLiesOnItsSide) {
  EvalReport report;
  for (const char* method : {"dense", "topk", "window"}) report.rows.push_back(make_row("vt", 4096, method, 1));
  EXPECT_EQ(score_table(report, 4096),
            (Lines{{"4k", "vt"}, {"dense", "100.00"}, {"topk k=128", "100.00"}, {"window k=128", "100.00"}}));
}

TEST(EvalReport, OtherMeasuresAreNoShares) {
  EvalReport report = small_report();
  report.rows.push_back(make_row("perplexity", 8192, "dense", 2, Measure::perplexity));
  report.rows.push_back(make_row("perplexity", 8192, "dense", 8, Measure::perplexity));
  report.rows.push_back(make_row("repetition", 8192, "topk", 33, Measure::characters));
  const TextTable table = score_table(report, 8192);
  ASSERT_EQ(table.size(), 6u);
  EXPECT_EQ(table[3], (std::vector<std::string>{"perplexity", "4", "-"})) << "the mean of the logarithms";
  EXPECT_EQ(table[4], (std::vector<std::string>{"repetition (characters)", "-", "33.0"}));
  EXPECT_EQ(table[5], (std::vector<std::string>{"mean of 2", "90.00", "18.75"}));
}

TEST(EvalReport, LengthsAreWeightedBothWaysAndTheLongestGoodOneIsEffective) {
  // topk: 90 at 4k, 18.75 at 8k: (90 + 2 * 18.75) / 3 and (2 * 90 + 18.75) / 3.
  EXPECT_EQ(length_table(small_report()),
            (Lines{{"attention", "4k", "8k", "wAvg (inc)", "wAvg (dec)", "effective length"},
                   {"dense", "90.00", "90.00", "90.00", "90.00", "8k"},
                   {"topk k=128", "90.00", "18.75", "42.50", "66.25", "4k"}}));
  EvalReport strict = small_report();
  strict.effective_share = 0.95;
  EXPECT_EQ(length_table(strict)[1].back(), "-");
}

TEST(EvalReport, LengthsOfOtherTasksAreNotAveraged) {
  EvalReport report = small_report();
  report.rows.push_back(make_row("fwe", 4096, "dense", 1));
  report.rows.push_back(make_row("fwe", 4096, "topk", 1));
  EXPECT_EQ(length_table(report)[1], (std::vector<std::string>{"dense", "93.33", "90.00", "-", "-", "-"}));
}

TEST(EvalReport, OneLengthNeedsNoTableOfLengths) {
  EvalReport report = small_report();
  report.rows.resize(6);
  EXPECT_TRUE(length_table(report).empty());
  EXPECT_EQ(eval_lengths(report), std::vector<std::int64_t>{8192});
}

// A published row: RULER's README gives Llama-3.1-8B 95.5, 93.8, 91.6, 87.4, 84.7, 77.0 for 4k to 128k, and 85.4 as its
// average weighted towards the long ones.
TEST(EvalReport, WeightedAveragesAreRulers) {
  EvalReport report;
  std::int64_t length = 4096;
  for (const double score : {0.955, 0.938, 0.916, 0.874, 0.847, 0.770}) {
    report.rows.push_back(make_row("vt", length, "dense", score));
    length *= 2;
  }
  const TextTable table = length_table(report);
  EXPECT_NEAR(std::stod(table[1][7]), 85.4, 0.05);
  EXPECT_EQ(table[1][9], "32k");
}

TEST(EvalReport, MissingFiguresAreDashesAndNulls) {
  EvalReport report = small_report();
  report.rows[2].kl = 0.5;
  const TextTable costs = cost_table(report);
  ASSERT_EQ(costs.size(), 5u);
  for (const auto& line : costs) EXPECT_EQ(line.size(), costs[0].size());
  const auto json = nlohmann::json::parse(eval_json(report));
  EXPECT_EQ(json["schema"], "hayloft.eval-report/1");
  EXPECT_EQ(json["rows"].size(), 12u);
  EXPECT_EQ(json["means"].size(), 8u);
  EXPECT_TRUE(json["means"][0]["kl"].is_null());
  EXPECT_EQ(json["means"][1]["kl"], 0.5);
  EXPECT_EQ(json["means"][0]["score"], 1);
}

TEST(EvalReport, AMethodThatAttendedToMostOfTheContextIsMarkedAtThatLength) {
  EvalReport report = small_report();
  for (EvalRow& row : report.rows) {
    row.attended_share = row.attn.name == "dense" || row.ctx_size == 4096 ? 1 : 0.1;
    row.block_tokens = 4096;
  }
  EXPECT_EQ(score_table(report, 8192)[0][2], "topk k=128");
  EXPECT_EQ(score_table(report, 4096)[0][1], "dense");
  EXPECT_EQ(score_table(report, 4096)[0][2], "topk k=128 *");
  const std::string summary = eval_summary(report, aligned);
  EXPECT_NE(summary.find("* topk k=128 at 4k attended to 100.0% of the context"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("* topk k=128 at 8k"), std::string::npos) << summary;
  EXPECT_EQ(nlohmann::json::parse(eval_json(report))["means"][2]["attended_share"], 0.1);
}

TEST(EvalReport, WhatWasReadInAnotherWayThanTheFirstIsNotSaidToBeNearDenseAttention) {
  EvalReport report;
  for (const char* prefill : {"exact", "window w=32 s=4"}) {
    for (const char* method : {"dense", "topk"}) {
      report.rows.push_back(make_row("vt", 4096, method, 1));
      report.rows.back().prefill = prefill;
      report.rows.back().attended_share = 1;
    }
  }
  const std::string summary = eval_summary(report, aligned);
  EXPECT_NE(summary.find("* topk k=128, read exact at 4k attended to 100.0%"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("* dense"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("* topk k=128, read window"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("read window w=32 s=4 *"), std::string::npos) << summary;
}

TEST(EvalReport, TablesArePrintedInThreeWays) {
  const TextTable table{{"name", "x"}, {"a,\"b\"", "10"}};
  EXPECT_EQ(aligned(table), "name    x\n-----  --\na,\"b\"  10\n");
  EXPECT_EQ(markdown(table), "| name  |  x |\n|-------|---:|\n| a,\"b\" | 10 |\n");
  EXPECT_EQ(csv(table), "name,x\n\"a,\"\"b\"\"\",10\n");
}

TEST(EvalScatter, AMethodIsAPointByItsBytesAndMeanScore) {
  const auto scatter = eval_scatter(small_report());
  ASSERT_TRUE(scatter.has_value());
  ASSERT_EQ(scatter->panels.size(), 2u);
  EXPECT_EQ(scatter->panels[1].title, "8k tokens");
  const ScatterPoint& topk = scatter->panels[1].points[1];
  EXPECT_EQ(topk.series, "topk k=128");
  EXPECT_EQ(topk.bytes, 2048);
  EXPECT_DOUBLE_EQ(topk.quality, 18.75);
  EXPECT_FALSE(eval_scatter({}).has_value());
}

TEST(EvalScatter, CompressionIsAShareOfWhatDenseAttentionReads) {
  EvalReport report = small_report();
  const auto bytes = eval_scatter(report),
             compressed = eval_scatter(report, EvalQuality::automatic, EvalCost::compression);
  ASSERT_TRUE(compressed.has_value());
  const auto &plain = bytes->panels[1].points, &points = compressed->panels[1].points;
  ASSERT_EQ(points.size(), plain.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_DOUBLE_EQ(points[i].bytes / compressed->whole, plain[i].bytes / plain[0].bytes);
  }
  report.rows.push_back(make_row("vt", 8192, "topk", 1));
  report.rows.back().prefill = "window w=32 s=4";
  EXPECT_TRUE(eval_scatter(report, EvalQuality::automatic, EvalCost::compression).has_value()) << "read in two ways";
  std::erase_if(report.rows, [](const EvalRow& row) { return row.attn.name == "dense"; });
  EXPECT_FALSE(eval_scatter(report, EvalQuality::automatic, EvalCost::compression).has_value());
}

TEST(EvalScatter, WithoutSharesItIsTheAgreementWithDense) {
  EvalReport report;
  report.rows = {make_row("perplexity", 4096, "topk", 9, Measure::perplexity)};
  EXPECT_FALSE(eval_scatter(report).has_value());
  report.rows[0].top1 = 0.75;
  EXPECT_EQ(eval_scatter(report)->panels[0].points[0].quality, 75);
}

TEST(EvalScatter, QualityCanBeChosen) {
  EvalReport report = small_report();
  report.rows.resize(4);
  report.rows[0].kl = 0;  // dense
  report.rows[3].kl = 0.01;
  report.rows[3].mass = 0.5;
  const auto points = [&](EvalQuality quality) { return eval_scatter(report, quality)->panels[0].points; };
  ASSERT_EQ(points(EvalQuality::kl).size(), 1u) << "dense attention is what it is measured against";
  EXPECT_DOUBLE_EQ(points(EvalQuality::kl)[0].quality, 2);
  EXPECT_DOUBLE_EQ(points(EvalQuality::mass)[0].quality, 50);
  EXPECT_FALSE(eval_scatter(report, EvalQuality::top1).has_value());
}

std::vector<std::size_t> front(std::vector<std::pair<double, double>> points) {
  std::vector<ScatterPoint> all;
  for (const auto& [bytes, quality] : points) all.push_back({"", bytes, quality});
  return pareto_front(all);
}

TEST(Pareto, OnlyUnbeatenPointsAreOnTheFront) {
  using Front = std::vector<std::size_t>;
  EXPECT_EQ(front({}), Front{});
  EXPECT_EQ(front({{5, 5}}), Front{0});
  EXPECT_EQ(front({{3, 9}, {1, 2}, {2, 1}, {2, 5}, {4, 9}, {5, 10}}), (Front{1, 3, 0, 5}));
  EXPECT_EQ(front({{1, 5}, {1, 5}, {1, 6}}), Front{2}) << "of points with as many bytes the best";
  EXPECT_EQ(front({{1, 5}, {1, 5}}), Front{0}) << "of equal points the first";
}

TEST(Scatter, IsDrawnForAnyNumberOfPoints) {
  Scatter scatter{"title", "subtitle", "bytes", "quality", {{"4k", {{"one", 0, 50}}}}};
  EXPECT_NE(render_scatter(scatter).find("</svg>"), std::string::npos);
  for (int i = 0; i < 20; ++i) {
    scatter.panels[0].points.push_back({fmt::format("series {}", i), std::exp2(i), 1.0 * i});
  }
  scatter.panels.assign(5, scatter.panels[0]);
  EXPECT_NE(render_scatter(scatter).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::eval

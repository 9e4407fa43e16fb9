#include "runtime/machine/gpu_check/gpu_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/refusal.h"

// hayloft judge: what a run of gpu-check shows, beside what it must.
namespace hayloft::runtime::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t million = std::int64_t{1} << 20;
constexpr std::uint64_t GiB = std::uint64_t{1} << 30;

Json step(const std::string& name, Json data) {
  return {{"step", name}, {"outcome", "passed"}, {"seconds", 1}, {"log_tail", ""}, {"data", std::move(data)}};
}

Json figure(const char* test, const char* engine, std::uint64_t footprint, int piece, double value) {
  return {{"test", test},         {"engine", engine},     {"page_bytes", 4096}, {"footprint_bytes", footprint},
          {"piece_bytes", piece}, {"order", "ascending"}, {"value", value},     {"unit", "GB/s"}};
}

Json link() {
  return {{"link",
           {{"figures",
             {figure("column_stream_f16", "sm", 16 * GiB, 8192, 40),
              figure("column_stream_f16", "both", 16 * GiB, 8192, 50), figure("column_stream_f16", "sm", GiB, 8192, 70),
              figure("row_gather", "sm", 16 * GiB, 512, 30), figure("row_gather", "sm", 16 * GiB, 1024, 45),
              figure("host_to_device_memcpy_ce", "ce", 16 * GiB, 0, 55)}}}}};
}

// Step 1 reads 256 MB of columns and fetching 4 MB of rows, for one layer of one.
Json bench_row(double scan_ms, double selection_ms, double rows_ms) {
  return {{"tokens", million},
          {"columns", "f16"},
          {"attn", "sparq r=16 k=1024 w=0"},
          {"method", "sparq"},
          {"r", 16},
          {"k", 1024},
          {"window", 0},
          {"ms_per_token", 10},
          {"measured_layers", 1},
          {"host_bytes", 24 * GiB},
          {"stage_ms", {{"column scan", scan_ms}, {"selection", selection_ms}, {"rows", rows_ms}}},
          {"link_bytes", {{"columns", 256000000}, {"rows", 4000000}}}};
}

Json bench(Json row) {
  return {{"schema", "hayloft.bench/1"},
          {"device", "cuda"},
          {"link", "both"},
          {"layers", 1},
          {"query_heads", 32},
          {"kv_heads", 8},
          {"head_dim", 128},
          {"device_memory", {{"budget_bytes", 15 * GiB}, {"peak_bytes", 10 * GiB}, {"driver_peak_bytes", 16 * GiB}}},
          {"rows", Json::array({std::move(row)})}};
}

Json needle(const char* device, const std::string& sparq_answer) {
  Json rows = Json::array();
  for (const char* attn : {"dense", "sparq", "topk"}) {
    const std::string answer = attn == std::string("sparq") ? sparq_answer : "123456";
    rows.push_back({{"attn", attn},
                    {"method", attn},
                    {"tokens", 65536},
                    {"depth", 0.0},
                    {"answer", answer},
                    {"hit", answer == "123456"}});
  }
  return {{"schema", "hayloft.needle/1"}, {"model", "m"}, {"device", device}, {"seed", 1}, {"rows", rows}};
}

Json report(std::vector<Json> steps) {
  return {{"schema", "hayloft.gpu-check/1"}, {"steps", std::move(steps)}};
}

Shown line(const Json& report, const std::string& what) {
  const std::vector<Shown> lines = judge_gpu_check(report);
  const auto found =
      std::find_if(lines.begin(), lines.end(), [&](const Shown& s) { return s.what.find(what) != std::string::npos; });
  return found == lines.end() ? Shown{"no line '" + what + "'", "", "", Verdict::no_bar} : *found;
}

TEST(GpuCheck, Step1IsHeldToTheBestColumnStreamOverTheNearestFootprint) {
  const Shown good =
      line(report({step("link", link()), step("bench", bench(bench_row(5.5, 0.5, 0.15)))}), "f16 columns, 1M");
  EXPECT_EQ(good.verdict, Verdict::met);  // 46.5 GB/s of the 50 that both engines give over 16 GiB
  EXPECT_EQ(good.figure, "46.5 GB/s by both: 0.93 of 50.0 (both, over 16.0 GiB); 0.85 of whole copies");
  const Shown slow =
      line(report({step("link", link()), step("bench", bench(bench_row(6, 0.5, 0.15)))}), "f16 columns, 1M");
  EXPECT_EQ(slow.verdict, Verdict::missed);
}

TEST(GpuCheck, TheLinkIsThatOfThePagesOfKeysAndValues) {
  Json measured = link();
  for (Json& small : measured["link"]["figures"]) small["kv_pages"] = false;
  Json huge = figure("column_stream_f16", "sm", 16 * GiB, 8192, 60);
  huge.update({{"page_bytes", 2 << 20}, {"transparent", true}, {"kv_pages", true}});
  measured["link"]["figures"].push_back(huge);
  const Shown shown =
      line(report({step("link", measured), step("bench", bench(bench_row(5.5, 0.5, 0.15)))}), "f16 columns, 1M");
  EXPECT_EQ(shown.figure, "46.5 GB/s by both: 0.78 of 60.0 (sm, over 16.0 GiB)");
}

TEST(GpuCheck, WhatTheBackendHadToSayStandsBesideTheRate) {
  Json run = bench(bench_row(5.5, 0.5, 0.15));
  run["notes"] = {"nothing is pinned"};
  const Shown shown = line(report({step("link", link()), step("bench", run)}), "f16 columns, 1M");
  EXPECT_NE(shown.figure.find("; nothing is pinned"), std::string::npos) << shown.figure;
}

TEST(GpuCheck, TheFastestVariantOfTheLinkCounts) {
  const Json both = report(
      {step("link", link()), step("a", bench(bench_row(9, 0.5, 0.15))), step("b", bench(bench_row(5.5, 0.5, 0.15)))});
  EXPECT_EQ(line(both, "f16 columns, 1M").verdict, Verdict::met);
}

TEST(GpuCheck, AShorterContextShowsItsFigureButMeetsNothing) {
  Json row = bench_row(5.5, 0.5, 0.15);
  row["tokens"] = 131072;
  const Json short_run = report({step("link", link()), step("bench", bench(row))});
  for (const char* what : {"f16 columns, 1M", "selection of 1024", "fetch of 1024"}) {
    EXPECT_EQ(line(short_run, what).verdict, Verdict::missed) << what;
    EXPECT_NE(line(short_run, what).figure.find("at 131072 tokens"), std::string::npos) << what;
  }
}

TEST(GpuCheck, SelectionAndFetchingAreHeldToTheirShares) {
  const Json good = report({step("link", link()), step("bench", bench(bench_row(5, 0.7, 0.16)))});
  EXPECT_EQ(line(good, "selection of 1024").verdict, Verdict::met);  // 0.14
  EXPECT_EQ(line(good, "fetch of 1024").verdict, Verdict::met);      // 25 of 30 GB/s in rows of 512 bytes
  const Json slow = report({step("link", link()), step("bench", bench(bench_row(5, 0.8, 0.17)))});
  EXPECT_EQ(line(slow, "selection of 1024").verdict, Verdict::missed);
  EXPECT_EQ(line(slow, "fetch of 1024").verdict, Verdict::missed);
}

TEST(GpuCheck, EveryPeakOfDeviceMemoryIsHeldToItsBudget) {
  Json taken = step("bench", bench(bench_row(5, 0.7, 0.16)));
  taken["device_before_MiB"] = 4;
  taken["device_peak_MiB"] = 15000;
  EXPECT_EQ(line(report({taken}), "the arena's peak").verdict, Verdict::met);
  EXPECT_EQ(line(report({taken}), "the driver's peak").verdict, Verdict::missed);
  EXPECT_EQ(line(report({taken}), "nvidia-smi").figure, "14996 of 16000 MiB (bench)");
  EXPECT_EQ(line(report({taken}), "nvidia-smi").verdict, Verdict::met);
}

TEST(GpuCheck, AnswersAreComparedWithTheCpus) {
  const Json same = report({step("gpu", needle("cuda", "12")), step("cpu", needle("cpu", "12"))});
  EXPECT_EQ(line(same, "needle at 64k").verdict, Verdict::met) << "both miss one";
  EXPECT_EQ(line(same, "needle at 64k").figure, "3 of 3; found dense 1/1, sparq 0/1, topk 1/1");
  const Json other = report({step("gpu", needle("cuda", "12")), step("cpu", needle("cpu", "123456"))});
  EXPECT_EQ(line(other, "needle at 64k").verdict, Verdict::missed);
  EXPECT_EQ(line(report({step("gpu", needle("cuda", "12"))}), "needle at 64k").verdict, Verdict::unmeasured);
}

TEST(GpuCheck, TestsThatWereNotRunToTheirEndAreNotGreen) {
  const Json suites{{"passed", 9}, {"failed", 0}, {"skipped", 0}};
  Json tests = step("tests", suites);
  EXPECT_EQ(line(report({tests}), "CUDA tests").verdict, Verdict::met);
  tests["outcome"] = "out of time";
  EXPECT_EQ(line(report({tests}), "CUDA tests").verdict, Verdict::missed);
  EXPECT_EQ(line(report({step("tests", {{"passed", 0}, {"failed", 0}, {"skipped", 9}})}), "CUDA tests").verdict,
            Verdict::unmeasured);
}

TEST(GpuCheck, ASuiteOutOfTimeHasHungUnlessItWasUnderAChecker) {
  const Json suites{{"passed", 9}, {"failed", 0}, {"skipped", 0}, {"out_of_time", 1}};
  Json tests = step("tests", suites), checked = step("sanitizer", suites);
  tests["outcome"] = checked["outcome"] = "out of time";
  const Json late = report({tests, checked});
  EXPECT_EQ(line(late, "CUDA tests").verdict, Verdict::missed);
  EXPECT_EQ(line(late, "under compute-sanitizer").verdict, Verdict::unmeasured);
  EXPECT_EQ(line(late, "under compute-sanitizer").figure,
            "9 passed, 0 failed, 0 skipped, 1 suites out of time; out of time");
  checked["data"]["failed"] = 1;
  checked["outcome"] = "failed, exit code 1";
  EXPECT_EQ(line(report({checked}), "under compute-sanitizer").verdict, Verdict::missed);
}

TEST(GpuCheck, AnEmptyReportHasEveryLineUnmeasured) {
  for (const Shown& shown : judge_gpu_check(report({}))) EXPECT_EQ(shown.verdict, Verdict::unmeasured) << shown.what;
  EXPECT_EQ(judge_gpu_check(report({})).size(), 13u);
}

TEST(GpuCheck, ReportsOfAnotherKindAreRefused) {
  EXPECT_TRUE(test::refuses([] { judge_gpu_check(Json{{"schema", "hayloft.bench/1"}}); }, {"hayloft.gpu-check/1"}));
  EXPECT_TRUE(test::refuses([] { judge_gpu_check(Json::array()); }, {"hayloft.gpu-check/1"}));
  // Fields of another type than they should have count as absent.
  judge_gpu_check(
      report({Json(7), step("tests", Json::array({1})), step("link", {{"link", {{"figures", {1, "x"}}}}})}));
}

}  // namespace
}  // namespace hayloft::runtime::plan
